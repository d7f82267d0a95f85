"""The event loop of one unit: its clock is the world's, and it runs only when the world lets it."""

from __future__ import annotations

import asyncio
import heapq
import sys
from asyncio import base_events, events
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any


class _NoSelector:
    """There are no files: what arrives is put into futures by the world."""

    def select(self, _timeout: float | None = None) -> Sequence[Any]:
        return ()

    def close(self) -> None:
        pass


SPINS = 20_000
"""Rounds of a loop at one moment: a process that has so many to do would use a whole core."""


class SpinningError(RuntimeError):
    """A process does one thing after another, and waits for nothing."""


class VirtualLoop(base_events.BaseEventLoop):
    """A loop whose ``time`` is what ``clock`` returns; `turn` runs what is due.

    A unit that is frozen is a loop that is not turned: its clock goes on, and its timers are late.
    """

    # Private to asyncio, and the same in all its versions.
    _ready: Any
    _scheduled: Any
    _run_once: Callable[[], None]
    _asyncgen_firstiter_hook: Any
    _asyncgen_finalizer_hook: Any

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._ending = False
        self._selector = _NoSelector()
        # A timer that is due now runs; an earlier one would find that nothing is due yet, for ever.
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._clock()

    def _process_events(self, event_list: object) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    @property
    def next(self) -> float | None:
        """When there is something to do, by `time`; None: only when something arrives."""
        if self._ready:
            return self._clock()
        timers: list[Any] = self._scheduled
        while timers and timers[0]._cancelled:
            timer = heapq.heappop(timers)
            timer._scheduled = False
            self._timer_cancelled_count -= 1
        return timers[0]._when if timers else None

    @property
    def busy(self) -> bool:
        """Whether something can be done at this moment."""
        then = self.next
        return then is not None and then <= self._clock()

    def turn(self) -> None:
        """Run everything that can be done at this moment; `SpinningError` if there is no end."""
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(self._asyncgen_firstiter_hook, self._asyncgen_finalizer_hook)
        events._set_running_loop(self)
        try:
            for _ in range(SPINS):
                if not self.busy:
                    return
                self._run_once()
            raise SpinningError(f"{SPINS} rounds at {self.time():.2f} s")
        finally:
            events._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """Start a task; RuntimeError while the process ends: a task may start its successor."""
        if self._ending:
            coro.close()
            raise RuntimeError("the process has ended")
        return super().create_task(coro, **options)

    def end(self) -> None:
        """Cancel every task until none is left, and close. Errors no longer matter."""
        self._ending = True
        self.set_exception_handler(lambda _loop, _context: None)
        for _ in range(20):
            tasks = asyncio.all_tasks(self)
            if not tasks:
                break
            for task in sorted(tasks, key=lambda task: task.get_name()):
                task.cancel()
            with suppress(SpinningError):
                self.turn()
        self.close()
