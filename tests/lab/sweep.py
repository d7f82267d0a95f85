"""Lists running clusters, and removes what dead harnesses left."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from lab import cache, guardian

# Logs that were kept; the oldest beyond these go.
LOGS = 20


def running() -> dict[str, dict[str, Any]]:
    """The record of every living cluster by name; one that is still starting has an empty one."""
    found: dict[str, dict[str, Any]] = {}
    with cache.lock(cache.root() / "run" / "lock"):
        for state in _states():
            record = state / "record.json"
            if not _dead(state):
                found[state.name] = json.loads(record.read_text()) if record.exists() else {}
    return found


def sweep() -> list[str]:
    """Remove what clusters left whose guardian was killed, and old logs; returns their names."""
    swept: list[str] = []
    with cache.lock(cache.root() / "run" / "lock"):
        for state in _states():
            if _dead(state):
                guardian.clean(state.name, state)
                swept.append(state.name)
        logs = sorted(cache.folder("logs").iterdir(), key=lambda path: path.stat().st_mtime)
        alive = {state.name for state in _states()}
        for log in [log for log in logs if log.name not in alive][:-LOGS]:
            shutil.rmtree(log, ignore_errors=True)
    return swept


def _states() -> list[Path]:
    return sorted(path for path in cache.folder("run").iterdir() if path.is_dir())


def _dead(state: Path) -> bool:
    """Whether no guardian holds the folder's lock."""
    try:
        with (state / "lock").open() as lock:
            return guardian.hold(lock.fileno())
    except FileNotFoundError:
        return True
