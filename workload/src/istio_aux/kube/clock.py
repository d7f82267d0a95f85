"""The clock of a process in production, and how long it waits; tests pass others."""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

from istio_aux.model.moment import Moment


class Timing(NamedTuple):
    """How long background work waits, in seconds."""

    # Read timeout of a watch. The API server sends bookmarks about every 60 s, a busy one later. A
    # connection whose other end is gone fails earlier: see `client.KEEPALIVE`.
    silence: float = 90.0
    stream: float = 300.0  # Give or take a tenth; then the server is asked to end a stream.
    relist: float = 600.0  # As above, between full lists: they repair what a watch has missed.
    event: float = 0.2  # Between two Events after a burst.
    restart: tuple[float, float] = (1.0, 30.0)  # Until a task that ended starts again: first, most.


TIMING = Timing()


def now() -> float:
    """Return the seconds of the running event loop's clock, which timeouts use, too."""
    return asyncio.get_running_loop().time()


def system_clock() -> Moment:
    """Return the present; needs a running event loop."""
    return Moment(now(), time.time())
