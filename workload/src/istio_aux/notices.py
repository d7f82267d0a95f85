"""Tell Pebble, by a custom notice, that what the charm shows has changed: Juju then runs the charm.

Only the telling may live here; what counts as a change is asked for as a digest. Only the level
counts: the digest is compared with the one that was told last, so that no change is lost, whatever
Pebble does meanwhile, and one that is taken back before it was told wakes nobody.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp

from istio_aux.kube.backoff import Backoff

_log = logging.getLogger(__name__)

KEY = "istio-aux.io/changed"
"""Of the notice. Pebble counts its repetitions, and Juju makes an event of each that it sees."""

LOOK = 0.3
"""Seconds between looks at the digest."""

SHARE = 0.01
"""Of one processor, that looking may cost: where a look takes long, the next comes later."""

BURST = 5
"""Notices that may go out one after the other."""

RATE = 0.5
"""Notices a second after that: a charm takes a second or two for an event, and must keep up while
hundreds of pods are restarted."""

PATIENCE = 5.0
"""Seconds that Pebble has to answer."""

RETRY = (0.2, 5.0)
"""Seconds before the second attempt, and at most before any other."""


class Notices:
    """The one who tells. A class because it remembers what was told."""

    def __init__(
        self,
        socket: Path,
        digest: Callable[[], bytes],
        *,
        rate: float = RATE,
        look: float = LOOK,
    ) -> None:
        """Prepare to tell the Pebble that listens on ``socket`` whenever ``digest()`` differs."""
        self._socket, self._digest = socket, digest
        self._rate, self._look = rate, look
        self._trouble = ""

    async def run(self) -> None:
        """Tell until cancelled, beginning at once: what was told before, nobody here knows."""
        connector = aiohttp.UnixConnector(str(self._socket), force_close=True)
        timeout = aiohttp.ClientTimeout(total=PATIENCE)
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
        """Add the notice (pebble internals/daemon/api_notices.go); returns whether that is done."""
        notice = {"action": "add", "type": "custom", "key": KEY}
        try:
            async with session.post("http://pebble/v1/notices", json=notice) as answer:
                trouble = "" if answer.ok else f"{answer.status} {(await answer.text())[:200]}"
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            trouble = str(error) or f"no answer in {PATIENCE:g} s"
        # One line for each new trouble: Pebble may be away for long.
        if trouble and trouble != self._trouble:
            _log.warning(
                "%s: notice not added: %s", self._socket, trouble, extra={"event": "notice"}
            )
        self._trouble = trouble
        return not trouble
