"""Wakes the charm by a custom notice of Pebble when the status that it shows changes.

Level, not edge: the status is compared with the last one that Pebble took. So no change is lost
while Pebble is away, and a change that is reverted meanwhile wakes nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import aiohttp

from istio_aux.kube.errors import Backoff

_log = logging.getLogger(__name__)

KEY = "istio-aux.io/changed"  # Juju turns each repetition of the notice that it sees into an event.
LOOK = 0.5  # Seconds between two looks at the status.
GAP = 2.0  # Seconds between two notices: a charm takes a second or two for an event.
DEADLINE = 5.0  # Seconds for Pebble's answer.
RETRY = (0.2, 5.0)  # Seconds before the second attempt, and the most before any later one.


class Notices:
    """Sends notices to one Pebble."""

    def __init__(
        self, socket: Path, shown: Callable[[], object], *, look: float = LOOK, gap: float = GAP
    ) -> None:
        """Prepare to notify the Pebble on ``socket`` whenever ``shown()`` changes."""
        self._socket, self._shown = socket, shown
        self._look, self._gap = look, gap
        self._trouble = ""

    async def run(self) -> None:
        """Run until cancelled; the first notice is sent at once."""
        connector = aiohttp.UnixConnector(str(self._socket), force_close=True)
        timeout = aiohttp.ClientTimeout(total=DEADLINE)
        backoff, told = Backoff(*RETRY), None
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            while True:
                shown, pause = self._shown(), self._look
                if shown != told:
                    if await self._notify(session):
                        told, pause = shown, self._gap
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
