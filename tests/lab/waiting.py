"""`until` polls for a state that nothing announces; `ending` reports errors of a teardown."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from tools import cache

T = TypeVar("T")
# Seconds. Nothing that is awaited takes a tenth of that on two busy cores.
PATIENCE = 300.0


def until(
    check: Callable[[], T | None],
    *,
    what: str,
    timeout: float = PATIENCE,
    ignoring: tuple[type[Exception], ...] = (),
    every: float = 0.05,
) -> T:
    """Call `check` every so often until it returns something true; returns that.

    `ignoring` are exceptions of it that mean "not yet" as well. Raises TimeoutError, which says
    `what` is awaited and the last value or exception.
    """
    begin = time.monotonic()
    while True:
        try:
            last: object = check()
            if last:
                return last  # pyright: ignore[reportReturnType] - true, so not None
        except ignoring as error:
            last = error
        waited = time.monotonic() - begin
        if waited > timeout:
            raise TimeoutError(f"waited {timeout:g} s for {what}; last seen: {last!r}")
        # A sleep, because nothing announces what is awaited here. Looking costs those that are
        # looked at, too: what takes long is looked at less often, and seen late by a twentieth of
        # the time that it took, half a second at most; never more often than asked for.
        time.sleep(max(every, min(waited / 20, 0.5)))


@contextlib.contextmanager
def ending(what: str) -> Iterator[None]:
    """Run the end of a part of the lab; an error is said on stderr, and fails no test."""
    try:
        yield
    except Exception as error:  # The run is over: its end must not decide about it.
        cache.say(f"{what} did not end well: {type(error).__name__}: {error}")
