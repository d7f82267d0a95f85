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
PROJECT = '[project]\nname = "stale"\nversion = "{version}"\nrequires-python = ">=3.11"\n'


@pytest.fixture(scope="module")
def charm() -> Path:
    """The packed charm of this checkout."""
    return pack.pack(ROOT)


@pytest.fixture(scope="module")
def content(charm: Path) -> dict[str, zipfile.ZipInfo]:
    """What is in it, by path."""
    with zipfile.ZipFile(charm) as archive:
        return {entry.filename: entry for entry in archive.infolist()}


def test_the_charm_has_metadata_options_and_its_own_code(
    content: dict[str, zipfile.ZipInfo],
) -> None:
    source = {str(path.relative_to(ROOT)) for path in (ROOT / "src").rglob("*.py")}
    assert {"metadata.yaml", "config.yaml", "manifest.yaml", *source} - set(content) == set()


def test_the_charm_brings_its_icon_and_its_license(content: dict[str, zipfile.ZipInfo]) -> None:
    """Charmcraft's uv plugin copies neither."""
    assert {"icon.svg", "LICENSE"} - set(content) == set()


def test_dispatch_can_be_executed(content: dict[str, zipfile.ZipInfo]) -> None:
    assert content["dispatch"].external_attr >> 16 & 0o111


def test_the_charm_brings_its_dependencies_for_the_python_that_runs_it(
    content: dict[str, zipfile.ZipInfo],
) -> None:
    python, _ = interpreters.shipped()
    command = [python, "-c", "import sys; print('python%d.%d' % sys.version_info[:2])"]
    version = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    site_packages = f"venv/lib/{version}/site-packages"
    wanted = {f"{site_packages}/{name}/__init__.py" for name in ("ops", "lightkube", "jinja2")}
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


def test_an_unchanged_checkout_is_packed_once(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(checkout)], check=True)
    first = pack.pack(checkout)
    packed = first.stat().st_ino
    again = pack.pack(checkout)
    assert (again, again.stat().st_ino) == (first, packed)


def test_a_stale_lock_is_refused_before_anything_is_packed(tmp_path: Path) -> None:
    project = tmp_path / "pyproject.toml"
    project.write_text(PROJECT.format(version="1"))
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    lock = [interpreters.uv(), "lock", "--quiet", "--offline"]
    subprocess.run(lock, cwd=tmp_path, check=True)
    project.write_text(PROJECT.format(version="2"))
    with pytest.raises(pack.PackError, match="lock --check"):
        pack.pack(tmp_path)
