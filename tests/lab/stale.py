"""Removes cached builds of the checkout that have not been used for days."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

DAYS = 7


def use(path: Path) -> Path:
    """Mark an entry of the cache as used now, remove its stale neighbours, and return it."""
    path.touch()
    oldest = time.time() - DAYS * 24 * 60 * 60
    for neighbour in path.parent.iterdir():
        if neighbour.stat().st_mtime < oldest and not neighbour.name.startswith("."):
            # A lock is a file beside its folder; an empty one costs nothing.
            shutil.rmtree(neighbour, ignore_errors=True)
    return path
