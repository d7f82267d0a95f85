"""Asks an injector whether it injects, and whether its sidecars can be native.

The first way is the injector's own endpoints: nothing else answers as fast, and it needs no
permission. The second way is a dry run through the API server, which creates nothing: for networks
that keep us from istiod. Only a dry run shows native sidecars, because all webhooks take part.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import chain
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from istio_aux.injector import probe_rules, replica
from istio_aux.injector.probe_rules import Question, refusal
from istio_aux.injector.replica import ProbeAnswer, ReplicaConnection
from istio_aux.injector.rules import NOT_CHECKED, NativeCheck, Probe
from istio_aux.kube import actions
from istio_aux.kube.client import Client
from istio_aux.kube.errors import (
    ApiError,
    Backoff,
    KubeError,
    UnreadableError,
    jittered,
    retry_after,
)
from istio_aux.kube.objects import Reader
from istio_aux.model.pod import Struct
from istio_aux.model.webhooks import Address, ClientConfig
from istio_aux.telemetry import Telemetry

_log = logging.getLogger(__name__)

DRY_RUN = 12.0  # Seconds; a webhook has ten by default.
REPLICAS = 5  # Replicas that are probed at once; one that injects is enough.
NAMESPACES = 10  # Namespaces in a round of dry runs: a quota or a policy may refuse all pods.
KEPT = 300.0
"""Seconds that a check of native sidecars counts while the API server gives no other answer."""

_NOWHERE = "there is no namespace where a dry run asks this injector and no other"


class Rhythm(msgspec.Struct, frozen=True):
    """Seconds between two probes: of a ``live`` injector, and of any ``other``.

    A live one is probed with jitter, so that the units do not ask at the same time.
    """

    live: float = 30.0
    other: float = 1.0


class DryRuns:
    """The dry runs for one injector: which is next, and when after a round without an answer."""

    def __init__(self) -> None:
        """Begin with the best question."""
        self.until, self.why, self.backoff = -math.inf, "", Backoff(1.0, 30.0)
        self._last: Question | None = None

    def turn(self, questions: Iterable[Question]) -> Iterator[Question]:
        """Yield a question for each of some namespaces, first for that which was tried last."""
        names = set[str]()
        for question in probe_rules.in_turn(questions, self._last):
            if len(names) == NAMESPACES:
                return
            if question.selected and question.namespace not in names:
                names.add(question.namespace)
                self._last = question
                yield question


class Prober:
    """Probes injectors. While the API server is busy, there are no dry runs."""

    def __init__(self, client: Client, telemetry: Telemetry) -> None:
        self.client, self.telemetry = client, telemetry

    @asynccontextmanager
    async def ask(
        self,
        target: ClientConfig,
        addresses: Sequence[Address],
        questions: Iterable[Question],
        runs: DryRuns,
    ) -> AsyncGenerator[ProbeAnswer]:
        """Ask the injector behind ``target``; ``addresses`` are for a Service only.

        There is at least one question. A connection to the replica that injected stays open while
        the context lasts.
        """
        others = iter(questions)
        question = next(others)
        try:
            url, addresses = _place(target, addresses)
        except ValueError as error:
            yield ProbeAnswer(refusal(f'url "{target.url}": {error}'))
            return
        answer = await _directly(target, url, addresses, question)
        self._count("direct", answer.probe)
        if not answer.probe.reached:
            direct = f"cannot be probed directly: {answer.probe.why}"
            answer = ProbeAnswer(await self._dry_run(runs, chain([question], others), direct))
            self._count("dry-run", answer.probe)
        try:
            yield answer
        finally:
            if answer.connection:
                await answer.connection.drop()

    def _count(self, way: str, probe: Probe) -> None:
        reached = "injected" if probe.injected else "refused"
        outcome = reached if probe.reached else "unreachable"
        self.telemetry.injector_probes.labels(way, outcome).inc()

    async def _dry_run(self, runs: DryRuns, questions: Iterable[Question], direct: str) -> Probe:
        if (now := asyncio.get_running_loop().time()) < runs.until:
            return refusal(f"{direct}; dry run: {runs.why}", reached=False)
        refusals, least = dict[str, str](), 0.0
        try:
            async with asyncio.timeout(DRY_RUN):
                for question in runs.turn(questions):
                    try:
                        made = probe_rules.created(await dry_run(self.client, question))
                    except ApiError as error:
                        whose = probe_rules.concerns(error.code, str(error))
                        if whose == "API server":
                            raise
                        if whose == "injector":
                            return refusal(f"dry run: {error} ({direct})")
                        refusals[question.namespace] = str(error)
                    else:
                        runs.backoff.reset()
                        return made if made.injected else refusal(f"{made.why} ({direct})")
            if not refusals:
                return refusal(f"{direct}; {_NOWHERE}", reached=False)
            runs.why = probe_rules.refused_in(refusals)
        except (KubeError, TimeoutError) as error:
            runs.why = str(error) or f"no answer within {DRY_RUN:g} s"
            least = retry_after(error)
        # An injector that is not live is probed every second.
        runs.until = now + max(runs.backoff.next(), least)
        return refusal(f"dry run: {runs.why} ({direct})", reached=False)


async def dry_run(client: Client, question: Question, *, native: bool | None = None) -> bytes:
    """Create the pod in a dry run; see `Question.body`."""
    return await actions.dry_run_pod(client, question.namespace, question.body(native=native))


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
) -> ProbeAnswer:
    """Ask the replicas. The first that injects decides, otherwise all that were reached."""
    tls = replica.tls_context(target)
    asking = [
        asyncio.create_task(replica.ask(address, url, tls, question))
        for address in addresses[:REPLICAS]
    ]
    chosen: ProbeAnswer | None = None
    others: list[Probe] = []
    try:
        for earliest in asyncio.as_completed(asking):
            answer = await earliest
            if answer.probe.injected:
                chosen = answer
                return answer
            others.append(answer.probe)
    finally:
        for task in asking:
            task.cancel()
        try:
            await asyncio.shield(_drop(asking, chosen))
        except asyncio.CancelledError:
            # The caller is cancelled, and does not get the answer that was chosen.
            if chosen and chosen.connection:
                await chosen.connection.drop()
            raise
    others.sort(key=lambda probe: (not probe.reached, probe.why))
    why = "; ".join(probe.why for probe in others) or "no endpoint has a port for the webhook"
    # The API server's system may trust other certificates than ours: then a refusal shows nothing.
    trusted = not (target.url and not target.ca_bundle)
    return ProbeAnswer(refusal(why, reached=trusted and any(probe.reached for probe in others)))


async def _drop(asking: Iterable[asyncio.Task[ProbeAnswer]], chosen: ProbeAnswer | None) -> None:
    """Close the connections of all answers but the chosen one."""
    for other in await asyncio.gather(*asking, return_exceptions=True):
        if isinstance(other, ProbeAnswer) and other.connection and other is not chosen:
            await other.connection.drop()


class InjectorProbe:
    """Asks one injector at certain addresses again and again.

    Attributes:
        result: the last answer, None before the first one.
        reconfigured: set it when a webhook configuration has changed, to ask again at once.
    """

    def __init__(
        self,
        prober: Prober,
        target: ClientConfig,
        addresses: Sequence[Address],
        *,
        questions: Callable[[], Iterable[Question]],
        news: asyncio.Event,
        rhythm: Rhythm,
    ) -> None:
        """Prepare `run`.

        ``questions`` returns pods to ask about, at least one, the best first. ``news`` is set after
        each answer.
        """
        self.result: Probe | None = None
        self.reconfigured = asyncio.Event()
        self.reconfigured.set()
        self._prober, self._target, self._addresses = prober, target, addresses
        self._questions, self._news, self._rhythm = questions, news, rhythm
        self._native, self._checked_at = NOT_CHECKED, -math.inf
        self._backoff, self._runs = Backoff(2 * rhythm.other, rhythm.live), DryRuns()

    @property
    def settled(self) -> bool:
        """Whether the last answer is complete."""
        answer = self.result
        return answer is not None and not (answer.injected and answer.native == NOT_CHECKED)

    async def run(self) -> None:
        """Ask until cancelled: after a pause, and earlier after changes.

        A closed connection is the earliest sign that istiod stopped.
        """
        while True:
            changed = self.reconfigured.is_set()
            self.reconfigured.clear()
            try:
                async with self._prober.ask(
                    self._target, self._addresses, self._questions(), self._runs
                ) as answer:
                    pause = await self._conclude(answer.probe, changed=changed)
                    await self._wait(pause, answer.connection)
            # A defect of ours must not end the probes, nor count as a live injector.
            except Exception as error:
                self._prober.telemetry.internal_errors.inc()
                name = self._target.service or self._target.url
                _log.exception("%s: %r", name, error, extra={"event": "internal-error"})
                self._publish(refusal(f"internal error: {error!r}", reached=False))
                await self._wait(self._rhythm.live)

    def _publish(self, result: Probe) -> None:
        self.result = result
        self._news.set()

    async def _conclude(self, probe: Probe, *, changed: bool) -> float:
        """Complete an answer and publish it; returns the seconds until the next question."""
        if not probe.injected:
            self._checked_at = -math.inf
        elif probe.native == NOT_CHECKED:
            if not (self.result and self.result.injected):
                self._publish(probe)
            pause = await self._check_native(changed=changed)
            self._publish(msgspec.structs.replace(probe, native=self._native))
            return pause
        self._publish(probe)
        return jittered(self._rhythm.live) if probe.injected else self._rhythm.other

    async def _check_native(self, *, changed: bool) -> float:
        clock = asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(DRY_RUN):
                asked = self._runs.turn(self._questions())
                self._native = await check_native(self._prober.client, asked)
        except (KubeError, TimeoutError) as error:
            if clock() >= self._checked_at + KEPT:
                why = str(error) or "the API server does not answer in time"
                self._native = probe_rules.unknown(why)
            return max(self._backoff.next(), retry_after(error))
        self._checked_at = clock()
        self._backoff.reset()
        # The API server calls a new webhook a moment after its watch reports it.
        return self._backoff.next() if changed else jittered(self._rhythm.live)

    async def _wait(self, pause: float, connection: ReplicaConnection | None = None) -> None:
        """Wait for the pause, a change of a configuration, or the end of the connection."""
        waits = [asyncio.create_task(self.reconfigured.wait())]
        if connection:
            waits.append(asyncio.create_task(self._ended(connection)))
        try:
            await asyncio.wait(waits, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    async def _ended(self, connection: ReplicaConnection) -> Literal[True]:
        """Return when it has ended, after a pause: some servers close every connection at once."""
        await asyncio.sleep(self._rhythm.other)
        return await connection.ended.wait()


class _ServerVersion(Struct, frozen=True):
    git_version: str = ""


_version = Reader(_ServerVersion, "version")


async def read_version(client: Client) -> str:
    """Read the API server's version; `UnreadableError` if it has none."""
    return _version.read(await client.get("/version")).git_version


async def read_kubelets(client: Client) -> dict[str, str]:
    """Read the version of each node's kubelet; `UnreadableError` if a node cannot be read."""
    nodes = await actions.list_all(client, actions.NODES, actions.Node, {})
    return {node.metadata.name: node.status.node_info.kubelet_version for node in nodes}


async def check_native(client: Client, questions: Iterable[Question]) -> NativeCheck:
    """Find out whether the sidecar of a pod that asks for a native one is native.

    `KubeError` and TimeoutError: there is no answer now.
    """
    try:
        version = await read_version(client)
    except UnreadableError as error:
        return probe_rules.unknown(f"/version of the API server: {error}")
    if not probe_rules.kubelets_assured(version) and (versions := await _of_nodes(client)):
        return versions
    return await _of_dry_runs(client, questions)


async def _of_nodes(client: Client) -> NativeCheck | None:
    try:
        return probe_rules.of_kubelets(await read_kubelets(client))
    except (ApiError, UnreadableError) as error:
        if isinstance(error, ApiError) and error.code in probe_rules.TEMPORARY:
            raise
        return probe_rules.unknown(f"nodes: {error}")


async def _of_dry_runs(client: Client, questions: Iterable[Question]) -> NativeCheck:
    refusals = dict[str, str]()
    for question in questions:
        try:
            return probe_rules.of_dry_run(await dry_run(client, question, native=True))
        except ApiError as error:
            if probe_rules.concerns(error.code, refused := str(error)) == "API server":
                raise
        # Is the pod refused because of the native sidecar?
        try:
            await dry_run(client, question, native=False)
        except ApiError as error:
            if probe_rules.concerns(error.code, str(error)) != "namespace":
                raise
            refusals[question.namespace] = str(error)
        else:
            return probe_rules.classic(f"pods with a native sidecar are refused: {refused}")
    return probe_rules.unknown(probe_rules.refused_in(refusals) if refusals else _NOWHERE)
