"""Tell people what happened to a pod, as Kubernetes Events on it (events.k8s.io/v1).

Only the recording may live here; what is worth an Event is decided elsewhere. Events are a
courtesy: one task sends them at a bounded rate, and they are dropped when there are too many or the
API server refuses them. Nothing ever waits for one.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from datetime import UTC, datetime
from typing import Literal

import msgspec

from istio_aux.kube import actions
from istio_aux.kube.client import Client
from istio_aux.kube.errors import ApiError, KubeError, asked
from istio_aux.kube.objects import Key

_log = logging.getLogger(__name__)

CONTROLLER = "istio-aux.io/istio-aux"
"""``reportingController``; must be a qualified name."""

BURST = 50
"""Events that may go out at once; client-go's limiter allows 25 for one object."""

RATE = 5.0
"""Events a second after that."""

WAITING = 500
"""Events that wait to be sent; more than that are dropped: warnings only from twice as many on,
those that come in masses from half as many on."""

NOTE = 1024
"""Bytes of ``note`` that the API server takes (validation of events.k8s.io/v1)."""


class Events:
    """A recorder. A class because it owns the queue between who emits and the one who sends."""

    def __init__(
        self, client: Client, instance: str, *, source: str = "", rate: float = RATE
    ) -> None:
        """Prepare.

        Args:
            client: an open client.
            instance: names this process, such as its host name.
            source: names all processes that tell the same: see `emit`.
            rate: Events a second.
        """
        self._client, self._instance, self._rate = client, instance[:128], rate
        self._source = source
        # A thousand pods that are freed at a start must not hide the one that lost its proxy.
        self._queue: asyncio.PriorityQueue[tuple[int, int, str, bytes]] = asyncio.PriorityQueue()
        self._emitted = 0
        self._refused = ""

    def emit(
        self,
        about: Key,
        kind: Literal["Normal", "Warning"],
        *,
        reason: str,
        action: str,
        note: str,
        mass: bool = False,
        once: bool = False,
        regarding: tuple[str, str] = ("v1", "Pod"),
    ) -> None:
        """Queue an Event about an object; ``reason`` and ``action`` are UpperCamelCase words.

        ``regarding`` is the object's apiVersion and kind.

        An object has one Event of a ``reason`` that is told ``once``, whichever process of this
        source sends it; the first stays until the API server drops it (kube-apiserver --event-ttl).
        Warnings overtake others, and all overtake those that come in masses (``mass``), such as one
        for each pod of a cluster; among the same kind the order is kept.
        """
        rank = 2 if mass else int(kind == "Normal")
        if self._queue.qsize() >= (2 * WAITING, WAITING, WAITING // 2)[rank]:
            _log.debug("%s: Event %s dropped", about, reason, extra={"event": "event-dropped"})
            return
        now = datetime.now(UTC)
        event = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {
                "namespace": about.namespace,
                "name": _name(about, f"{self._source} {reason}" if once else f"{time.time_ns()}"),
            },
            "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance,
            "type": kind,
            "reason": reason,
            "action": action,
            "note": note.encode()[:NOTE].decode(errors="ignore"),
            "regarding": {
                "apiVersion": regarding[0],
                "kind": regarding[1],
                "namespace": about.namespace,
                "name": about.name,
                "uid": about.uid,
            },
        }
        self._emitted += 1
        body = msgspec.json.encode(event)
        self._queue.put_nowait((rank, self._emitted, about.namespace, body))

    async def run(self) -> None:
        """Send what is queued until cancelled."""
        tokens, filled = float(BURST), time.monotonic()
        while True:
            now = time.monotonic()
            tokens, filled = min(BURST, tokens + (now - filled) * self._rate), now
            if tokens < 1:
                await asyncio.sleep((1 - tokens) / self._rate)
            # Only now, so that a warning which came in the meantime goes first.
            _, _, namespace, body = await self._queue.get()
            tokens -= 1
            await self._send(namespace, body)

    async def _send(self, namespace: str, body: bytes) -> None:
        try:
            path = actions.collection("events.k8s.io/v1", "events", namespace)
            try:
                await self._client.post(path, body)
            except ApiError as error:
                if error.code != 429:
                    raise
                # All others wait as well, and are dropped when they are too many.
                await asyncio.sleep(asked(error) or 1.0)
                await self._client.post(path, body)
            self._refused = ""
        except KubeError as error:
            if isinstance(error, ApiError) and error.reason == "AlreadyExists":
                return
            # One line for each new trouble: a missing permission would otherwise fill the log.
            if str(error) != self._refused:
                self._refused = str(error)
                _log.warning("Event not sent: %s", error, extra={"event": "event-refused"})


def _name(pod: Key, what: str) -> str:
    """The name of an Event: the same for the same pod and the same ``what``.

    At most 253 characters that are a DNS subdomain, as all names are.
    """
    digest = hashlib.blake2b(f"{pod.uid} {what}".encode(), digest_size=8).hexdigest()
    return f"{pod.name[:236].rstrip('-.')}.{digest}"
