"""Packing the charm without snap."""

from __future__ import annotations

import os
import re
import subprocess
import zipfile
from pathlib import Path

import pytest
from lab import interpreters, pack

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def charm() -> Path:
    """The packed charm of this checkout."""
    return pack.pack(ROOT)


@pytest.fixture(scope="module")
def content(charm: Path) -> dict[str, zipfile.ZipInfo]:
    """What is in it, by path."""
    with zipfile.ZipFile(charm) as archive:
        return {entry.filename: entry for entry in archive.infolist()}


def test_the_charm_has_what_it_needs_and_nothing_else(content: dict[str, zipfile.ZipInfo]) -> None:
    """Its own code, and its dependencies for the Python that runs it.

    Charmcraft's uv plugin copies neither icon nor license.
    """
    python, _ = interpreters.shipped()
    command = [python, "-c", "import sys; print('python%d.%d' % sys.version_info[:2])"]
    version = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    site_packages = f"venv/lib/{version}/site-packages"
    wanted = {f"{site_packages}/{name}/__init__.py" for name in ("ops", "lightkube", "jinja2")}
    wanted |= {str(path.relative_to(ROOT)) for path in (ROOT / "src").rglob("*.py")}
    wanted |= {"metadata.yaml", "config.yaml", "manifest.yaml", "icon.svg", "LICENSE"}

    assert wanted - set(content) == set()


def test_the_charm_has_of_the_workload_its_model_and_nothing_of_tests(
    content: dict[str, zipfile.ZipInfo],
) -> None:
    folders = {name.partition("/")[0] for name in content if "/" in name}
    assert folders <= {"src", "lib", "venv"}
    others = {name for name in content if name.startswith("src/istio_aux/")}
    assert {name for name in others if not name.startswith("src/istio_aux/model/")} == {
        "src/istio_aux/__init__.py"
    }


def test_the_packed_charm_has_all_that_it_imports(charm: Path, tmp_path: Path) -> None:
    """On the path that `dispatch` sets, without this checkout."""
    with zipfile.ZipFile(charm) as archive:
        archive.extractall(tmp_path)
    python, _ = interpreters.shipped()
    (packages,) = tmp_path.glob("venv/lib/python*/site-packages")
    path = os.pathsep.join(map(str, (tmp_path / "src", tmp_path / "lib", packages)))
    modules = (file.stem for file in (tmp_path / "src").glob("*.py"))
    environment = {**os.environ, "PYTHONPATH": path}
    subprocess.run(
        [python, "-P", "-c", f"import {', '.join(modules)}"], env=environment, check=True
    )


def test_the_library_is_a_package_of_its_own(tmp_path: Path) -> None:
    """With the module that charms import, and nothing else; its version is the module's."""
    build = [interpreters.uv(), "build", "--quiet", "--wheel", str(ROOT / "lib")]
    subprocess.run([*build, "--out-dir", str(tmp_path)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    module = "charms/istio_aux/v0/sidecar.py"
    with zipfile.ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if "dist-info" not in name} == {module}
        text = archive.read(module).decode()
    said = dict(re.findall(r"^(LIBAPI|LIBPATCH) = (\d+)", text, re.MULTILINE))
    assert wheel.name.split("-")[1] == f"{said['LIBAPI']}.{said['LIBPATCH']}"
