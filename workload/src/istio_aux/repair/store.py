"""The store of repair: watched pods, their controllers, and Istio's CNI agents.

`injection.expected` says which pods should have a sidecar, `rules.decide` what to do about one
that has none. An event of a pod decides on that pod alone. A change that concerns many pods
makes their decisions invalid, and they are decided on again in batches.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile

import msgspec

from istio_aux.injector.capture import Agent, CniConfig, NodeAgent, NodeAgents, is_agent
from istio_aux.injector.injection import Expectation
from istio_aux.injector.rules import UNKNOWN, ControlPlanes
from istio_aux.kube.clock import system_clock
from istio_aux.kube.objects import Key
from istio_aux.model import kept
from istio_aux.model.applications import Applications, PodOptions
from istio_aux.model.findings import Code
from istio_aux.model.moment import Clock
from istio_aux.model.pod import OwnerReference, Pod, interned, shared
from istio_aux.model.pod_settings import InjectionRequest
from istio_aux.model.policy import RacePolicy, RepairPolicy
from istio_aux.repair import rollout
from istio_aux.repair.recorder import RepairRecorder
from istio_aux.repair.rollout import IDLE, Replica, Rollout, Sidecar, Step
from istio_aux.repair.rules import (
    HALF_CAPTURED,
    SETTLED,
    Around,
    AwaitCapture,
    Candidate,
    Captured,
    NotKnown,
    RepairAction,
    ReportUnmeshed,
    Restart,
    Skip,
    as_admitted,
    decide,
)

_GONE = 10  # Pods of a StatefulSet whose deletion is remembered, the last ones.
_labels = msgspec.json.Decoder(dict[str, str])
BATCH = 50  # Pods that are decided on before other tasks, such as reviews, get a turn.

_UNSEEN = Replica("", "", Sidecar.UNKNOWN)
_UNDECIDED = ReportUnmeshed("not decided yet", Code.MESH_UNKNOWN)


class NotRestartedError(Exception):
    """A pod was not restarted.

    ``retry_after`` has the seconds that the API server asks us to wait. ``changed``: the pod, or
    what is known of its controller, has changed meanwhile.
    """

    def __init__(self, reason: str, retry_after: float = 0.0, *, changed: bool = False) -> None:
        super().__init__(reason)
        self.retry_after = retry_after
        self.changed = changed


@dataclass(slots=True, eq=False)
class StoredPod:
    """A pod, and the decision about it."""

    key: Key
    sidecar: Sidecar = Sidecar.UNKNOWN
    replica: Replica = _UNSEEN  # The pod as the rollout of its owner sees it, if it has one.
    action: RepairAction = _UNDECIDED
    owner: PodOwner | None = None
    application: str = ""
    running: bool = False
    deleting: bool = False
    has_sidecar: bool = False  # Whether Istio's proxy is beside a payload.
    labelled: bool = False  # Whether our admission would give the label to a new pod.
    # The stored pod without its labels; None if only an update of the pod can make it unmeshed.
    bare: Candidate | None = None
    labels: bytes = b""  # Its labels as JSON, which takes least memory.

    @property
    def candidate(self) -> Candidate | None:
        """The pod with its labels; None if only an update of the pod can make it unmeshed."""
        if self.bare is None:
            return None
        injection = msgspec.structs.replace(self.bare.injection, labels=_labels.decode(self.labels))
        return msgspec.structs.replace(self.bare, injection=injection)


@dataclass(slots=True, eq=False)
class PodOwner:
    """A controller of pods. The API server does not check that an object has its UID."""

    namespace: str
    reference: OwnerReference
    pods: list[StoredPod] = field(default_factory=list[StoredPod])
    rollout: Rollout = IDLE
    step: Step | None = None  # None: none of its pods is to be restarted.
    waiting: float | None = None  # Since when the controller waits for its turn (monotonic).
    reported: bool = False  # Whether the end of its restarts was reported.
    # A StatefulSet's pods whose name is not back yet, and since when (monotonic).
    gone: dict[str, float] = field(default_factory=dict[str, float])
    # Whether its restart is written to the Lease: only after its pods were listed. Otherwise the
    # next leader would take a pod that we have not seen for the result of a restart not made.
    announced: bool = True

    def __str__(self) -> str:
        return str(self.reference)

    @property
    def key(self) -> str:
        """The key of the controller: its namespace and UID."""
        return f"{self.namespace}/{self.reference.uid}"

    @property
    def replicas(self) -> list[Replica]:
        """Its pods as the rollout sees them."""
        return [pod.replica for pod in self.pods]

    def unlisted(self, pods: Iterable[Candidate]) -> Iterable[Key]:
        """Return its pods that are not among ``pods``, which the API server has listed.

        Raises:
            NotRestartedError: ``pods`` has one that is not known, or that another client deletes.
        """
        missing = {pod.key.uid: pod.key for pod in self.pods}
        ending = self.rollout.replacing.ending if self.rollout.replacing else ()
        for pod in pods:
            _, name, uid = pod.key
            if pod.owner is None or pod.owner.uid != self.reference.uid:
                continue
            if missing.pop(uid, None) is None:
                raise NotRestartedError(f"its controller has made {name}", changed=True)
            if pod.deleting and uid not in ending:
                raise NotRestartedError(f"{name} of its controller is being deleted", changed=True)
        return missing.values()


class CniAgents(NodeAgents):
    """Istio's CNI agents as a watch shows them; a handler of a watch of pods.

    Attributes:
        unread: set when their settings are to be read again.
    """

    def __init__(self, tenants: Callable[[str], bool], changed: Callable[[set[str]], None]) -> None:
        """``tenants``: see `NodeAgents`. ``changed`` gets the nodes whose agents have changed."""
        super().__init__(tenants)
        self.unread = asyncio.Event()
        self._changed = changed

    def apply(self, resource: Pod) -> None:
        """A pod, which may be an agent, looks like this."""
        agent = Agent.of(resource)
        if not is_agent(resource):
            self.delete(agent.key, None)
        elif self.agents.get(agent.key) != agent:
            self.agents[agent.key] = agent
            self._changed({agent.node})
            if not self.read:
                self.unread.set()

    def delete(self, key: Key, _last: Pod | None) -> None:
        """The pod is gone, or is no agent any more."""
        if agent := self.agents.pop(key, None):
            self._changed({agent.node})

    @property
    def read(self) -> bool:
        """Whether the settings of all agents were read, or cannot be."""
        return self.namespaces <= self.configs.keys()

    def configure(self, configs: Mapping[str, CniConfig | str]) -> None:
        """Replace what is known of their settings, by namespace."""
        if configs != self.configs:
            self.configs = {**configs}
            self._changed({agent.node for agent in self.agents.values()})


_Evidence = tuple[float, str, float | None]


class Captures:
    """Counts the time of uncaptured pods, by what this process has seen itself.

    The time of a pod begins again when the pod gets another network or annotation, and when the
    agent of its node was not ready meanwhile. Nothing is kept of a pod that is captured or gone.
    """

    def __init__(self, clock: Clock, settled: float) -> None:
        """``settled``: seconds after which an uncaptured pod is outside; see `rules.SETTLED`."""
        self._now = clock
        self._settled = settled
        self._seen: dict[Key, _Evidence] = {}  # Of each pod whose time has begun.
        self._waiting: dict[Key, float] = {}  # When those are decided on again, in order.

    def settled(self, pod: Candidate, agent: NodeAgent) -> bool:
        """Whether all that matters about the pod has been the same for long enough."""
        same = self._seen.get(pod.key) == _evidence(pod, agent)
        return same and self._waiting.get(pod.key, 0.0) <= self._now().monotonic

    def decided(self, pod: Candidate, agent: NodeAgent, action: RepairAction) -> bool:
        """Remember what follows from a decision on the pod; return whether its time begins."""
        match action:
            case ReportUnmeshed(code=code) | Restart(code=code):
                counts = code in {Code.OUTSIDE, Code.NO_NETWORK}
            case _:
                counts = isinstance(action, AwaitCapture) and bool(
                    pod.addressed or pod.redirection == HALF_CAPTURED
                )
        seen = _evidence(pod, agent)
        if counts and self._seen.get(pod.key) == seen:
            return False
        self.forget(pod.key)
        if counts:
            self._seen[pod.key] = seen
            self._waiting[pod.key] = self._now().monotonic + self._settled
        return counts

    def forget(self, key: Key) -> None:
        """The pod is captured or gone."""
        self._seen.pop(key, None)
        self._waiting.pop(key, None)

    @property
    def until(self) -> float | None:
        """When the next pod is decided on again (monotonic)."""
        return next(iter(self._waiting.values()), None)

    def due(self) -> list[Key]:
        """Take the pods that are decided on again now."""
        now = self._now().monotonic
        due = [*takewhile(lambda key: self._waiting[key] <= now, self._waiting)]
        for key in due:
            del self._waiting[key]
        return due


def _evidence(pod: Candidate, agent: NodeAgent) -> _Evidence:
    return pod.addressed, pod.redirection, agent.ready_since


class PodStore:
    """Pods, their controllers and decisions; ``changed`` has controllers to observe again."""

    def __init__(
        self,
        namespaces: Mapping[str, Mapping[str, str]],
        policy: RepairPolicy,
        recorder: RepairRecorder,
        woken: asyncio.Event,
        options: PodOptions | None = None,
        *,
        terminating: Collection[str] = (),
        clock: Clock = system_clock,
        settled: float = SETTLED,
    ) -> None:
        """Start empty; ``woken`` is set when something is to be decided, or is queued."""
        self._now = clock
        self._terminating = terminating
        self.namespaces = namespaces
        self._policy = policy
        self._options = options or PodOptions()
        self._recorder = recorder
        self._woken = woken
        self.owners: dict[str, PodOwner] = {}
        self._outdated: dict[Key, StoredPod] = {}  # To decide on again.
        self.control_planes, self.applications = ControlPlanes(), Applications()
        self.pods: dict[Key, StoredPod] = {}
        self._by_namespace = defaultdict[str, dict[Key, StoredPod]](dict)  # `pods`, by namespace.
        self.changed = OrderedDict[PodOwner, None]()
        self.captures = Captures(clock, settled)
        self.cni = CniAgents(self.selected, self._agents_changed)
        self._nodes = set[str]()  # Nodes whose agent has changed.

    def apply(self, resource: Pod) -> None:
        """The pod exists and looks like this."""
        self.cni.apply(resource)
        candidate = Candidate.of(resource)
        stored = self.pods.setdefault(candidate.key, StoredPod(candidate.key))
        key = stored.key  # Events bring equal keys, of which only the first is stored.
        candidate = msgspec.structs.replace(candidate, key=key)
        self._by_namespace[key.namespace][key] = stored
        # Only restarts need the other pods of a controller.
        self._join(stored, candidate.owner if self._policy.race is RacePolicy.RESTART else None)
        stored.application = shared(candidate.injection.application)
        stored.has_sidecar = resource.has_sidecar
        stored.running = candidate.phase == "Running"
        stored.deleting = candidate.deleting
        # A pod that is skipped whatever the injectors do matters again only if it changes itself.
        # `inject-selector` may need a pod that opted out once its namespace is selected.
        injection = candidate.injection.admitted(
            self.applications, wanted=self._options.injects(candidate.injection.labels)
        )
        # A pod that refuses a sidecar may be ambient: the CNI ignores labels about injection.
        refuses = injection.asks is False
        action = decide(
            msgspec.structs.replace(candidate, injection=injection),
            Around(msgspec.structs.replace(UNKNOWN, ambient=refuses)),
            self._policy,
        )
        if isinstance(action, Skip) and not (refuses and isinstance(action, NotKnown | Captured)):
            stored.bare, stored.action = None, interned(kept.brief(action))
            self._recorder.forget(key)
            self.captures.forget(key)
            self._update(stored, rollout.replica(candidate, action))
        else:
            stored.labels = interned(kept.packed(candidate.injection.labels))
            stored.bare = msgspec.structs.replace(
                candidate,
                injection=interned(msgspec.structs.replace(candidate.injection, labels={})),
            )
            self._decide(stored)

    def delete(self, key: Key, _last: Pod | None) -> None:
        """The pod is gone, or finished."""
        self.cni.delete(key, None)
        if stored := self.pods.pop(key, None):
            del self._by_namespace[key.namespace][key]
            if not self._by_namespace[key.namespace]:
                del self._by_namespace[key.namespace]
            self._recorder.forget(key)
            self.captures.forget(key)
            self._join(stored, None)

    def set_injectors(self, control_planes: ControlPlanes) -> None:
        """Replace what is known of Istio's injectors."""
        self.control_planes = control_planes
        self.invalidate()

    def set_applications(self, applications: Applications) -> None:
        """Replace the applications that ask for sidecars."""
        self.applications = applications
        self.invalidate()

    def count(self, sidecar: Sidecar) -> int:
        """How many pods are in this state."""
        return len(self.find(sidecar))

    def find(self, sidecar: Sidecar) -> list[StoredPod]:
        """All pods in this state."""
        return [pod for pod in self.pods.values() if pod.sidecar is sidecar]

    def sidecars(self, selected: Collection[str]) -> Counter[str]:
        """How many pods have a sidecar, by namespace: selected ones, and those of applications."""
        return Counter(
            key.namespace
            for key, pod in self.pods.items()
            if pod.has_sidecar
            and (
                key.namespace in selected
                or self.applications.covers(key.namespace, pod.application)
            )
        )

    def invalidate(self, namespace: str | None = None) -> None:
        """Decide again on the pods of a namespace, or on all, when `catch_up` runs next."""
        self._outdated |= self.pods if namespace is None else self._by_namespace.get(namespace, {})
        self._woken.set()

    @property
    def undecided(self) -> bool:
        """Whether decisions are out of date."""
        return bool(self._outdated or self._nodes)

    async def catch_up(self) -> None:
        """Decide again on all pods whose decisions are out of date, in batches."""
        nodes, self._nodes = self._nodes, set[str]()
        self._outdated |= {key: self.pods[key] for key in self.captures.due()}
        if nodes:
            self._outdated |= {
                key: pod for key, pod in self.pods.items() if pod.bare and pod.bare.node in nodes
            }
        while self._outdated:
            for number, key in enumerate([*self._outdated]):
                if number % BATCH == 0:
                    await asyncio.sleep(0)
                stored = self._outdated.pop(key)
                try:
                    self._decide(stored)
                except Exception:  # One pod's failure must not stop the others.
                    self._recorder.unhandled(key)
        self._outdated.clear()  # Its memory is as large as it was.

    def _decide(self, stored: StoredPod) -> None:
        """Decide on a pod by the present state of the store, unless it is gone."""
        candidate = stored.candidate
        if candidate is None or self.pods.get(stored.key) is not stored:
            return
        stored.action = _UNDECIDED  # If the decision fails, nothing is done.
        new, expectation = as_admitted(
            candidate,
            self.namespaces.get(stored.key.namespace),
            self._options,
            self.applications,
            self.expect,
            terminating=self._terminating,
        )
        agent = self.cni.on(candidate.node)
        around = Around(
            expectation,
            self.control_planes.live(expectation.configuration) if expectation.expected else None,
            agent,
            self.captures.settled(candidate, agent),
        )
        action = decide(new, around, self._policy)
        if self.captures.decided(candidate, agent, action):
            self._woken.set()
        stored.action = interned(kept.brief(action))
        stored.labelled = new.injection.labels != candidate.injection.labels
        self._update(stored, rollout.replica(candidate, action))
        if isinstance(action, ReportUnmeshed) and action.unmeshed:
            self._recorder.unmeshed(stored.key, action.reason, action.code, lasts=not action.waits)

    def queue(self, owner: PodOwner, *, restart: bool = True) -> None:
        """Queue a controller if it has a pod to ``restart``, or had one."""
        if restart or owner.step is not None:
            self.changed[owner] = None
            self._woken.set()

    def expect(self, injection: InjectionRequest) -> Expectation:
        """Whether a pod, as it would leave our admission, would get a sidecar now."""
        if injection.namespace in self._terminating:
            return Expectation(
                expected=False,
                reason=f"namespace {injection.namespace} is being deleted, and takes no new pods",
            )
        return self.control_planes.expected(injection)

    def selected(self, namespace: str) -> bool:
        """Whether a namespace is selected."""
        return self._options.namespaces.matches(self.namespaces.get(namespace, {}))

    def forget(self, owner: PodOwner) -> None:
        """Remove a controller that has no pods, unless it was made again since."""
        if not owner.pods and self.owners.get(owner.key) is owner:
            del self.owners[owner.key]

    def _agents_changed(self, nodes: set[str]) -> None:
        """Decide again on the pods of these nodes when `catch_up` runs next."""
        self._nodes |= nodes
        self._woken.set()

    def _update(self, stored: StoredPod, replica: Replica) -> None:
        stored.sidecar = replica.sidecar
        if stored.owner and replica != stored.replica:
            stored.replica = replica
            self.queue(stored.owner, restart=replica.restart)

    def _join(self, stored: StoredPod, reference: OwnerReference | None) -> None:
        """The pod has this controller now, and no longer another controller."""
        old = stored.owner
        uid = reference.uid if reference else ""
        if uid == (old.reference.uid if old else ""):
            return
        if old:
            stored.owner = None
            old.pods.remove(stored)
            name = stored.key.name
            if stored.replica.ordinal >= 0 and all(pod.key.name != name for pod in old.pods):
                gone = {**old.gone, name: self._now().monotonic}
                old.gone = dict([*gone.items()][-_GONE:])  # A tenant may make pods of any name.
            if old.rollout.idle:
                self.forget(old)
            self.queue(old, restart=stored.replica.restart)
        if reference and uid:
            new = PodOwner(stored.key.namespace, reference)
            stored.owner = owner = self.owners.setdefault(new.key, new)
            owner.pods.append(stored)
            owner.gone.pop(stored.key.name, None)
