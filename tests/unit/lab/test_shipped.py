"""What ships: an image that follows its recipe, one version, and whole bills of materials."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from istio_aux.model import names

from tools import address, interpreters, packages, program, sbom
from tools.rock import Recipe

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


def test_charm_and_wheel_have_the_addresses_of_the_project() -> None:
    project = tomllib.loads((packages.WORKLOAD / "pyproject.toml").read_text())["project"]
    keys = {"Homepage": "website", "Documentation": "docs", "Source": "source", "Issues": "issues"}
    assert project["urls"] == {name: METADATA[key] for name, key in keys.items()}
    assert METADATA["source"] == names.REPOSITORY
    assert address.registry(names.REPOSITORY) == names.REGISTRY


# An address that is written down, and one that is left for the reader to write.
ADDRESS = re.compile(
    r"(?:https://)?(?:github|ghcr)\.(?:com|io|example)/[\w.-]+/(?:charts/)?istio-aux\b(?!\.rb)"
    r"|<(?:the )?(?:address|owner|repository)\b[^>]*>|(?:/|-owner )OWNER\b|charmhub\.io/istio-aux"
)
# Where an address is asked for.
ASKED: dict[str, str] = dict.fromkeys(
    ("CONTRIBUTING.md", "tools/address.py"), "https://github.com/OWNER/REPOSITORY"
)


def strangers(found: Mapping[str, str]) -> dict[str, set[str]]:
    """The addresses in these texts that are not the project's."""
    ours = (names.REPOSITORY, names.REGISTRY)
    others = {
        name: {
            each[0]
            for each in ADDRESS.finditer(text.replace(ASKED.get(name, ""), ""))
            if not each[0].startswith(ours)
        }
        for name, text in found.items()
        if not name.startswith("tests/")  # They have other addresses, too.
    }
    return {name: each for name, each in others.items() if each}


def test_every_file_has_the_address_of_the_project_and_no_other_and_no_placeholder() -> None:
    """Of a page that is to have an address, too: `model/names.py` has it."""
    found = address.texts()
    assert strangers(found) == {}
    pages = {name for name, text in found.items() if names.REPOSITORY in text}
    assert pages >= {"README.md", "metadata.yaml", "workload/src/istio_aux/model/names.py"}


def test_one_command_moves_the_project_to_another_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the address stood, the new one stands, and nothing of the old one is left."""
    found = address.texts()
    changed = address.moved(found, "https://github.com/Acme/mesh")
    monkeypatch.setattr(names, "REPOSITORY", "https://github.com/Acme/mesh")
    monkeypatch.setattr(names, "REGISTRY", "ghcr.io/acme")
    assert strangers(found | changed) == {}
    assert {name for name, text in changed.items() if f"{address.REPOSITORY}/" in text} == set()
    assert "--repo Acme/mesh" in changed["docs/reference/packages.md"]


def test_the_project_moves_to_no_place_but_a_repository() -> None:
    with pytest.raises(ValueError, match=r"expected https://github.com/OWNER/REPOSITORY"):
        address.moved({}, "github.com/acme")


def test_the_checkout_is_as_charmhubs_reviewers_want_it() -> None:
    """By their own program, which needs Python 3.12: `tox -e listing`."""
    python = interpreters.find(interpreters.SHIPPED)
    if not python:
        pytest.skip(f"python {interpreters.SHIPPED}: not found")
    command = ("run", "--isolated", "--frozen", "--only-group", "listing", "--python", python)
    done = subprocess.run(
        [interpreters.uv(), *command, "python", "tests/listing.py"],
        cwd=packages.ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


DEBS = [Path("libc6_2.36-9+deb12u14_amd64.deb"), Path("zlib1g_1%3a1.2.13.dfsg-1_amd64.deb")]


@pytest.fixture(scope="module")
def image() -> str:
    """The bill of an image."""
    return sbom.of_image(DEBS)


@pytest.fixture(scope="module")
def charm() -> str:
    """The bill of the charm."""
    return sbom.of_charm()


@pytest.fixture(scope="module")
def packed() -> str:
    """The bill of the program that is one file."""
    return program.bill()


def pinned(project: Path, root: str) -> Iterator[str]:
    """What a lock says that a package of its needs, with the extras that are asked for."""
    lock = tomllib.loads((project / "uv.lock").read_text())
    found: dict[str, dict[str, Any]] = {each["name"]: each for each in lock["package"]}
    todo, seen = [(root, "")], set[tuple[str, str]]()
    while todo:
        name, extra = todo.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        package = found[name]
        needs = package.get("optional-dependencies", {}).get(extra, []) if extra else []
        for need in needs or package.get("dependencies", []):
            todo += [(need["name"], each) for each in ("", *need.get("extra", []))]
        if "registry" in package["source"]:  # Not of this checkout.
            yield f"pkg:pypi/{name}@{package['version']}"


def held(bill: str) -> set[str]:
    return {part["purl"] for part in json.loads(bill)["components"]}


@pytest.mark.parametrize("bill", ["image", "charm", "packed"])
def test_a_bill_is_what_the_standard_says(bill: str, request: pytest.FixtureRequest) -> None:
    """CycloneDX 1.6, by its own schema."""
    from cyclonedx.schema import SchemaVersion  # noqa: PLC0415  (the import takes 2 s)
    from cyclonedx.validation.json import JsonStrictValidator  # noqa: PLC0415

    errors = JsonStrictValidator(SchemaVersion.V1_6).validate_str(request.getfixturevalue(bill))
    assert errors is None


def test_the_image_lists_every_package_of_the_lock_of_the_workload(image: str) -> None:
    wanted = set(pinned(packages.WORKLOAD, "istio-aux"))
    assert wanted
    assert wanted - held(image) == set()


def test_the_program_lists_its_interpreter_beside_the_lock_of_the_workload(packed: str) -> None:
    more = held(packed) - set(pinned(packages.WORKLOAD, "istio-aux"))
    assert {purl.partition("@")[0] for purl in more} == {
        "pkg:generic/python",
        "pkg:generic/openssl",
    }


def test_the_charm_lists_every_package_that_the_lock_installs_with_it(charm: str) -> None:
    """Those of the tests are in the same lock; they are not in the charm."""
    wanted = set(pinned(packages.ROOT, "istio-aux-charm"))
    assert wanted
    assert held(charm) == wanted


def test_the_image_lists_pebble_its_modules_and_the_packages_of_the_base(image: str) -> None:
    pins = (packages.ROOT / "tools/pebble/go.mod").read_text()
    modules = {
        f"pkg:golang/{n.lower()}@{v}" for n, v in re.findall(r"^\t(\S+) (v\S+)", pins, re.MULTILINE)
    }
    assert any("/pebble@" in module for module in modules)
    assert modules - held(image) == set()
    debs = [purl for purl in sorted(held(image)) if purl.startswith("pkg:deb/")]
    assert [purl.partition("?")[0].rpartition("/")[2] for purl in debs] == [
        "libc6@2.36-9%2Bdeb12u14",
        "zlib1g@1%3A1.2.13.dfsg-1",
    ]
