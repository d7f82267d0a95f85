"""Wake the charm by a custom notice of Pebble when the status that it shows changes.

Level, not edge: the digest of the status is compared with the last one that Pebble took, so no
change is lost while Pebble is away, and one that is reverted meanwhile wakes nobody.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp

from istio_aux.kube.errors import Backoff

_log = logging.getLogger(__name__)

KEY = "istio-aux.io/changed"
"""Key of the notice. Juju turns each repetition that it sees into an event."""

LOOK = 0.3
"""Seconds between digests."""

SHARE = 0.01
"""Share of one CPU that the digests may cost: after a slow one the next comes later."""

BURST = 5
"""Notices that may follow one another at once."""

RATE = 0.5
"""Notices a second after that: a charm takes a second or two for an event, and must keep up while
hundreds of pods are restarted."""

DEADLINE = 5.0
"""Deadline in seconds for Pebble's answer."""

RETRY = (0.2, 5.0)
"""Seconds before the second attempt, and the most before any later one."""


class Notices:
    """Sends notices to one Pebble."""

    def __init__(
        self, socket: Path, digest: Callable[[], bytes], *, rate: float = RATE, look: float = LOOK
    ) -> None:
        """Prepare to notify the Pebble on ``socket`` whenever ``digest()`` changes."""
        self._socket, self._digest = socket, digest
        self._rate, self._look = rate, look
        self._trouble = ""

    async def run(self) -> None:
        """Run until cancelled; the first notice goes out at once."""
        connector = aiohttp.UnixConnector(str(self._socket), force_close=True)
        timeout = aiohttp.ClientTimeout(total=DEADLINE)
        backoff = Backoff(*RETRY)
        told, tokens, filled = None, float(BURST), time.monotonic()
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            while True:
                began = time.monotonic()
                tokens, filled = min(BURST, tokens + (began - filled) * self._rate), began
                digest = self._digest()
                pause = max(self._look, (time.monotonic() - began) / SHARE)
                if digest == told:
                    pass
                elif tokens < 1:
                    pause = max(pause, (1 - tokens) / self._rate)
                elif await self._notify(session):
                    told, tokens = digest, tokens - 1
                    backoff.reset()
                else:
                    pause = max(pause, backoff.next())
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
