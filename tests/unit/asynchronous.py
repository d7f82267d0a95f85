"""For tests that are coroutines: virtual time, conditions to wait for, tasks and open files."""

from __future__ import annotations

import asyncio
import gc
import selectors
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from istio_aux.model.moment import Moment

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
