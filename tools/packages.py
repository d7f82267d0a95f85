"""The Python packages that ship: the wheel of the workload, and what the locks put beside it."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import EntryPoint, PathDistribution
from pathlib import Path
from typing import NamedTuple

from tools import errors, interpreters

ROOT = Path(__file__).resolve().parents[1]
WORKLOAD = ROOT / "workload"


class Requirement(NamedTuple):
    """A package that a lock pins."""

    name: str
    version: str


def version(project: Path = WORKLOAD) -> str:
    """The version that a project's pyproject.toml has; that of the workload is the product's."""
    return str(tomllib.loads((project / "pyproject.toml").read_text())["project"]["version"])


def wheel(folder: Path, project: Path = WORKLOAD) -> Path:
    """Build the wheel of the workload into a folder, the same bytes each time."""
    uv("build", "--wheel", "--out-dir", str(folder), str(project))
    return folder / f"istio_aux-{version(project)}-py3-none-any.whl"


def scripts(built: Path) -> Iterator[EntryPoint]:
    [folder] = (path for path in zipfile.Path(built).iterdir() if path.name.endswith(".dist-info"))
    yield from PathDistribution(folder).entry_points.select(group="console_scripts")


def exported(project: Path, *options: str) -> str:
    """What a project's lock says must be installed with it, as pip reads it."""
    command = ["export", "--frozen", "--no-dev", "--no-emit-project", "--no-annotate"]
    return uv(*command, "--no-header", *options, "--project", str(project))


def locked(project: Path) -> list[Requirement]:
    """The packages of an index that a project's lock installs, on any Python and machine."""
    # numpy==2.0 ; python_full_version < '3.13'
    lines = exported(project, "--no-emit-local", "--no-hashes").splitlines()
    pinned = (line.partition(";")[0].strip().partition("==") for line in lines)
    return [Requirement(name, version) for name, _, version in pinned]


def install(project: Path, site: Path, *, python: str, machine: str) -> None:
    """Install the wheels that a project's lock pins into a folder, for any Python and machine.

    What it has from a folder of the project is built here.
    """
    site.mkdir(parents=True)
    pinned = site.with_suffix(".txt")
    pinned.write_text(exported(project, "--no-emit-local"))
    uv(
        "pip", "install", "--target", str(site), "--requirements", str(pinned), "--require-hashes",
        "--no-deps", "--only-binary", ":all:", "--python-version", python,
        "--python-platform", f"{machine}-manylinux_2_28", "--link-mode", "copy",
    )  # fmt: skip
    pinned.unlink()
    # Scripts of dependencies name this machine's interpreter, and are not needed.
    shutil.rmtree(site / "bin", ignore_errors=True)
    (site / ".lock").unlink(missing_ok=True)
    for record in site.glob("*.dist-info/RECORD"):
        lines = record.read_text().splitlines(keepends=True)
        record.write_text("".join(each for each in lines if not each.startswith(("bin/", "../"))))
    for folder in _folders(project):
        with tempfile.TemporaryDirectory() as scratch:
            uv("build", "--wheel", "--out-dir", scratch, str(folder))
            [built] = Path(scratch).glob("*.whl")
            with zipfile.ZipFile(built) as archive:
                archive.extractall(site)


def _folders(project: Path) -> Iterator[Path]:
    """The packages that a project's lock has from folders of the project."""
    # -e ./lib/istio-sidecar
    for line in exported(project, "--no-hashes").splitlines():
        place = line.removeprefix("-e ")
        if place.startswith("./"):
            yield project / place


def uv(*arguments: str) -> str:
    """Run uv quietly, and return what it prints. Raises ChildProcessError with what it said."""
    environment = {k: v for k, v in os.environ.items() if k not in {"VIRTUAL_ENV", "PYTHONPATH"}}
    # Not the one that a file in some folder above asks for.
    environment["UV_PYTHON"] = sys.executable
    return errors.run([interpreters.uv(), *arguments, "--quiet"], env=environment)
