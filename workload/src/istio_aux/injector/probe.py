"""Ask an injector whether it injects: by itself, and through the API server where that cannot be.

`core.injection_probe` has the question and the meaning of the answers. The
first way is the injector's own endpoint, because nothing else answers so fast and needs no right.
The second way is a dry run, which makes no object, for where the network keeps us from istiod.
"""

from __future__ import annotations

import asyncio
import math
import ssl
import uuid
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from istio_aux.core.injection_probe import Question, answered, created, refusal
from istio_aux.core.liveness import Probe
from istio_aux.core.webhooks import Address, ClientConfig
from istio_aux.injector import exchange, trust
from istio_aux.injector.exchange import Answer, BrokenError, Connection, UnreachableError
from istio_aux.kube import actions
from istio_aux.kube.backoff import Backoff
from istio_aux.kube.client import Client
from istio_aux.kube.errors import ApiError, KubeError, asked
from istio_aux.telemetry import Telemetry

DRY_RUN = 12.0
"""Seconds for a dry run: the API server gives a webhook ten of them."""

REPLICAS = 5
"""How many are asked, at once; one that injects is enough."""

_OUR_FAULT = frozenset({401, 403, 404, 429})
"""What the API server says when it lets us not ask; what an injector refuses, or fails at, comes
with other codes (apiserver webhook/errors/statuserror.go)."""


class Found(NamedTuple):
    """What came of asking.

    Attributes:
        connection: to the replica that injected, for the caller to close; None after a dry run.
    """

    probe: Probe
    connection: Connection | None = None


class _Place(NamedTuple):
    """Where an injector is, as the API server sees it."""

    name: str
    path: str
    addresses: Sequence[Address]


class Prober:
    """Asks. A class because client and metrics are the same for all."""

    def __init__(self, client: Client, telemetry: Telemetry) -> None:
        self._client, self._telemetry = client, telemetry
        self._busy: tuple[float, str] = -math.inf, ""
        self._backoff = Backoff(1.0, 30.0)

    async def ask(
        self, target: ClientConfig, addresses: Sequence[Address], question: Question
    ) -> Found:
        """Ask the injector behind ``target`` for a sidecar for the pod of ``question``.

        Args:
            target: whom the API server would ask.
            addresses: of its Service's endpoints; a URL has its own.
            question: which pod.
        """
        try:
            place = _place(target, addresses)
        except ValueError as error:
            return Found(refusal(f'url "{target.url}": {error}'))
        found = await self._directly(target, place, question)
        outcome = _outcome(found.probe)
        self._telemetry.injector_probes.labels("direct", outcome).inc()
        if found.probe.asked:
            return found
        probe = await self._dry_run(question, found.probe.why)
        self._telemetry.injector_probes.labels("dry-run", _outcome(probe)).inc()
        return Found(probe)

    async def _directly(self, target: ClientConfig, place: _Place, question: Question) -> Found:
        """Ask the replicas; the first that injects decides, else the words of all that answered."""
        tls = trust.context(target)
        asking = [
            asyncio.create_task(_post(address, tls, place, question))
            for address in place.addresses[:REPLICAS]
        ]
        silent: list[str] = []
        refused: list[str] = []
        chosen: Found | None = None
        try:
            for answer in asyncio.as_completed(asking):
                found = await answer
                if found.probe.injected:
                    chosen = found
                    return found
                (refused if found.probe.asked else silent).append(found.probe.why)
        finally:
            await _drop(asking, chosen)
        if refused and not (target.url and not target.ca_bundle):
            return Found(refusal("; ".join(sorted(refused) + sorted(silent))))
        # Whom the API server's system trusts is not known here, so that a refusal shows nothing.
        why = (
            "; ".join(sorted(refused) + sorted(silent))
            or "which of its ports is the webhook's is not known"
        )
        return Found(refusal(why, asked=False))

    async def _dry_run(self, question: Question, why: str) -> Probe:
        """Ask through the API server; ``why`` says why not directly."""
        direct = f"not to be asked from here: {why}"
        if not question.selected:
            said = "no namespace where a dry run would ask it and no other"
            return refusal(f"{direct}; {said}", asked=False)
        until, busy = self._busy
        if asyncio.get_running_loop().time() < until:
            return refusal(f"{direct}; a dry run: {busy}", asked=False)
        try:
            async with asyncio.timeout(DRY_RUN):
                answer = await actions.dry_run_pod(
                    self._client, question.namespace, question.body()
                )
        except ApiError as error:
            if error.code in {429, 503, 504}:
                self._rest(error)
            return refusal(f"{error} (a dry run; {direct})", asked=error.code not in _OUR_FAULT)
        except (KubeError, TimeoutError) as error:
            self._rest(error)
            said = str(error) or f"no answer within {DRY_RUN:g} s"
            return refusal(f"{direct}; a dry run: {said}", asked=False)
        self._backoff.reset()
        return created(answer)

    def _rest(self, error: Exception) -> None:
        """Leave an API server that is busy, or away, in peace: injectors are asked every second."""
        pause = max(self._backoff.next(), asked(error))
        self._busy = asyncio.get_running_loop().time() + pause, str(error) or "no answer in time"


def _outcome(probe: Probe) -> str:
    if not probe.asked:
        return "unreachable"
    return "injected" if probe.injected else "refused"


def _place(target: ClientConfig, addresses: Sequence[Address]) -> _Place:
    """Where and what to post (apiserver pkg/util/webhook/client.go).

    Raises:
        ValueError: the URL is none that the API server would call.
    """
    if target.service:
        name = f"{target.service.name}.{target.service.namespace}.svc"
        return _Place(name, f"/{(target.service.path or '').lstrip('/')}", addresses)
    url = urlsplit(target.url or "")
    if url.scheme != "https" or not url.hostname:
        raise ValueError("expected https://HOST[:PORT]/PATH")
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    return _Place(url.hostname, path, (Address(url.hostname, url.port or 443),))


async def _post(address: Address, tls: ssl.SSLContext, place: _Place, question: Question) -> Found:
    """Ask one replica."""
    uid = str(uuid.uuid4())
    try:
        answer = await exchange.post(address, tls, place.name, place.path, question.review(uid))
    except UnreachableError as error:
        return Found(refusal(f"{address}: {error}", asked=False))
    except BrokenError as error:
        return Found(refusal(f"{address}: {error}"))
    probe = _meaning(answer, uid)
    if probe.injected:
        return Found(probe, answer.connection)
    answer.connection.close()
    return Found(refusal(f"{address}: {probe.why}"))


def _meaning(answer: Answer, uid: str) -> Probe:
    if answer.code != 200:  # A redirect is no answer either: the API server follows none.
        return refusal(f"it answered {answer.code}: {answer.body[:200].decode(errors='replace')}")
    return answered(answer.body, uid)


async def _drop(asking: Sequence[asyncio.Task[Found]], chosen: Found | None) -> None:
    """End what is still under way, and what nobody has taken over."""
    for task in asking:
        task.cancel()
    for found in await asyncio.gather(*asking, return_exceptions=True):
        if isinstance(found, Found) and found is not chosen and found.connection:
            found.connection.close()
