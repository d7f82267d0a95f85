"""Finds uv and the Python interpreters from which the lab makes virtual environments."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tools import cache

# Charm and rock run on Ubuntu 24.04, which has Python 3.12.
SHIPPED = "3.12"


def uv() -> str:
    """The path of uv: beside the running interpreter or on PATH. Raises FileNotFoundError."""
    beside = str(Path(sys.executable).parent)
    if found := shutil.which("uv", path=os.pathsep.join([beside, os.environ.get("PATH", "")])):
        return found
    raise FileNotFoundError("uv: not found on PATH; `pip install uv` gets it")


def find(version: str) -> Path | None:
    """The interpreter of a version such as "3.12" that uv or pyenv has; nothing is downloaded."""
    command = [uv(), "python", "find", "--no-python-downloads", "--no-project", version]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode == 0:
        return Path(answer.stdout.strip()).resolve()
    # pyenv's shim of a version that is not enabled makes uv give up; its folder still has it.
    pyenv = Path(os.environ.get("PYENV_ROOT") or "~/.pyenv").expanduser()
    for candidate in sorted(pyenv.glob(f"versions/{version}*/bin/python{version}")):
        return candidate.resolve()
    return None


@functools.cache
def shipped() -> tuple[Path, str]:
    """The interpreter for charm and workload, and its version; a line says when that differs."""
    if path := find(SHIPPED):
        return path, SHIPPED
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    cache.say(f"python {SHIPPED}, which ships: not found; the charm runs on {running} here")
    return Path(sys.executable).resolve(), running


def link(python: Path, folder: Path) -> Path:
    """Make `folder` with `python3` and `python` pointing at the interpreter: a first PATH entry."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("python", "python3"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(python)
    return folder
