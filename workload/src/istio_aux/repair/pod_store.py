"""All pods that are watched, their controllers, and the decision about each pod without a sidecar.

`core.injection.expected` says which pods should have a sidecar, `core.repair.decide` what to do
about one that has none. An event of a pod decides on that pod alone; what concerns many pods marks
them as stale, and they are decided on in batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice

from msgspec import structs

from istio_aux.core import jobs, ownership, repair, rollout
from istio_aux.core.applications import LABEL, Applications
from istio_aux.core.injection import Expectation, expected
from istio_aux.core.mesh import Mesh
from istio_aux.core.pod import Container, NewPod, OwnerReference, Pod, PodStatus
from istio_aux.core.policy import RepairPolicy
from istio_aux.core.repair import RepairAction, ReportUnmeshed, Restart
from istio_aux.core.rollout import Replica, Rollout, Sidecar, Step
from istio_aux.core.start import INJECT, INJECTED, MIRROR
from istio_aux.kube.objects import Key, key_of, shared
from istio_aux.recorder import RepairRecorder

BATCH = 50
"""Pods that are decided on at a stretch, so that reviews need not wait for all of them."""

_NEW = Rollout()
_UNKNOWN = Expectation(expected=None, reason="Istio's injectors are not known yet")

_ANNOTATIONS = (INJECT, INJECTED, MIRROR, jobs.INDEX_FAILURES)
"""Annotations that decide; others may be as long as the whole pod."""


@dataclass(slots=True)
class BarePod:
    """More about a pod without a sidecar whose decision depends on other objects, too.

    ``pod`` is reduced to what decides, and ``version`` is its newest resourceVersion. ``since`` is
    when it became unmeshed; None: it is not.
    """

    pod: Pod
    version: str
    action: RepairAction
    since: datetime | None = None

    @property
    def unmeshed(self) -> bool:
        """Whether the pod should have a sidecar."""
        action = self.action
        return isinstance(action, Restart) or (
            isinstance(action, ReportUnmeshed) and action.unmeshed
        )


@dataclass(slots=True, eq=False)
class StoredPod:
    """A pod. ``bare`` is None where only a change of the pod itself can make it unmeshed.

    ``application`` is the value of its label `LABEL`, or empty.
    """

    key: Key
    replica: Replica
    owner: PodOwner | None = None
    application: str = ""
    running: bool = False
    bare: BarePod | None = None

    def same(self, pod: Pod) -> bool:
        """Whether nothing that decides is different in a later version of the pod."""
        known, bare, status = self.replica, self.bare, pod.status
        present = known.sidecar is Sidecar.PRESENT
        reference = ownership.controller(pod)
        if (
            not (present or bare)
            or (reference.uid if reference else "")
            != (self.owner.reference.uid if self.owner else "")
            or (pod.metadata.deletion_timestamp is not None) is not known.deleting
            or (status.phase == "Running") is not self.running
            or pod.labels.get(LABEL, "") != self.application
            or rollout.serves(pod, present) is not known.ready
        ):
            return False
        if bare is None:
            return True
        notes, old = pod.annotations, bare.pod
        return (
            status.phase == old.status.phase
            and pod.labels == old.labels
            and all(notes.get(name) == old.annotations.get(name) for name in _ANNOTATIONS)
            and not (reference and ownership.is_job(reference) and status != old.status)
        )


@dataclass(slots=True, eq=False)
class PodOwner:
    """A controller of pods. Nobody checks that its UID is that of an object in the namespace.

    Attributes:
        finished: whether it is a batch Job that is known to be finished.
        job: the batch Job as it was read last, before a pod of it was to be restarted.
        step: what is next; None: none of its pods is to be restarted.
        timer: ends when time alone may change ``step``.
        task: restarts one of its pods.
    """

    namespace: str
    reference: OwnerReference
    pods: list[StoredPod] = field(default_factory=list[StoredPod])
    finished: bool = False
    job: jobs.Job | None = None
    rollout: Rollout = _NEW
    step: Step | None = None
    timer: asyncio.TimerHandle | None = None
    task: asyncio.Task[None] | None = None

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
    """See the module.

    ``unknown`` has the pods of which it is not known whether they should have a sidecar,
    ``changed`` the controllers whose rollout may have to do something.
    """

    def __init__(
        self,
        namespaces: Mapping[str, Mapping[str, str]],
        policy: RepairPolicy,
        recorder: RepairRecorder,
        clock: Callable[[], datetime],
        woken: asyncio.Event,
    ) -> None:
        """Start empty; ``woken`` is set when something is to be decided, or is queued."""
        self._namespaces, self._policy = namespaces, policy
        self._recorder, self._clock, self._woken = recorder, clock, woken
        self._owners: dict[str, PodOwner] = {}
        self._bare: dict[Key, StoredPod] = {}
        self._doubted: set[str | None] = set()
        self._stale: dict[Key, None] = {}
        self.mesh, self.applications = Mesh(), Applications()
        self.pods: dict[Key, StoredPod] = {}
        self.unmeshed: dict[Key, StoredPod] = {}
        self.unknown: set[Key] = set()
        self.changed: dict[PodOwner, None] = {}

    def apply(self, pod: Pod) -> None:
        """The pod exists and looks like this."""
        key = key_of(pod)
        stored = self.pods.get(key)
        if stored is not None and stored.same(pod):
            if stored.bare:
                stored.bare.version = pod.metadata.resource_version
            return
        # What is skipped without knowing the injectors only a change of the pod can bring back.
        action = repair.decide(pod, _UNKNOWN, self._policy, live=None)
        replica = rollout.replica(pod, action)
        before = stored.replica if stored else None
        if stored is None:
            stored = self.pods[key] = StoredPod(key, replica)
        self._join(stored, ownership.controller(pod))
        stored.replica = replica
        stored.application = shared(pod.labels.get(LABEL, ""))
        stored.running = pod.status.phase == "Running"
        if isinstance(action, repair.Skip):
            stored.bare = None
            self._settle(key)
        else:
            since = stored.bare.since if stored.bare else None
            version = pod.metadata.resource_version
            stored.bare = BarePod(_reduced(pod), version, action, since)
            self._bare[key] = stored
            self.decide(stored, stored.bare)
        if stored.owner and stored.replica != before:
            self.queue(stored.owner, restart=stored.replica.restart)

    def delete(self, key: Key) -> None:
        """The pod is gone, or finished."""
        if stored := self.pods.pop(key, None):
            self._settle(key)
            self._join(stored, None)

    def decide(self, stored: StoredPod, bare: BarePod) -> RepairAction:
        """Decide on a pod by all that is known now, and store the decision."""
        self._stale.pop(stored.key, None)
        bare.action = action = self._decision(bare.pod, stored.owner)
        stored.replica = rollout.replica(bare.pod, action)
        if bare.unmeshed:
            # A pod gets its sidecar when it is created, or never.
            bare.since = bare.since or bare.pod.metadata.creation_timestamp or self._clock()
            self.unmeshed[stored.key] = stored
        else:
            bare.since = None
            self.unmeshed.pop(stored.key, None)
        if isinstance(action, ReportUnmeshed):
            (self.unknown.discard if action.unmeshed else self.unknown.add)(stored.key)
            if action.unmeshed:
                self._recorder.unmeshed(stored.key, action.reason, lasts=not action.waits)
        else:
            self.unknown.discard(stored.key)
        return action

    def doubt(self, namespace: str | None = None) -> None:
        """Decide again on the pods of a namespace, or on all, when `catch_up` runs next."""
        self._doubted.add(namespace)
        self._woken.set()

    async def catch_up(self) -> None:
        """Decide again on all pods that are in doubt, in batches."""
        while self._doubted or self._stale:
            if self._doubted:
                doubted, self._doubted = self._doubted, set[str | None]()
                keys = (key for key in self._bare if None in doubted or key.namespace in doubted)
                self._stale |= dict.fromkeys(keys)
            for key in list(islice(self._stale, BATCH)):
                stored = self._bare[key]
                assert stored.bare
                before = stored.replica
                self.decide(stored, stored.bare)
                if stored.owner and stored.replica != before:
                    self.queue(stored.owner, restart=stored.replica.restart)
            await asyncio.sleep(0)

    def queue(self, owner: PodOwner, *, restart: bool = True) -> None:
        """Queue a controller that has a pod to ``restart``, or had one."""
        if restart or owner.step is not None:
            self.changed[owner] = None
            self._woken.set()

    def expect(self, pod: NewPod) -> Expectation:
        """Whether the pod, as it would leave our admission, would get a sidecar now."""
        if not self.mesh.known:
            return _UNKNOWN
        labels = self._namespaces.get(pod.metadata.namespace)
        return expected(pod, labels, self.mesh.hooks, self.mesh.policies)

    def forget(self, owner: PodOwner) -> None:
        """Remove a controller that has no pods."""
        if not owner.pods:
            self._owners.pop(owner.key, None)

    def _decision(self, pod: Pod, owner: PodOwner | None) -> RepairAction:
        """Decide on a pod.

        A batch Job counts as unfinished until it is read, right before a pod of it is restarted: a
        thousand Jobs need not be read because of a few.
        """
        expectation = self.expect(self.applications.judged(pod))
        live = self.mesh.live(expectation.configuration) if expectation.expected else None
        job = owner.job if owner else None
        return repair.decide(
            pod, expectation, self._policy, live=live, job=job,
            owner_finished=owner is not None and owner.finished,
            meshed=job is not None
            and owner is not None
            and any(replica.sidecar is Sidecar.PRESENT for replica in owner.replicas),
        )  # fmt: skip

    def _join(self, stored: StoredPod, reference: OwnerReference | None) -> None:
        """The pod has this controller now, and no longer another one."""
        old, uid = stored.owner, reference.uid if reference else ""
        if uid == (old.reference.uid if old else ""):
            return
        if old:
            stored.owner = None
            old.pods.remove(stored)
            if old.rollout.idle:
                self.forget(old)
            self.queue(old, restart=stored.replica.restart)
        if reference and uid:
            new = PodOwner(stored.key.namespace, reference)
            stored.owner = owner = self._owners.setdefault(new.key, new)
            owner.pods.append(stored)

    def _settle(self, key: Key) -> None:
        """Nothing is to be decided about the pod."""
        self._bare.pop(key, None)
        self._stale.pop(key, None)
        self.unmeshed.pop(key, None)
        self.unknown.discard(key)
        self._recorder.forget(key)


def _reduced(pod: Pod) -> Pod:
    """The pod without what decides nothing. Only of a Job's pod the containers matter."""
    notes = {name: pod.annotations[name] for name in _ANNOTATIONS if name in pod.annotations}
    labels = {shared(name): shared(value) for name, value in pod.labels.items()}
    owner = ownership.controller(pod)
    owners = (owner,) if owner else None
    metadata = structs.replace(
        pod.metadata, labels=labels, annotations=notes, owner_references=owners
    )
    if owner and ownership.is_job(owner):
        containers, init = _names(pod.containers), _names(pod.init_containers)
        spec = structs.replace(pod.spec, containers=containers, init_containers=init)
        return structs.replace(pod, metadata=metadata, spec=spec)
    spec = structs.replace(pod.spec, containers=None, init_containers=None)
    ready = tuple(c for c in pod.status.conditions or () if c.type == "Ready")
    status = PodStatus(phase=pod.status.phase, conditions=ready)
    return structs.replace(pod, metadata=metadata, spec=spec, status=status)


def _names(containers: Iterable[Container]) -> tuple[Container, ...]:
    return tuple(structs.replace(container, args=None, env=None) for container in containers)
