"""The relation library as a package: its specification and its versions."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from charmlibs.interfaces import istio_sidecar
from charmlibs.interfaces.istio_sidecar_testing import __version__
from pydantic import BaseModel, ValidationError

PROJECT = Path(__file__).parents[2]
SPECIFICATION = PROJECT / "interface/v0"
MESHES = [
    istio_sidecar.Mesh(live=True, reason="istiod", meshed=True, root_namespace="kubeflow"),
    istio_sidecar.Mesh(live=False, reason="no injector found"),
    istio_sidecar.Mesh(True, meshed=False, meshed_reason="a-0: none", revision="1-28"),
]


@pytest.fixture(scope="module")
def schema() -> ModuleType:
    """The schema of the specification, which stands alone and is no part of the package."""
    spec = importlib.util.spec_from_file_location("schema", SPECIFICATION / "schema.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("mesh", MESHES)
def test_what_the_provider_writes_is_what_the_specification_says(
    schema: ModuleType, mesh: istio_sidecar.Mesh
) -> None:
    written = {key: value for key, value in mesh.to_databag().items() if value}
    read: BaseModel = schema.ProviderAppData.model_validate(written)
    assert read.model_dump(by_alias=True, exclude_unset=True) == written


@pytest.mark.parametrize(
    ("application", "model", "valid"),
    [("a", "m" * 63, True), ("a" * 64, "m", False), ("A", "m", False), ("a", "m\n", False)],
)
def test_specification_and_library_accept_the_same_requests(
    schema: ModuleType, *, application: str, model: str, valid: bool
) -> None:
    databag = {"application": application, "model": model}
    assert (istio_sidecar.SidecarRequest.from_databag(databag) is not None) == valid
    try:
        schema.RequirerAppData.model_validate(databag)
    except ValidationError:
        assert not valid
    else:
        assert valid


def test_the_specification_names_library_interface_and_provider() -> None:
    said = yaml.safe_load((SPECIFICATION / "interface.yaml").read_text())
    metadata = yaml.safe_load((PROJECT.parents[1] / "metadata.yaml").read_text())
    assert (said["name"], said["version"]) == (metadata["provides"]["sidecar"]["interface"], 0)
    assert said["lib"] == istio_sidecar.__name__
    assert [each["name"] for each in said["providers"]] == [metadata["name"]]


def test_library_and_testing_library_need_each_other_at_one_version() -> None:
    projects = [PROJECT / "pyproject.toml", PROJECT / "testing/pyproject.toml"]
    needs = [re.findall(r"istio-sidecar[a-z-]*==([\d.]+)", path.read_text()) for path in projects]
    assert needs == [[istio_sidecar.__version__], [__version__]]
    assert istio_sidecar.__version__ == __version__
    names = [tomllib.loads(path.read_text())["project"]["name"] for path in projects]
    assert names[0] in names[1]
