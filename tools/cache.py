"""Where the lab keeps what it makes, and the locks of the processes that share it.

tools/<key>/<program>   built programs, named by what they are built from
go/                     a Go toolchain, where the machine has none
run/<cluster>/          state of a running cluster, removed with it
logs/<cluster>/         its logs, kept when something went wrong
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

# Builds of a checkout are removed after so many days without use.
DAYS = 7


def root() -> Path:
    """The lab's folder in the user's cache (XDG Base Directory Specification)."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "istio-aux" / "lab"


def folder(*names: str) -> Path:
    """The folder of these names beneath `root`, made when it is missing."""
    path = root().joinpath(*names)
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextlib.contextmanager
def lock(path: Path, *, waiting: str = "") -> Iterator[None]:
    """Hold the file `path` locked against other processes; say `waiting` when another holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting:
                say(waiting)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def once(kind: str, key: str, make: Callable[[Path], object], *, saying: str) -> Path:
    """The folder that `make` fills once for each key of a kind, also beside other processes.

    After a failure it begins with an empty folder. Folders of the kind that nobody uses go.
    """
    place = root().parent / kind / key
    with lock(place.with_suffix(".lock"), waiting=f"another process is {saying}"):
        if not place.exists():
            say(saying)
            partial = place.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            make(partial)
            partial.rename(place)
        return use(place)


def say(line: str) -> None:
    """Print one line of progress on stderr."""
    print(f"lab: {line}", file=sys.stderr, flush=True)


def use(path: Path) -> Path:
    """Mark a build of the checkout as used now, remove its stale neighbours, and return it."""
    path.touch()
    oldest = time.time() - DAYS * 24 * 60 * 60
    for neighbour in path.parent.iterdir():
        if neighbour.stat().st_mtime < oldest and not neighbour.name.startswith("."):
            # A lock is a file beside its folder; an empty one costs nothing.
            shutil.rmtree(neighbour, ignore_errors=True)
    return path
