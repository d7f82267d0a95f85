"""One line a step, with the seconds since the start."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from rich.console import Console


class Steps:
    """Prints steps as they are done; several threads may."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._start = clock()
        self._lock = threading.Lock()

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._start

    def done(self, what: str) -> None:
        """Say that something is done."""
        with self._lock:
            self._console.print(f"{self.elapsed:7.1f} s  {what}", markup=False, soft_wrap=True)
