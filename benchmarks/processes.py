"""CPU time, memory and descriptors of processes, as Linux reports them."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

_SCHED = 2
"""CPUCLOCK_SCHED of linux/posix-timers.h: nanoseconds of all threads, also those that ended."""


class Usage(msgspec.Struct, frozen=True, rename="kebab"):
    """A process at a moment.

    Attributes:
        cpu: seconds on a core since its start.
        rss: resident bytes (VmRSS).
        peak: most resident bytes so far (VmHWM).
        descriptors: open files and sockets.
        threads: how many.
    """

    cpu: float
    rss: int
    peak: int
    descriptors: int
    threads: int


def usage(pid: int) -> Usage:
    """What the process uses now. Raises FileNotFoundError when it has ended."""
    place = Path("/proc") / str(pid)
    status = (place / "status").read_text()

    def field(name: str) -> int:
        found = re.search(rf"^{name}:\s+(\d+)", status, re.MULTILINE)
        return int(found[1]) if found else 0

    return Usage(
        cpu=cpu(pid),
        rss=field("VmRSS") * 1024,
        peak=field("VmHWM") * 1024,
        descriptors=len(list((place / "fd").iterdir())),
        threads=field("Threads"),
    )


def cpu(pid: int) -> float:
    """Seconds of CPU the process has used, by its CPU clock (clock_getcpuclockid)."""
    return time.clock_gettime((~pid << 3) | _SCHED)


class Meter:
    """CPU by process over a stretch of time, from its making to each `read`."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        """Start measuring the processes of these names; one that starts later counts whole."""
        self._pids = dict(pids)
        self._start = {name: cpu(pid) for name, pid in self._pids.items()}
        self._began = time.monotonic()

    def add(self, name: str, pid: int) -> None:
        """Count a process that was started after the meter, from its own beginning."""
        self._pids[name], self._start[name] = pid, 0.0

    def read(self) -> dict[str, float]:
        """Seconds of CPU by process since the start, and ``elapsed`` seconds of the clock."""
        spent = {name: cpu(pid) - self._start[name] for name, pid in self._pids.items()}
        return {"elapsed": time.monotonic() - self._began, **spent}
