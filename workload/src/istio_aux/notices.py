"""Wakes the charm by a custom notice of Pebble when the status that it shows changes.

Level, not edge: the status is compared with the last one that Pebble took. So no change is lost
while Pebble is away, and a change that is reverted meanwhile wakes nobody.

Each notice is a hook of a second or two, and a unit whose hooks never end runs no action and never
settles. So there are at most `MOST` in a minute, whatever happens in the cluster.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, Self

import aiohttp
import msgspec

from istio_aux.kube.errors import Backoff

_log = logging.getLogger(__name__)

KEY = "istio-aux.io/changed"  # Juju turns each repetition of the notice that it sees into an event.
LOOK = 0.5  # Seconds between two looks at the status.
DEADLINE = 5.0  # Seconds for Pebble's answer.
RETRY = (0.2, 5.0)  # Seconds before the second attempt, and the most before any later one.


class Comparable(Protocol):
    """What is shown; equal values show the same."""

    def is_worse_than(self, before: Self, /) -> bool:
        """Whether something that was well ``before`` is not now."""
        ...


class Pace(msgspec.Struct, frozen=True):
    """How often notices may come; times in seconds.

    Attributes:
        gap: between two notices. It doubles with each notice of the last minute, unless the status
            has become worse.
        most: notices in a minute.
        minute: how long that is; tests have less time.
    """

    gap: float = 2.0
    most: int = 6
    minute: float = 60.0

    def pause(self, sent: deque[float], now: float, *, worse: bool) -> float:
        """Return for how long the next notice has to wait after those ``sent`` at these times."""
        recent = [time for time in sent if now - time < self.minute]
        if not recent:
            return 0.0
        gap = self.gap if worse else self.gap * 2 ** (len(recent) - 1)
        allowed = recent[-1] + gap
        if len(recent) >= self.most:
            allowed = max(allowed, recent[-self.most] + self.minute)
        return max(0.0, allowed - now)


class Notices:
    """Sends notices to one Pebble."""

    def __init__(
        self,
        socket: Path,
        shown: Callable[[], Comparable],
        *,
        look: float = LOOK,
        pace: Pace | None = None,
    ) -> None:
        """Prepare to notify the Pebble on ``socket`` whenever ``shown()`` changes."""
        self._socket, self._shown = socket, shown
        self._look, self._pace = look, pace or Pace()
        self._trouble = ""

    async def run(self) -> None:
        """Run until cancelled; the first notice is sent at once."""
        connector = aiohttp.UnixConnector(str(self._socket), force_close=True)
        timeout = aiohttp.ClientTimeout(total=DEADLINE)
        backoff, notified = Backoff(*RETRY), None
        sent, clock = deque[float](maxlen=self._pace.most), asyncio.get_running_loop().time
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            while True:
                shown, pause = self._shown(), self._look
                if shown != notified:
                    worse = notified is not None and shown.is_worse_than(notified)
                    if wait := self._pace.pause(sent, clock(), worse=worse):
                        # The status may change back, or become worse, meanwhile.
                        pause = min(wait, self._look)
                    elif await self._notify(session):
                        notified = shown
                        sent.append(clock())
                        backoff.reset()
                    else:
                        pause = backoff.next()
                await asyncio.sleep(pause)

    async def _notify(self, session: aiohttp.ClientSession) -> bool:
        """Add the notice (pebble internals/daemon/api_notices.go); return whether it was added."""
        notice = {"action": "add", "type": "custom", "key": KEY}
        try:
            async with session.post("http://pebble/v1/notices", json=notice) as answer:
                trouble = "" if answer.ok else f"{answer.status} {(await answer.text())[:200]}"
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            trouble = str(error) or f"no answer in {DEADLINE:g} s"
        # Log only changes: Pebble may be away for long.
        if trouble and trouble != self._trouble:
            _log.warning(
                "%s: notice not added: %s", self._socket, trouble, extra={"event": "notice"}
            )
        self._trouble = trouble
        return not trouble
