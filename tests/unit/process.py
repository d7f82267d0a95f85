"""A process under test: time that jumps, conditions, tasks and leadership; its log and its work."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import selectors
import ssl
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO, TypeVar

from istio_aux.kube.access import Access
from istio_aux.kube.lease import Leadership
from istio_aux.model.moment import Moment
from istio_aux.settings import DEFAULTS
from istio_aux.telemetry import Telemetry, log_to
from istio_aux.wiring import Wiring
from msgspec import structs

# For tests that are coroutines: virtual time, conditions to wait for, tasks and open files.

T = TypeVar("T")


class _Jumping(selectors.SelectSelector):
    """Waits for nothing: the time of the loop jumps."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "everything waits for something that never comes"
        self.now += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose hours pass in no time; its coroutines may only wait for each other."""

    def __init__(self) -> None:
        self._selecting = _Jumping()
        super().__init__(self._selecting)

    def time(self) -> float:
        return self._selecting.now

    def pass_by(self, seconds: float) -> None:
        """So much time passes while nothing else happens."""
        self._selecting.now += seconds


class Late:
    """The clock of a process that is late by some ``seconds``, or whose clock is not right."""

    def __init__(self, *, wall: float = 0.0) -> None:
        self.seconds, self._wall = 0.0, wall

    def __call__(self) -> Moment:
        return Moment(asyncio.get_running_loop().time() + self.seconds, time.time() + self._wall)


async def until(check: Callable[[], T], what: str, *, within: float = 60.0) -> T:
    """Wait until ``check`` returns something true, and return that. Raises AssertionError."""
    deadline = asyncio.get_running_loop().time() + within
    while not (value := check()):
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"not within {within:g} s: {what}; last: {value!r}")
        await asyncio.sleep(0.005)
    return value


@asynccontextmanager
async def background(work: Coroutine[Any, Any, None]) -> AsyncGenerator[asyncio.Task[None]]:
    """Run ``work`` beside the body; it is cancelled in the end, and its error is not hidden."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def descriptors() -> int:
    """How many file descriptors this process has, once what is unreachable is closed."""
    gc.collect()
    return len([*Path("/proc/self/fd").iterdir()])


# Leadership of which a test says what it is, instead of a Lease.


class Led(Leadership):
    """A controller begins to lead if it is ``leading``, and then when a test calls its `lead`.

    ``leads`` says whether it may act at this moment, and ``store`` stores what the next one needs.
    """

    def __init__(
        self,
        leading: bool = False,
        leads: Callable[[], bool] = lambda: True,
        store: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(held=leading)
        self._leads, self._store = leads, store

    def leads(self) -> bool:
        return self._leads()

    async def save(self) -> None:
        if self._store:
            await self._store()


# What a process tells: its log, as `serve` has it, for the time of a block, and its metrics.

S = TypeVar("S", bound=BinaryIO)


@contextmanager
def logging_to(stream: S) -> Iterator[S]:
    """All goes to ``stream``, which is closed afterwards, and then where it went before."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    log_to(stream, "info")
    try:
        with stream:
            yield stream
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.captureWarnings(capture=False)


def counted(told: Telemetry, series: str) -> float:
    """The sum of all series whose text begins like that; there is at least one."""
    lines = told.render().decode().splitlines()
    found = [float(line.split()[-1]) for line in lines if line.startswith(series)]
    assert found, series
    return sum(found)


def metrics() -> str:
    """All metrics of a new process, which does not lead yet."""
    access = Access("https://127.0.0.1:1", ssl.create_default_context(), lambda: "")
    elected = structs.replace(DEFAULTS, lease=("istio-aux", "istio-aux"))
    return Wiring(elected, access).telemetry.render().decode()


# How much work something is: the lines that run, which are the same on each machine.


def steps(work: Callable[[], object], file: str = "") -> int:
    """Do the work; returns how many lines of Python run, in all files or in one."""
    lines, before = itertools.count(), sys.gettrace()

    def trace(frame: FrameType, _event: str, _argument: object) -> Any:
        if file not in {"", frame.f_code.co_filename}:
            return None
        next(lines)
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return next(lines)
