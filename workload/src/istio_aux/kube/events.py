"""Sends Kubernetes Events (events.k8s.io/v1).

One task sends them at a bounded rate, and namespaces take turns. They are dropped when there are
too many, or when the API server refuses them. Nothing waits for an Event.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from bisect import insort
from contextlib import suppress
from typing import Literal

import msgspec

from istio_aux.kube import actions
from istio_aux.kube.client import Client
from istio_aux.kube.clock import system_clock
from istio_aux.kube.errors import ApiError, KubeError, retry_after
from istio_aux.kube.objects import Key
from istio_aux.model.findings import Code, Remark
from istio_aux.model.moment import Clock
from istio_aux.model.names import EVENT_CONTROLLER, EventAction, EventReason
from istio_aux.model.text import printable

_log = logging.getLogger(__name__)

BURST = 50  # Events that may be sent at once; client-go's limiter allows 25 for one object.
RATE = 5.0  # Events per second after that.
WAITING = 1000  # Events in the queue; one more, and the one is dropped that would be sent last.
# What an Event costs its namespace: while one waits that costs 8, eight that cost 1 go before.
WARNING = 1
NORMAL = 8
MASS = 64
NOTE = 1024  # Bytes of the longest ``note`` (validation of events.k8s.io/v1).


class Events:
    """A queue of Events, and the task that sends them."""

    def __init__(
        self,
        client: Client,
        instance: str,
        *,
        source: str = "",
        rate: float = RATE,
        clock: Clock = system_clock,
    ) -> None:
        """Name this process; the units of one application share the name ``source``."""
        self._client = client
        self._instance = instance[:128]
        self._rate = rate
        self._source = source
        self._now = clock
        # Sorted by turn: what the Events of this namespace and cost have cost when it is sent
        # (start-time fair queueing). The rest: a number, namespace and cost, and the Event.
        self._queue: list[tuple[int, int, tuple[str, int], bytes]] = []
        self._turn, self._last = 0, dict[tuple[str, int], int]()  # Now; of the last that waited.
        self._unsent = asyncio.Queue[None]()  # One for each Event.
        self._emitted = 0
        self._refused = ""

    def emit(
        self,
        about: Key,
        kind: Literal["Normal", "Warning"],
        *,
        reason: EventReason,
        action: EventAction,
        note: str,
        code: Code | None = None,
        mass: bool = False,
        once: bool = False,
    ) -> None:
        """Queue an Event; ``note`` is a text for people, after the ``code`` of the finding.

        Of a namespace Warnings are sent first, and ``mass`` Events, which every pod may have, last:
        a thousand quits after a start must not delay the warning about one lost pod. One with
        ``once`` is not sent again for this object, reason and source while the API server has it
        (--event-ttl).
        """
        flow = about.namespace, MASS if mass else NORMAL if kind == "Normal" else WARNING
        turn = max(self._turn, self._last.get(flow, 0)) + flow[1]
        if len(self._queue) >= WAITING and turn >= self._queue[-1][0]:
            _log.debug("%s: Event %s dropped", about, reason, extra={"event": "event-dropped"})
            return
        now = self._now().date
        note = str(Remark(code, note)) if code else note
        body = msgspec.json.encode(
            {
                "apiVersion": "events.k8s.io/v1",
                "kind": "Event",
                "metadata": {
                    "namespace": about.namespace,
                    "name": _name(
                        about, f"{self._source} {reason}" if once else f"{now} {self._emitted}"
                    ),
                },
                "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
                "reportingController": EVENT_CONTROLLER,
                "reportingInstance": self._instance,
                "type": kind,
                "reason": reason,
                "action": action,
                "note": printable(note[:NOTE]).encode()[:NOTE].decode(errors="ignore"),
                "regarding": {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "namespace": about.namespace,
                    "name": about.name,
                    "uid": about.uid,
                },
            }
        )
        if len(self._queue) >= WAITING:
            last, _, other, _ = self._queue.pop()
            self._last[other] = last - other[1]
        else:
            self._unsent.put_nowait(None)
        self._emitted, self._last[flow] = self._emitted + 1, turn
        insort(self._queue, (turn, self._emitted, flow, body))

    async def run(self) -> None:
        """Send what is queued until cancelled."""
        tokens = float(BURST)
        filled = self._now().monotonic
        while True:
            now = self._now().monotonic
            tokens = min(BURST, tokens + (now - filled) * self._rate)
            filled = now
            if tokens < 1:
                await asyncio.sleep((1 - tokens) / self._rate)
            # Only now: a warning may have been queued in the meantime.
            await self._unsent.get()
            self._turn, _, flow, body = self._queue.pop(0)
            if not self._queue:
                self._last.clear()
            tokens -= 1
            await self._send(flow[0], body)
            self._unsent.task_done()

    async def sent(self, patience: float) -> None:
        """Wait until all that is queued is sent, or for ``patience`` seconds."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._unsent.join(), patience)

    async def _send(self, namespace: str, body: bytes) -> None:
        try:
            path = actions.collection("events.k8s.io/v1", "events", namespace)
            try:
                await self._client.post(path, body)
            except ApiError as error:
                if error.code != 429:
                    raise
                # All others wait as well.
                await asyncio.sleep(retry_after(error) or 1.0)
                await self._client.post(path, body)
            self._refused = ""
        except KubeError as error:
            known = isinstance(error, ApiError) and error.reason == "AlreadyExists"
            # Log each new error once: a missing permission would fill the log.
            if not known and str(error) != self._refused:
                self._refused = str(error)
                _log.warning("Event not sent: %s", error, extra={"event": "event-refused"})


def _name(about: Key, what: str) -> str:
    """Name an Event after an object and ``what``: a DNS subdomain of at most 253 characters."""
    digest = hashlib.blake2b(f"{about.uid} {what}".encode(), digest_size=8).hexdigest()
    return f"{about.name[:236].rstrip('-.')}.{digest}"
