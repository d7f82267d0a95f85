"""The clock of a process in production; simulations pass another one."""

from __future__ import annotations

import asyncio
import time

from istio_aux.model.moment import Moment


def now() -> float:
    """Return the seconds of the running event loop's clock, which timeouts use, too."""
    return asyncio.get_running_loop().time()


def system_clock() -> Moment:
    """Return the present; needs a running event loop."""
    return Moment(now(), time.time())
