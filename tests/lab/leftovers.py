"""What a cluster leaves on the machine after its end; tests assert that it is nothing."""

from __future__ import annotations

import contextlib
from pathlib import Path

from lab import cache, guardian


def of(name: str) -> list[str]:
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
    mark = f"{guardian.MARK}={name}".encode()
    pids: list[int] = []
    # Not `*/environ`: `glob` looks whether each is there, and raises for a process that ends then.
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (process / "environ").read_bytes().split(b"\0"):
                pids.append(int(process.name))
    return pids
