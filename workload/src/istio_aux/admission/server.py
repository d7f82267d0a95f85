"""Serve the admission webhook: all connections, and what is counted and logged about them.

Only what belongs to all connections may live here; what is in a review is the core's affair.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from http import HTTPStatus

from istio_aux import telemetry
from istio_aux.admission.connection import Connection
from istio_aux.admission.heads import INJECT
from istio_aux.admission.http1 import Refusal
from istio_aux.admission.limits import DEFAULTS, Budget, Limits
from istio_aux.core import review
from istio_aux.core.policy import Start
from istio_aux.serving import Crowd, Door, room
from istio_aux.telemetry import Closed, Telemetry

_log = logging.getLogger(__name__)

TOGETHER = 16
"""Answers that wait for each other at most. To wake a client that sleeps is half of what sending
costs; the answers that follow at once find it awake."""


class Webhook:
    """The webhook. A class because its connections share limits, counters and their end.

    Attributes:
        limits: what a client may cost.
        budget: memory for bodies.
        draining: each answer asks the client to go elsewhere with the next request.
    """

    def __init__(
        self, metrics: Telemetry, how: Callable[[], Start], *, limits: Limits = DEFAULTS
    ) -> None:
        """Answer reviews; ``how`` tells, at any moment, how pods are to be started."""
        self.limits, self.budget = limits, Budget(limits.bodies)
        self.draining = False
        self._telemetry, self._how = metrics, how
        # A lookup by label costs as much as the rest of the counting.
        self._reviews = metrics.reviews_by_outcome
        self._connections: set[Connection] = set()
        self._established = Crowd[Connection]()
        self._door: Door | None = None
        self._room = 0
        self._unsent: list[Connection] = []
        self._turn_ends: asyncio.Handle | None = None

    async def listen(
        self, host: str, port: int, context: Callable[[], ssl.SSLContext]
    ) -> tuple[str, int]:
        """Serve at ``host`` (empty: every address) and ``port`` (0: any); returns where that is.

        ``context`` tells, at any moment, what a handshake that begins is to be made with.

        Raises:
            OSError: the port cannot be had.
        """
        # Watches, execs and files need descriptors, too, and so does the status port.
        self._room = room(self.limits.connections, share=2)
        door = Door(
            lambda guest: Connection(self, context(), guest),
            room(self.limits.connections // 2, share=4),
            self.limits.handshake,
            lambda why: self._telemetry.closed_connections.labels(why).inc(),
        )
        where = await door.listen(host, port)
        self._door = door
        self._sweep()
        return where

    def drain(self) -> None:
        """Ask every client that gets an answer to come again elsewhere; go on serving all.

        New connections, too: an API server may not have heard yet that this endpoint ends.
        """
        self.draining = True

    async def close(self, patience: float) -> None:
        """Take no more connections, dismiss the idle ones, and end the others when they are done.

        Args:
            patience: seconds after which all are ended.
        """
        if self._door is None:
            return
        self.draining = True
        self._door.close()
        for connection in tuple(self._connections):
            if connection.idle:
                connection.dismiss(Closed.DRAIN)
        await self._door.empty(patience)
        self._timer.cancel()

    def admit(self, connection: Connection) -> None:
        """Take a connection whose handshake begins."""
        self._connections.add(connection)
        self._telemetry.connections.set(len(self._connections))

    def welcome(self, connection: Connection) -> None:
        """Take one whose handshake is over; without room another one makes room.

        It is one of the address that has the most: the one that has been idle longest, or, if none
        of them is idle, the one whose request has been arriving longest.
        """
        self._established.add(connection)
        if len(self._established) > self._room:
            others = [one for one in self._established.most() if one is not connection]
            oldest = min(others, key=lambda one: (not one.idle, one.deadline), default=connection)
            oldest.dismiss(Closed.LIMIT)
            oldest.abort(Closed.LIMIT)
            # asyncio tells of the end one turn later; until then others may want to come.
            self._let_go(oldest)

    def forget(self, connection: Connection, why: Closed) -> None:
        """Let a closed connection go."""
        self._let_go(connection)
        self._telemetry.closed_connections.labels(why).inc()

    def _let_go(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._established.discard(connection)
        self._telemetry.connections.set(len(self._connections))

    def hand_out(self, connection: Connection, *, at_once: bool) -> None:
        """Have a connection send its answers, with others of this turn of the loop or at once."""
        self._unsent.append(connection)
        if at_once or len(self._unsent) >= TOGETHER:
            self._send()
        elif not self._turn_ends:
            self._turn_ends = asyncio.get_running_loop().call_soon(self._end_turn)

    def answer(self, path: bytes, body: bytes) -> tuple[HTTPStatus, bytes]:
        """Answer one AdmissionReview for what its path says, count it and log it in one line."""
        began = time.perf_counter()
        try:
            answer = self._review(path, body)
        except review.Malformed as error:
            refusal = Refusal(HTTPStatus.BAD_REQUEST, "malformed", str(error))
            self.refuse(refusal)
            return refusal.status, f"{refusal}\n".encode()
        self._telemetry.review_seconds.observe(time.perf_counter() - began)
        self._reviews[answer.outcome].inc()
        facts: dict[str, object] = {
            "uid": answer.uid[:36], "outcome": answer.outcome, "reason": answer.reason,
        }  # fmt: skip
        if answer.warnings:
            facts["warnings"] = answer.warnings
        telemetry.often(_log, "review", answer.pod, facts)
        return HTTPStatus.OK, answer.body

    def refuse(self, refusal: Refusal) -> None:
        """Count and log a request that is not answered with a review."""
        self._reviews[refusal.outcome].inc()
        facts = {"outcome": refusal.outcome, "status": refusal.status.value}
        _log.warning("%s", refusal, extra={"event": "review", **facts})

    def _end_turn(self) -> None:
        self._turn_ends = None
        self._send()

    def _send(self) -> None:
        """Log lines first: what a client was told is in the log by then."""
        telemetry.flush()
        unsent, self._unsent = self._unsent, []
        for connection in unsent:
            connection.send()

    def _review(self, path: bytes, body: bytes) -> review.Answer:
        try:
            if path == INJECT:
                return review.answer_inject(body, self._how())
            return review.answer(body, self._how())
        except review.Malformed:
            raise
        except Exception:  # The only way on that refuses no pod for a fault of ours.
            _log.exception("internal error", extra={"event": "review"})
            self._telemetry.internal_errors.inc()
            return review.leave(body, review.Malformed("internal error"))

    def _sweep(self) -> None:
        """End what has passed its deadline, now and for ever again."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self.limits.sweep, self._sweep)
        now = time.monotonic()
        for connection in [one for one in self._connections if one.deadline <= now]:
            connection.expire()
