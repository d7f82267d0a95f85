"""Asks an injector whether it injects, and asks again and again.

The first way is the injector's own endpoints: nothing else answers as fast, and it needs no
permission. The second way is a dry run through the API server, which creates nothing: for networks
that keep us from istiod.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Literal, TypeVar
from urllib.parse import urlsplit

import msgspec

from istio_aux.core.injection_probe import Question, created, refusal
from istio_aux.core.liveness import Probe
from istio_aux.core.webhooks import Address, ClientConfig
from istio_aux.injector import replica
from istio_aux.injector.replica import Connection, Found
from istio_aux.kube import actions
from istio_aux.kube.client import Client
from istio_aux.kube.errors import ApiError, Backoff, KubeError, asked
from istio_aux.telemetry import Telemetry

_log = logging.getLogger(__name__)

DRY_RUN = 12.0
"""Seconds for a dry run. The API server gives a webhook ten of them."""

REPLICAS = 5
"""Replicas that are asked at once. One that injects is enough."""

_NOT_ALLOWED = frozenset({401, 403, 404, 429})
"""The API server did not start the dry run. If an injector refuses or fails, it answers other codes
(apiserver webhook/errors/statuserror.go)."""


class Prober:
    """Asks injectors once. All of them share one pause while the API server is busy."""

    def __init__(self, client: Client, telemetry: Telemetry) -> None:
        self._client, self._telemetry = client, telemetry
        self._busy: tuple[float, str] = -math.inf, ""
        self._backoff = Backoff(1.0, 30.0)

    async def ask(
        self, target: ClientConfig, addresses: Sequence[Address], question: Question
    ) -> Found:
        """Ask the injector behind ``target``; ``addresses`` are for a Service only."""
        try:
            url, addresses = _place(target, addresses)
        except ValueError as error:
            return Found(refusal(f'url "{target.url}": {error}'))
        found = await _directly(target, url, addresses, question)
        self._telemetry.injector_probes.labels("direct", _outcome(found.probe)).inc()
        if found.probe.asked:
            return found
        probe = await self._dry_run(question, f"cannot be asked directly: {found.probe.why}")
        self._telemetry.injector_probes.labels("dry-run", _outcome(probe)).inc()
        return Found(probe)

    async def _dry_run(self, question: Question, direct: str) -> Probe:
        if not question.selected:
            none = "no namespace where a dry run asks this injector and no other"
            return refusal(f"{direct}; {none}", asked=False)
        until, busy = self._busy
        if asyncio.get_running_loop().time() < until:
            return refusal(f"{direct}; dry run: {busy}", asked=False)
        try:
            answer = await dry_run(self._client, question)
        except ApiError as error:
            if error.code in {429, 503, 504}:
                self._pause(error)
            return refusal(f"dry run: {error} ({direct})", asked=error.code not in _NOT_ALLOWED)
        except (KubeError, TimeoutError) as error:
            self._pause(error)
            said = str(error) or f"no answer within {DRY_RUN:g} s"
            return refusal(f"{direct}; dry run: {said}", asked=False)
        self._backoff.reset()
        return created(answer)

    def _pause(self, error: Exception) -> None:
        """Start no dry run for a while: an injector that is not live is asked every second."""
        pause = max(self._backoff.next(), asked(error))
        self._busy = asyncio.get_running_loop().time() + pause, str(error) or "no answer in time"


async def dry_run(client: Client, question: Question, *, native: bool | None = None) -> bytes:
    """Create the pod in a dry run; see `Question.body`. Raises KubeError and TimeoutError."""
    async with asyncio.timeout(DRY_RUN):
        return await actions.dry_run_pod(client, question.namespace, question.body(native=native))


def _outcome(probe: Probe) -> str:
    if not probe.asked:
        return "unreachable"
    return "injected" if probe.injected else "refused"


def _place(target: ClientConfig, addresses: Sequence[Address]) -> tuple[str, Sequence[Address]]:
    """Return URL and addresses (apiserver pkg/util/webhook/client.go), or raise ValueError."""
    if service := target.service:
        path = (service.path or "").lstrip("/")
        return f"https://{service.name}.{service.namespace}.svc/{path}", addresses
    url = urlsplit(target.url or "")
    if url.scheme != "https" or not url.hostname:
        raise ValueError("expected https://HOST[:PORT]/PATH")
    return url.geturl(), (Address(url.hostname, url.port or 443),)


async def _directly(
    target: ClientConfig, url: str, addresses: Sequence[Address], question: Question
) -> Found:
    """Ask the replicas. The first that injects decides, otherwise all that were reached."""
    tls = replica.tls_context(target)
    asking = [
        asyncio.create_task(replica.ask(address, url, tls, question))
        for address in addresses[:REPLICAS]
    ]
    refused: list[str] = []
    unheard: list[str] = []
    chosen: Found | None = None

    def drop(asked: asyncio.Task[Found]) -> None:
        if not asked.cancelled() and not asked.exception():
            found = asked.result()
            if found.connection and found is not chosen:
                found.connection.drop()

    try:
        for answer in asyncio.as_completed(asking):
            found = await answer
            if found.probe.injected:
                chosen = found
                return found
            (refused if found.probe.asked else unheard).append(found.probe.why)
    finally:
        for task in asking:
            task.cancel()
            task.add_done_callback(drop)
    # The API server's system may trust other certificates than ours: then a refusal shows nothing.
    heard = bool(refused) and not (target.url and not target.ca_bundle)
    why = "; ".join(sorted(refused) + sorted(unheard))
    return Found(refusal(why or "no endpoint has a port for the webhook", asked=heard))


class Rhythm(msgspec.Struct, frozen=True):
    """Seconds between two questions."""

    live: float = 30.0
    """While the injector is live, with jitter: the units of an application must not ask in step."""
    other: float = 1.0
    """While it is not live."""


RHYTHM = Rhythm()

S = TypeVar("S")
R = TypeVar("R")
Ask = Callable[[S, R | None], Awaitable[tuple[R, float, Connection | None]]]
"""Asks about a subject, with the last answer that counts; returns the answer, the seconds until the
next question and a connection to watch."""


class ProbeLoop(Generic[S, R]):
    """Asks about a subject: at once when it changes, after a pause, and when a connection ends.

    Attributes:
        result: the last answer, None while there is none that counts.
    """

    def __init__(
        self,
        name: str,
        ask: Ask[S, R],
        failed: Callable[[str], R],
        changed: Callable[[], None],
        *,
        telemetry: Telemetry,
        rhythm: Rhythm,
        keeps: bool = False,
    ) -> None:
        """Prepare; `run` and `look` start it.

        Args:
            name: of the injector, for the log.
            ask: asks once.
            failed: returns the answer that an unhandled exception counts as.
            changed: called after each answer.
            telemetry: counts unhandled exceptions.
            rhythm: how often to ask.
            keeps: whether an answer counts until the next one, although the subject has changed.
        """
        self.result: R | None = None
        self._name, self._ask, self._failed, self._changed = name, ask, failed, changed
        self._telemetry, self._rhythm, self._keeps = telemetry, rhythm, keeps
        self._subject: S | None = None
        self._attempt: asyncio.Timeout | None = None
        self._connection: Connection | None = None
        self._woken = asyncio.Event()

    @property
    def settled(self) -> bool:
        """Whether no first answer is due."""
        return self._subject is None or self.result is not None

    def look(self, subject: S | None) -> None:
        """Set the subject; None: there is nothing to ask."""
        if subject == self._subject:
            return
        self._subject = subject
        self._woken.set()
        if subject is None or not self._keeps:
            self.result = None
            if self._attempt and not self._attempt.expired():
                self._attempt.reschedule(asyncio.get_running_loop().time())

    async def run(self) -> None:
        """Ask until cancelled."""
        try:
            while True:
                self._woken.clear()
                self._drop()
                pause = None
                if self._subject is not None:
                    pause = await self._once(self._subject)
                await self._wait(pause)
        finally:
            self._drop()

    async def _once(self, subject: S) -> float:
        """Ask, and keep the answer; returns the seconds until the next question."""
        try:
            async with asyncio.timeout(None) as self._attempt:
                result, pause, self._connection = await self._ask(subject, self.result)
        # Admission goes on, and a defect must not count as a live injector.
        except Exception as error:
            if self._attempt and self._attempt.expired():
                return 0.0
            self._telemetry.internal_errors.inc()
            _log.exception("%s: %r", self._name, error, extra={"event": "internal-error"})
            result, pause = self._failed(f"internal error: {error!r}"), self._rhythm.live
        finally:
            self._attempt = None
        if self._subject == subject or (self._keeps and self._subject is not None):
            self.result = result
            self._changed()
        return pause

    async def _wait(self, pause: float | None) -> None:
        """Wait until the pause is over, the subject changes or the connection has ended."""
        waits = [asyncio.create_task(self._woken.wait())]
        if self._connection:
            waits.append(asyncio.create_task(self._ended(self._connection)))
        try:
            await asyncio.wait(waits, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    async def _ended(self, connection: Connection) -> Literal[True]:
        """Return when it has ended, but not at once: a server may close every connection."""
        await asyncio.sleep(self._rhythm.other)
        return await connection.ended()

    def _drop(self) -> None:
        if self._connection:
            self._connection.drop()
            self._connection = None
