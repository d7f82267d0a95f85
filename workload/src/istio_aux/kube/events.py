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
from istio_aux.kube.clock import TIMING, Timing, system_clock
from istio_aux.kube.errors import ApiError, KubeError, retry_after
from istio_aux.kube.objects import Key
from istio_aux.model.findings import Code, Remark
from istio_aux.model.moment import Clock
from istio_aux.model.names import EVENT_CONTROLLER, EventAction, EventReason
from istio_aux.model.text import printable

_log = logging.getLogger(__name__)

BURST = 50  # Events that may be sent at once; client-go's limiter allows 25 for one object.
WAITING = 1000  # Events in the queue; beyond it, the namespace with most Events loses its last.
# The order of the Events of a namespace.
WARNING, NORMAL, MASS = range(3)
NOTE = 1024  # Bytes of the longest ``note`` (validation of events.k8s.io/v1).


class Events:
    """A queue of Events, and the task that sends them."""

    def __init__(
        self,
        client: Client,
        instance: str,
        *,
        source: str = "",
        timing: Timing = TIMING,
        clock: Clock = system_clock,
    ) -> None:
        """Name this process; the units of one application share the name ``source``."""
        self._client = client
        self._instance = instance[:128]
        self._pause = timing.event
        self._source = source
        self._now = clock
        # The queue of each namespace: rank, number and body of each Event, sorted.
        self._waiting = dict[str, list[tuple[int, int, bytes]]]()
        # How many turns each namespace has had since the queue was empty, for up to twice `WAITING`
        # namespaces. The namespace with fewest turns is next; a new one begins one turn ahead of
        # those that wait.
        self._turns = dict[str, int]()
        self._unsent = asyncio.Queue[None]()  # One entry for each queued Event.
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

        Namespaces have equal shares, whatever their Events say. A namespace's Warnings are sent
        first, and ``mass`` Events, which every pod may have, last: a thousand quits after a start
        must not delay the warning about one lost pod. An Event with ``once`` is not sent again for
        this object, reason and source while the API server has it (--event-ttl).
        """
        rank = MASS if mass else NORMAL if kind == "Normal" else WARNING
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
        self._emitted += 1
        if about.namespace not in self._waiting:
            had = self._turns.get(about.namespace, 0)
            fewest = min((self._turns[each] for each in self._waiting), default=1)
            self._turns[about.namespace] = max(had, fewest - 1)
        insort(
            self._waiting.setdefault(about.namespace, []),
            (rank, self._emitted, body),
        )
        if self._unsent.qsize() < WAITING:
            self._unsent.put_nowait(None)
            return
        most = max(self._waiting, key=lambda each: (len(self._waiting[each]), self._turns[each]))
        self._take(most, -1)
        _log.debug("%s: an Event is dropped", most, extra={"event": "event-dropped"})

    def _take(self, namespace: str, place: int) -> bytes:
        """Remove an Event from its namespace's queue."""
        _, _, body = self._waiting[namespace].pop(place)
        if not self._waiting[namespace]:
            del self._waiting[namespace]
        if not self._waiting or len(self._turns) > 2 * WAITING:
            self._turns = {each: self._turns[each] for each in self._waiting}
        return body

    async def run(self) -> None:
        """Send what is queued until cancelled."""
        burst = BURST * self._pause
        due = self._now().monotonic - burst
        while True:
            # Events are due at a steady rate, and sent early by up to a burst.
            now = self._now().monotonic
            due = max(due, now - burst) + self._pause
            await asyncio.sleep(due - now)
            # Choose only now: a Warning may have been queued meanwhile.
            await self._unsent.get()
            namespace = min(self._waiting, key=self._turns.__getitem__)
            self._turns[namespace] += 1
            body = self._take(namespace, 0)
            await self._send(namespace, body)
            self._unsent.task_done()

    async def sent(self, patience: float) -> None:
        """Wait until all that is queued is sent, or for ``patience`` seconds."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._unsent.join(), patience)

    async def _send(self, namespace: str, body: bytes) -> None:
        try:
            path = actions.collection("events.k8s.io/v1", "events", namespace)
            try:
                await self._client.send("POST", path, body)
            except ApiError as error:
                if error.code != 429:
                    raise
                # A limited request delays all other Events, too.
                await asyncio.sleep(retry_after(error) or 1.0)
                await self._client.send("POST", path, body)
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
