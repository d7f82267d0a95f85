"""All pods that are watched, their controllers, and the decision about each pod without a sidecar.

`core.injection.expected` says which pods should have a sidecar, `core.repair.decide` what to do
about one that has none. An event of a pod decides on that pod alone. What concerns many pods puts
them in doubt, and they are decided on in batches.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec
from msgspec import structs

from istio_aux.core import jobs, ownership, repair, rollout
from istio_aux.core.applications import Applications, PodOptions, application_of, left_out
from istio_aux.core.injection import Expectation, expected
from istio_aux.core.injectors import Mesh
from istio_aux.core.moment import Clock
from istio_aux.core.pod import Container, OwnerReference, Pod
from istio_aux.core.policy import RepairPolicy
from istio_aux.core.repair import RepairAction, ReportUnmeshed
from istio_aux.core.rollout import Replica, Rollout, Sidecar, Step
from istio_aux.core.start import INJECT, INJECTED, MIRROR
from istio_aux.kube.clock import system_clock
from istio_aux.kube.objects import Key, key_of, shared
from istio_aux.recorder import RepairRecorder

_GONE = 10  # Pods of a StatefulSet that are remembered: those that went last.
BATCH = 50  # Pods that are decided on before other tasks, such as reviews, get a turn.

_UNDECIDED = Replica("", "", Sidecar.UNKNOWN)
_UNKNOWN = Expectation(expected=None, reason="Istio's injectors are not known yet")

_NONE = msgspec.Raw()  # Any other keeps the whole text in memory that it was decoded from.

# Annotations that decide; others may be as long as the whole pod.
_ANNOTATIONS = (INJECT, INJECTED, MIRROR)
_MOST_OWNERS = 2  # Controllers that are kept: a pod with two has none (`ownership.controller`).
_LONGEST = 16  # Characters of one that are kept: a longer value is no value.


@dataclass(slots=True, eq=False)
class StoredPod:
    """A pod, and the decision about it."""

    key: Key
    replica: Replica = _UNDECIDED
    reason: str = ""
    owner: PodOwner | None = None
    application: str = ""
    running: bool = False
    # The pod itself, reduced. None if only a change of the pod can make it unmeshed.
    bare: Pod | None = None


@dataclass(slots=True, eq=False)
class PodOwner:
    """A controller of pods. Nobody checks that its UID is that of an object in the namespace."""

    namespace: str
    reference: OwnerReference
    pods: list[StoredPod] = field(default_factory=list[StoredPod])
    job: jobs.Job | None = None  # The batch Job, read before a pod of it is restarted.
    rollout: Rollout = field(default_factory=Rollout)
    step: Step | None = None  # None: none of its pods is to be restarted.
    waiting: float | None = None  # Since when it waits for its turn (monotonic).
    reported: bool = False  # Whether it was reported that its restarts have stopped.
    # A StatefulSet's pods whose name is not back yet, and since when (monotonic).
    gone: dict[str, float] = field(default_factory=dict[str, float])

    def __str__(self) -> str:
        return f"{self.reference.kind}/{self.reference.name}"

    @property
    def key(self) -> str:
        """Identifies it: its UID, among the objects of its namespace."""
        return f"{self.namespace}/{self.reference.uid}"

    @property
    def replicas(self) -> list[Replica]:
        """Its pods as the rollout sees them."""
        return [pod.replica for pod in self.pods]


class PodStore:
    """Pods, their controllers and decisions; ``changed`` has controllers to look at again."""

    def __init__(
        self,
        namespaces: Mapping[str, Mapping[str, str]],
        policy: RepairPolicy,
        recorder: RepairRecorder,
        woken: asyncio.Event,
        options: PodOptions | None = None,
        *,
        clock: Clock = system_clock,
    ) -> None:
        """Start empty; ``woken`` is set when something is to be decided, or is queued."""
        self._now = clock
        self._namespaces, self._policy = namespaces, policy
        self._options = options or PodOptions()
        self._recorder, self._woken = recorder, woken
        self.owners: dict[str, PodOwner] = {}
        self._doubted: set[str | None] = set()
        self._deciding = False
        self.mesh, self.applications = Mesh(), Applications()
        self.pods: dict[Key, StoredPod] = {}
        self.changed = OrderedDict[PodOwner, None]()

    def apply(self, pod: Pod) -> None:
        """The pod exists and looks like this."""
        key = key_of(pod)
        stored = self.pods.setdefault(key, StoredPod(key))
        self._join(stored, ownership.controller(pod))
        stored.application = shared(application_of(pod))
        stored.running = pod.status.phase == "Running"
        # A pod that is skipped whatever the injectors do matters again only if it changes itself.
        # `inject-selector` may need one that opted out once its namespace is selected.
        possible = self.applications.judged(pod, self._options.inject)
        action = repair.decide(possible, _UNKNOWN, self._policy, live=None)
        if isinstance(action, repair.Skip):
            stored.bare = None
            self._recorder.forget(key)
            self._update(stored, rollout.replica(pod, action))
        else:
            stored.bare = _reduced(pod)
            self.decide(stored, stored.bare)

    def delete(self, key: Key) -> None:
        """The pod is gone, or finished."""
        if stored := self.pods.pop(key, None):
            self._recorder.forget(key)
            self._join(stored, None)

    def find(self, sidecar: Sidecar) -> list[StoredPod]:
        """All pods with, or without, a sidecar like this."""
        return [pod for pod in self.pods.values() if pod.replica.sidecar is sidecar]

    def decide(self, stored: StoredPod, bare: Pod) -> RepairAction:
        """Decide on a pod by all that is known now, and store the decision.

        A batch Job counts as unfinished until it is read, right before a pod of it is restarted: a
        thousand Jobs need not be read because of a few.
        """
        judged = self.judged(bare)
        if why := left_out(bare, self._options.pods, self.applications):
            expectation = Expectation(expected=False, reason=why)
        else:
            expectation = self.expect(judged)
        live = self.mesh.live(expectation.configuration) if expectation.expected else None
        owner = stored.owner if stored.owner and stored.owner.job else None
        action = repair.decide(
            judged, expectation, self._policy, live=live, job=owner.job if owner else None,
            meshed=owner is not None
            and any(pod.replica.sidecar is Sidecar.PRESENT for pod in owner.pods),
        )  # fmt: skip
        stored.reason = action.reason
        self._update(stored, rollout.replica(bare, action))
        if isinstance(action, ReportUnmeshed) and action.unmeshed:
            self._recorder.unmeshed(stored.key, action.reason, lasts=not action.waits)
        return action

    def judged(self, pod: Pod) -> Pod:
        """The pod as admission would make it now; the same object if it would not change it."""
        namespace = self._namespaces.get(pod.metadata.namespace, {})
        return self._options.judged(pod, namespace, self.applications)

    def doubt(self, namespace: str | None = None) -> None:
        """Decide again on the pods of a namespace, or on all, when `catch_up` runs next."""
        self._doubted.add(namespace)
        self._woken.set()

    @property
    def undecided(self) -> bool:
        """Whether pods are in doubt."""
        return bool(self._doubted) or self._deciding

    async def catch_up(self) -> None:
        """Decide again on all pods that are in doubt, in batches."""
        while self._doubted:
            doubted, self._doubted = self._doubted, set[str | None]()
            self._deciding = True
            everywhere = None in doubted
            pods = [p for p in self.pods.values() if everywhere or p.key.namespace in doubted]
            for number, stored in enumerate(pods):
                if number % BATCH == 0:
                    await asyncio.sleep(0)
                if stored.bare is None or self.pods.get(stored.key) is not stored:
                    continue
                try:
                    self.decide(stored, stored.bare)
                except Exception:  # One pod's failure must not stop the others.
                    self._recorder.unhandled(stored.key)
        self._deciding = False

    def queue(self, owner: PodOwner, *, restart: bool = True) -> None:
        """Queue a controller that has a pod to ``restart``, or had one."""
        if restart or owner.step is not None:
            self.changed[owner] = None
            self._woken.set()

    def expect(self, pod: Pod) -> Expectation:
        """Whether the pod, as it would leave our admission, would get a sidecar now."""
        if not self.mesh.known:
            return _UNKNOWN
        labels = self._namespaces.get(pod.metadata.namespace)
        return expected(pod, labels, self.mesh.hooks, self.mesh.policies)

    def forget(self, owner: PodOwner) -> None:
        """Remove a controller that has no pods, unless it was made again since."""
        if not owner.pods and self.owners.get(owner.key) is owner:
            del self.owners[owner.key]

    def _update(self, stored: StoredPod, replica: Replica) -> None:
        if replica != stored.replica:
            stored.replica = replica
            if stored.owner:
                self.queue(stored.owner, restart=replica.restart)

    def _join(self, stored: StoredPod, reference: OwnerReference | None) -> None:
        """The pod has this controller now, and no longer another one."""
        old, uid = stored.owner, reference.uid if reference else ""
        if uid == (old.reference.uid if old else ""):
            return
        if old:
            stored.owner = None
            old.pods.remove(stored)
            name, numbered = stored.key.name, stored.replica.ordinal is not None
            if numbered and all(pod.key.name != name for pod in old.pods):
                old.gone[name] = self._now().monotonic
                # A tenant may make pods of any name.
                while len(old.gone) > _GONE:
                    del old.gone[next(iter(old.gone))]
            if old.rollout.idle:
                self.forget(old)
            self.queue(old, restart=stored.replica.restart)
        if reference and uid:
            new = PodOwner(stored.key.namespace, reference)
            stored.owner = owner = self.owners.setdefault(new.key, new)
            owner.pods.append(stored)
            owner.gone.pop(stored.key.name, None)


def _reduced(pod: Pod) -> Pod:
    """The pod without what decides nothing."""
    every = pod.metadata.annotations or {}
    notes = {name: every[name][:_LONGEST] for name in _ANNOTATIONS if name in every}
    labels = {shared(name): shared(value) for name, value in pod.labels.items()}
    owners = tuple(owner for owner in pod.metadata.owner_references or () if owner.controller)
    metadata = structs.replace(
        pod.metadata, labels=labels, annotations=notes, owner_references=owners[:_MOST_OWNERS]
    )
    containers, init = _names(pod.containers), _names(pod.init_containers)
    spec = structs.replace(
        pod.spec, containers=containers, init_containers=init, resources=_NONE, overhead=_NONE
    )
    return structs.replace(pod, metadata=metadata, spec=spec)


def _names(containers: Iterable[Container]) -> tuple[Container, ...]:
    return tuple(
        structs.replace(container, args=None, env=None, ports=None, resources=_NONE)
        for container in containers
    )
