"""Asks an injector whether it injects, and whether its sidecars can be native: by a dry run.

A server-side dry run creates nothing, and passes all webhooks: it shows what pods meet.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice

import msgspec
from prometheus_client import Counter

from istio_aux.injector import probe_rules
from istio_aux.injector.capture import (
    AGENTS,
    CONFIG_MAP,
    Agent,
    CniConfig,
    NodeAgents,
    read_config,
)
from istio_aux.injector.rules import NativeCheck, Probe
from istio_aux.kube import actions
from istio_aux.kube.client import Client
from istio_aux.kube.clock import now
from istio_aux.kube.errors import (
    UNANSWERED,
    UNREAD,
    ApiError,
    Backoff,
    NoConnectionError,
    jittered,
    retry_after,
)
from istio_aux.kube.objects import decoded
from istio_aux.model.pod import Pod, Struct
from istio_aux.model.text import UNDECODABLE, one_line
from istio_aux.model.webhooks import (
    SERVICE,
    ClientConfig,
    EndpointSlice,
    Service,
    ServiceReference,
)
from istio_aux.tasks import wait
from istio_aux.telemetry import Telemetry

DEADLINE = 2.0
"""Timeout of a live injector in seconds. After a slower answer it is `DRY_RUN`, so that the state
does not flap."""

DRY_RUN = 12.0  # Seconds for all dry runs of a probe; a webhook has ten by default.
NAMESPACES = 10  # Namespaces that a probe tries: a quota or a policy may refuse all pods.
KEPT = 300.0
"""Seconds for which the last result stays valid while the API server fails or is away (it creates
no pods then either), and for which kubelet versions do while they cannot be read."""

LONGEST_PAUSE = 30.0  # Seconds between two probes without an answer.


NOWHERE = probe_rules.refusal(
    "there is no namespace where a dry run asks this injector and no other",
    reached=False,
)


class Rhythm(msgspec.Struct, frozen=True):
    """Seconds between two probes: of a ``live`` injector, and of any ``other``.

    Versions of kubelets and injection policies are read every ``read`` seconds.
    """

    live: float = 5.0
    other: float = 1.0
    read: float = 30.0


class InjectorProbe:
    """Asks one injector again and again.

    Attributes:
        result: the last answer, None before the first one.
        changed: set it when a configuration, a policy or an endpoint has changed, to ask at once.
    """

    def __init__(
        self,
        client: Client,
        telemetry: Telemetry,
        target: ClientConfig,
        *,
        questions: Callable[[], Iterable[probe_rules.Question]],
        outcomes: Counter,
        news: asyncio.Event,
        rhythm: Rhythm,
    ) -> None:
        """``questions`` returns pods, the best first; ``news`` is set after each answer.

        ``outcomes`` counts answers with a sidecar, answers without one, and probes without answer.
        """
        self.result: Probe | None = None
        self.changed = asyncio.Event()
        self._client, self._telemetry, self._target = client, telemetry, target
        self._questions, self._outcomes = questions, outcomes
        self._news, self._rhythm = news, rhythm
        self._backoff = Backoff(rhythm.other, LONGEST_PAUSE)
        self._slow = False
        self._answered = self._kubelets_due = self._kubelets_until = -math.inf
        self._kubelets: NativeCheck | None = None
        self._reading = Backoff(rhythm.live, LONGEST_PAUSE)
        self._last: probe_rules.Question | None = None
        self._best: probe_rules.Question | None = None

    async def run(self) -> None:
        """Probe until cancelled: after a pause, or earlier after a change; many changes are one."""
        while True:
            self.changed.clear()
            began = now()
            try:
                pause = await self._ask()
            # A defect of ours must not end the probes, nor count as a live injector.
            except Exception as error:
                place = self._target.service or self._target.url
                self._telemetry.unhandled(f"{place}: {error!r}", error)
                self._publish(probe_rules.refusal(f"internal error: {error!r}", reached=False))
                pause = self._rhythm.read
            await wait(self.changed, pause)
            await asyncio.sleep(began + self._rhythm.other - now())

    async def _ask(self) -> float:
        """Ask once, and publish the answer; returns the seconds until the next question."""
        live = self.result is not None and self.result.injected
        seconds = DEADLINE if live and not self._slow else DRY_RUN
        away, wait, began = False, 0.0, now()
        try:
            async with asyncio.timeout(seconds):
                found = await ask(self._client, self._turn())
        except UNANSWERED as error:
            found = probe_rules.refusal(
                str(error) or f"no answer within {seconds:g} s", reached=False
            )
            away = isinstance(error, NoConnectionError) or (
                isinstance(error, ApiError) and error.code != 504
            )
            wait = retry_after(error)
        if found.native.capability.can:
            found = msgspec.structs.replace(
                found,
                native=await self._possible(found.native),
            )
        if not found.reached and found != NOWHERE:
            # One failure does not end the state of a live injector: the machine may be busy, and
            # the next probe tries further namespaces.
            valid = away and now() < self._answered + KEPT
            if live and (valid or not self._backoff.failures):
                self._outcomes.labels("unreachable").inc()
            else:
                self._publish(found)
            await asyncio.sleep(wait)
            return self._backoff.next()
        self._publish(found)
        if not found.reached:
            return self._rhythm.other
        self._answered = now()
        self._slow = self._answered - began > DEADLINE
        self._backoff.reset()
        return jittered(self._rhythm.live) if found.injected else self._rhythm.other

    def _turn(self) -> Iterator[probe_rules.Question]:
        """Yield one dry run for each namespace to try, beginning with the one that was tried last.

        If another namespace is the best one now, the order begins with that. After a failure the
        next namespace goes first: one namespace alone may make the API server fail.
        """
        names, best = set[str](), next(iter(self._questions()), None)
        self._last, self._best = self._last if best == self._best else None, best
        turn = probe_rules.in_turn(self._questions(), self._last)
        for question in chain(
            turn,
            list(islice(turn, 1 if self._backoff.failures else 0)),
        ):
            if len(names) == NAMESPACES:
                return
            if question.namespace not in names:
                names.add(question.namespace)
                self._last = question
                yield question

    def _publish(self, result: Probe) -> None:
        reached = "injected" if result.injected else "refused"
        self._outcomes.labels(reached if result.reached else "unreachable").inc()
        self.result = result
        self._news.set()

    async def _possible(self, shown: NativeCheck) -> NativeCheck:
        """What a dry run has ``shown``, unless a kubelet runs no native sidecars."""
        if now() >= self._kubelets_due:
            if not (self.result and self.result.injected):
                self.result = Probe(injected=True)  # Published before kubelets are read.
                self._news.set()
            try:
                async with asyncio.timeout(DRY_RUN):
                    self._kubelets = await check_kubelets(self._client)
                self._kubelets_due = now() + self._rhythm.read
                self._kubelets_until = now() + KEPT
                self._reading.reset()
            except UNANSWERED as error:
                self._kubelets_due = now() + max(self._reading.next(), retry_after(error))
                if now() >= self._kubelets_until:
                    self._kubelets = probe_rules.unknown(
                        str(error) or "no answer from the API server in time"
                    )
        return self._kubelets or shown


async def ask(client: Client, questions: Iterable[probe_rules.Question]) -> Probe:
    """Create pods in dry runs, until one shows what the injector does.

    `KubeError`: the API server gives no answer now.
    """
    refusals = dict[str, str]()
    for question in questions:
        found = await _asked(client, question)
        if found.reached:
            return found
        refusals[question.namespace] = found.why
    return (
        probe_rules.refusal(probe_rules.refused_in(refusals), reached=False)
        if refusals
        else NOWHERE
    )


async def _asked(client: Client, question: probe_rules.Question) -> Probe:
    """Try dry runs in one namespace; a result that is not ``reached`` says why it refuses pods."""
    # Both at once: one after the other, what makes them slow would count twice.
    found, native = await asyncio.gather(
        _tried(client, question), _tried(client, question, native=True)
    )
    if found.reached:
        if not found.injected or found.native == probe_rules.UNASKED:
            return found
        if native.injected:
            return native
        usual, refused = found, native
    else:  # Perhaps because its sidecar is native.
        usual, refused = await _tried(client, question, native=False), found
    if not usual.injected:
        return usual
    why = probe_rules.classic(f"pods with a native sidecar are refused: {refused.why}")
    return msgspec.structs.replace(usual, native=why)


async def _tried(
    client: Client, question: probe_rules.Question, *, native: bool | None = None
) -> Probe:
    """Try one dry run; for ``native`` see `Question.body`."""
    try:
        made = await actions.dry_run_pod(client, question.namespace, question.body(native))
    except ApiError as error:
        whose = probe_rules.concerns(error.code, str(error))
        if whose == "API server":
            raise
        return probe_rules.refusal(str(error), reached=whose == "injector")
    return probe_rules.created(made, question.unclear, unasked=native is None)


class ServerVersion(Struct, frozen=True):
    """``/version``."""

    git_version: str = ""


async def read_version(client: Client) -> str:
    """Read the API server's version; `UnreadableError` if it has none."""
    return decoded(await client.get("/version"), ServerVersion).git_version


async def read_kubelets(client: Client) -> dict[str, str]:
    """Read the version of each node's kubelet; `UnreadableError` if a node cannot be read."""
    return {
        node.metadata.name: node.status.node_info.kubelet_version
        for node in await actions.list_kept(
            client,
            actions.NODES,
            actions.Node,
            {},
            lambda node: node,
        )
    }


async def read_agents(
    client: Client,
    node: str = "",
    tenants: Callable[[str], bool] = lambda _namespace: False,
) -> tuple[dict[str, list[Agent]], NodeAgents]:
    """List the pods of Istio's CNI and of ztunnel, on a node or on all, without those of tenants.

    Returns them by DaemonSet, and the CNI's also with their settings.

    Raises:
        KubeError: they cannot be listed.
    """
    where = {"fieldSelector": f"spec.nodeName={node}"} if node else {}
    found = dict[str, list[Agent]]()
    for name, selector in AGENTS.items():
        found[name] = [
            agent
            for agent in await actions.list_kept(
                client,
                actions.PODS,
                Pod,
                {"labelSelector": selector, **where},
                Agent.of,
            )
            if not tenants(agent.key.namespace)
        ]
    agents = NodeAgents()
    agents.agents = {agent.key: agent for agent in found["istio-cni"]}
    agents.configs = {name: await read_cni(client, name) for name in agents.namespaces}
    return found, agents


async def read_cni(client: Client, namespace: str) -> CniConfig | str:
    """Read the settings of Istio's CNI in a namespace, or say why they are not known."""
    try:
        async with asyncio.timeout(DRY_RUN):
            return read_config(await actions.read_config_map(client, namespace, CONFIG_MAP))
    except (*UNANSWERED, *UNDECODABLE) as error:
        return one_line(str(error)) or "no answer in time"


async def check_kubelets(client: Client) -> NativeCheck | None:
    """Find out why sidecars cannot be native on some node; None: on all nodes they can.

    `KubeError`: there is no answer now.
    """
    try:
        if probe_rules.kubelets_assured(await read_version(client)):
            return None
        return probe_rules.of_kubelets(await read_kubelets(client))
    except UNREAD as error:
        if error.code in probe_rules.TEMPORARY:
            raise
        return probe_rules.unknown(f"versions of kubelets: {error}")


async def read_slices(client: Client, service: Service | ServiceReference) -> list[EndpointSlice]:
    """Read the EndpointSlices of a Service.

    Raises:
        KubeError: they cannot be listed.
    """
    return [
        each
        async for page in actions.pages(
            client,
            actions.collection("discovery.k8s.io/v1", "endpointslices", service.namespace),
            EndpointSlice,
            {"labelSelector": f"{SERVICE}={service.name}"},
        )
        for each in page.items
    ]
