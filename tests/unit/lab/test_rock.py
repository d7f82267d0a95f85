"""The image of the workload follows its recipe, `workload/rockcraft.yaml`."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import pytest
import yaml
from lab import packages, rock, sbom
from lab.rock import Recipe, RecipeError


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    """A folder with the recipe, to be changed."""
    shutil.copy(packages.WORKLOAD / rock.RECIPE, tmp_path)
    return tmp_path


METADATA = yaml.safe_load((packages.ROOT / "metadata.yaml").read_text())


def test_the_product_has_one_version() -> None:
    """That of the workload; the rock, the charm, its image, the chart and the bills repeat it."""
    image = METADATA["resources"]["istio-aux-image"]["upstream-source"]
    chart = yaml.safe_load((packages.ROOT / "chart/Chart.yaml").read_text())
    assert {
        chart["version"],
        chart["appVersion"],
        packages.version(packages.ROOT),
        Recipe.read(packages.WORKLOAD).version,
        image.rpartition(":")[2],
        json.loads(sbom.of_charm())["metadata"]["component"]["version"],
        json.loads(sbom.of_image([]))["metadata"]["component"]["version"],
    } == {packages.version()}


def test_the_wheel_has_the_addresses_of_the_charm() -> None:
    project = tomllib.loads((packages.WORKLOAD / "pyproject.toml").read_text())["project"]
    assert project["urls"] == {
        "Homepage": METADATA["website"],
        "Documentation": METADATA["docs"],
        "Source": METADATA["source"],
        "Issues": METADATA["issues"],
    }


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("run-user: _daemon_", "run-user: nobody", "nobody"),
        ("plugin: nil", "plugin: go", "go"),
        ("license:", "entrypoint-service: istio-aux\nlicense:", "entrypoint-service"),
        ("build-snaps:", "stage-snaps: [pebble]\n    build-snaps:", "stage-snaps"),
    ],
)
def test_what_the_maker_does_not_understand_of_a_recipe_is_an_error(
    workload: Path, old: str, new: str, named: str
) -> None:
    """Otherwise the image would silently differ from the rock."""
    file = workload / rock.RECIPE
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    with pytest.raises(RecipeError, match=f"{named}: expected one of"):
        Recipe.read(workload)
