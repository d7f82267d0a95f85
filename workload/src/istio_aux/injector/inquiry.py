"""Keep asking one injector: at each change, now and then, and often while it is not live.

Only when to ask, and how long an answer counts, may live here. While it is live a connection to it
stays open: that it ends is the first that is seen of an istiod that ends, long before an
EndpointSlice says so.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from istio_aux.core.injection_probe import refusal
from istio_aux.core.liveness import Probe
from istio_aux.core.webhooks import Address
from istio_aux.injector.exchange import Connection
from istio_aux.injector.probe import Found
from istio_aux.telemetry import Telemetry

_log = logging.getLogger(__name__)


class Rhythm(msgspec.Struct, frozen=True):
    """Seconds between two questions."""

    live: float = 30.0
    """More or less a tenth: the units of an application must not ask in step."""
    other: float = 1.0
    """While it is not live; never sooner, but for a change of what is known."""


RHYTHM = Rhythm()

Ask = Callable[[Sequence[Address]], Coroutine[Any, Any, Found]]


class Inquiry:
    """The questions to one injector. A class because the last answer stays until it counts no more.

    Attributes:
        probe: the last answer, None while there is none that counts.
        settled: set while there is nothing that has still to be asked at once.
    """

    def __init__(
        self,
        name: str,
        ask: Ask,
        told: Callable[[], None],
        telemetry: Telemetry,
        rhythm: Rhythm,
    ) -> None:
        """Prepare; nothing is asked before `run` and `look`.

        Args:
            name: of the injector, for the log.
            ask: asks once, at the addresses given; may raise.
            told: is called after each answer.
            telemetry: counts errors that nobody foresaw.
            rhythm: how often.
        """
        self.probe: Probe | None = None
        self.settled = asyncio.Event()
        self._name, self._ask, self._told = name, ask, told
        self._telemetry, self._rhythm = telemetry, rhythm
        self._addresses: tuple[Address, ...] | None = None
        self._connection: Connection | None = None
        self._asking: asyncio.Task[Found] | None = None
        self._failed = False  # What fails by a defect fails again: it is not tried all the time.
        self._woken = asyncio.Event()
        self.settled.set()

    def look(self, addresses: tuple[Address, ...] | None) -> None:
        """Take what is known now: where its endpoints are, None if it cannot be live anyway.

        When that changes, the last answer counts no more.
        """
        if addresses == self._addresses:
            return
        self._addresses = addresses
        self._forget()
        if self._asking:
            self._asking.cancel()
        self._woken.set()
        self.settled.clear()

    async def run(self) -> None:
        """Ask until cancelled. Whatever asking raises makes the injector one that is not live."""
        try:
            while True:
                self._woken.clear()
                if self._addresses is not None and not await self._once(self._addresses):
                    continue  # What it was asked for has changed meanwhile.
                self.settled.set()
                self._told()
                await self._pause()
        finally:
            self._forget()

    async def _once(self, addresses: Sequence[Address]) -> bool:
        """Ask, and keep the answer if nobody has something else to ask; returns whether so."""
        asking = self._asking = asyncio.ensure_future(self._ask(addresses))
        try:
            await asyncio.wait([asking])
        except asyncio.CancelledError:
            asking.cancel()
            asking.add_done_callback(_discard)
            raise
        finally:
            self._asking = None
        if asking.cancelled() or self._addresses != addresses:
            _discard(asking)
            return False
        error = asking.exception()
        self._failed = error is not None
        if error is None:
            found = asking.result()
        else:
            # A defect of ours must not end the watching, nor pass for a live injector.
            self._telemetry.internal_errors.inc()
            extra = {"event": "internal-error"}
            _log.error("%s: %r", self._name, error, exc_info=error, extra=extra)
            found = Found(refusal(f"internal error: {error!r}", asked=False))
        self._forget()
        self.probe, self._connection = found
        return True

    async def _pause(self) -> None:
        """Wait until the next question is due."""
        reasons: list[asyncio.Task[Any]] = [asyncio.ensure_future(self._woken.wait())]
        patience = None
        if self._addresses is not None:
            patience = self._rhythm.other
            if self._failed or (self.probe and self.probe.injected):
                jitter = random.uniform(0.9, 1.1)  # noqa: S311  (spreads load, guards nothing)
                patience = self._rhythm.live * jitter
            if self._connection:
                reasons.append(asyncio.ensure_future(self._ended(self._connection)))
        try:
            await asyncio.wait(reasons, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for reason in reasons:
                reason.cancel()

    async def _ended(self, connection: Connection) -> None:
        """Return when the connection has ended, at once or after the usual time.

        A server that ends every connection after its answer must not be asked without a pause.
        """
        begun = asyncio.get_running_loop().time()
        await connection.ended()
        lasted = asyncio.get_running_loop().time() - begun
        await asyncio.sleep(0 if lasted > self._rhythm.other else self._rhythm.other)

    def _forget(self) -> None:
        if self._connection:
            self._connection.close()
        self.probe = self._connection = None


def _discard(asking: asyncio.Task[Found]) -> None:
    """Let nothing stay of an answer that nobody wants any more."""
    if not asking.cancelled() and asking.exception() is None:
        connection = asking.result().connection
        if connection:
            connection.close()
