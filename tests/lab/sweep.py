"""Lists running clusters, and finds and removes what dead harnesses left."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from lab import supervisor
from tools import cache

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


def sweep() -> None:
    """Remove what clusters left whose supervisor was killed, and old logs."""
    with cache.lock(cache.root() / "run" / "lock"):
        for state in _states():
            if _dead(state):
                supervisor.clean(state.name, state)
        logs = sorted(cache.folder("logs").iterdir(), key=lambda path: path.stat().st_mtime)
        alive = {state.name for state in _states()}
        for log in [log for log in logs if log.name not in alive][:-LOGS]:
            shutil.rmtree(log, ignore_errors=True)


def _states() -> list[Path]:
    return sorted(path for path in cache.folder("run").iterdir() if path.is_dir())


def _dead(state: Path) -> bool:
    """Whether no supervisor holds the folder's lock."""
    try:
        with (state / "lock").open() as lock:
            return supervisor.hold(lock.fileno())
    except FileNotFoundError:
        return True


def left_by(name: str) -> list[str]:
    """Every process, mount, interface, cgroup and folder of the cluster `name`, logs apart."""
    found = [f"process {pid}" for pid in processes(name)]
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mountpoint, kind, *_ = line.split()
        if name in mountpoint:
            found.append(f"mount {mountpoint}")
        if kind in {"cgroup", "cgroup2"} and Path(mountpoint, name).exists():
            found.append(f"cgroup {mountpoint}/{name}")
    places = (Path("/sys/class/net", name), cache.root() / "run" / name)
    return found + [str(place) for place in places if place.exists()]


def processes(name: str) -> list[int]:
    """The pids of the cluster's processes, of those that this user may see."""
    state = str(cache.folder("run") / name)
    return [pid for pid, mark in supervisor.marks().items() if mark == state]
