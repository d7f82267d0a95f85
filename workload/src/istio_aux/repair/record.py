"""What the controller remembers of one pod, and of one controller of pods: facts, few and small."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from msgspec import structs

from istio_aux.core import batchjobs, injected, ownership
from istio_aux.core.applications import LABEL
from istio_aux.core.pacing import Course, Group, Member, Mesh, Step
from istio_aux.core.pod import Container, OwnerReference, Pod, PodStatus
from istio_aux.core.repair import Action, Report, Restart
from istio_aux.core.start import INJECT, MIRROR
from istio_aux.kube.resources import Key, shared

NEW = Course()
"""Nothing was done about the pods of a controller."""

_TOLD = 8
"""Reasons of one pod that are remembered; refusals may have many texts."""

_UNSEEN = Member(name="", uid="", mesh=Mesh.UNKNOWN)

_READ = (INJECT, injected.ANNOTATION, MIRROR, batchjobs.INDEX_FAILURES)
"""Annotations that decide; others may be as long as the whole pod."""


@dataclass(slots=True)
class Case:
    """What is known beside that of a pod without a sidecar.

    Attributes:
        pod: reduced to what decides.
        action: the newest decision.
        since: since when it is unmeshed; None: it is not.
        told: reasons that were logged last.
        announced: whether its Event was sent.
    """

    pod: Pod
    action: Action
    since: datetime | None = None
    told: tuple[str, ...] = ()
    announced: bool = False

    @property
    def unmeshed(self) -> bool:
        """Whether the pod should have a sidecar and has none."""
        return isinstance(self.action, Restart) or (
            isinstance(self.action, Report) and self.action.unmeshed
        )

    def first(self, reason: str) -> bool:
        """Whether this reason has not been logged lately; from now on it has."""
        if reason in self.told:
            return False
        self.told = (*self.told, reason)[-_TOLD:]
        return True


@dataclass(slots=True, eq=False)
class Record:
    """One pod.

    Attributes:
        key: which.
        member: the pod as pacing sees it.
        owner: its controller, if it has one.
        application: value of the label that names it, or empty.
        running: whether its phase is Running.
        case: None when nothing but a change of the pod itself can make it unmeshed.
    """

    key: Key
    member: Member = _UNSEEN
    owner: Owner | None = None
    application: str = ""
    running: bool = False
    case: Case | None = None


@dataclass(slots=True, eq=False)
class Owner:
    """One controller of pods.

    Attributes:
        namespace: of its pods, and of itself.
        reference: which. Nobody checks that the UID in it is that of an object of the namespace.
        records: its pods.
        finished: whether it is known to be over, if it is a batch Job.
        job: the batch Job as it was read last, right before it was to be disturbed.
        course: what was done about its pods, and what came of it.
        step: what is next; None: none of its pods is to be restarted.
        timer: rings when time alone changes that.
        task: who restarts one of its pods.
    """

    namespace: str
    reference: OwnerReference
    records: list[Record] = field(default_factory=list[Record])
    finished: bool = False
    job: batchjobs.Job | None = None
    course: Course = NEW
    step: Step | None = None
    timer: asyncio.TimerHandle | None = None
    task: asyncio.Task[None] | None = None

    def __str__(self) -> str:
        return f"{self.reference.kind}/{self.reference.name}"

    @property
    def key(self) -> str:
        """Which controller, for good."""
        return owner_key(self.namespace, self.reference)

    @property
    def meshed(self) -> bool:
        """Whether one of its pods has a sidecar."""
        return any(record.member.mesh is Mesh.MESHED for record in self.records)

    @property
    def idle(self) -> bool:
        """Whether nothing was done about its pods that has to be remembered."""
        return self.course.victim is None and not self.course.stopped

    def group(self, at: datetime) -> Group:
        """The controller as pacing sees it at this time of day."""
        members = tuple(record.member for record in self.records)
        return Group(members, self.course, at.timestamp())


def owner_key(namespace: str, reference: OwnerReference) -> str:
    """What tells a controller from all others: its UID, among the objects of its namespace."""
    return f"{namespace}/{reference.uid}"


def application_of(pod: Pod) -> str:
    """The name of the application that the pod belongs to, or nothing."""
    return shared(pod.labels.get(LABEL, ""))


def reduced(pod: Pod) -> Pod:
    """The pod without what decides nothing; only of a Job it matters what its containers did."""
    notes = {name: pod.annotations[name] for name in _READ if name in pod.annotations}
    labels = {shared(name): shared(value) for name, value in pod.labels.items()}
    owner = ownership.controller(pod)
    metadata = structs.replace(
        pod.metadata,
        labels=labels,
        annotations=notes,
        owner_references=(owner,) if owner else None,
    )
    if owner and ownership.is_job(owner):
        spec = structs.replace(
            pod.spec,
            containers=_reduced(pod.containers),
            init_containers=_reduced(pod.init_containers),
        )
        return structs.replace(pod, metadata=metadata, spec=spec)
    spec = structs.replace(pod.spec, containers=None, init_containers=None)
    ready = tuple(c for c in pod.status.conditions or () if c.type == "Ready")
    status = PodStatus(phase=pod.status.phase, conditions=ready)
    return structs.replace(pod, metadata=metadata, spec=spec, status=status)


def _reduced(containers: Iterable[Container]) -> tuple[Container, ...]:
    return tuple(structs.replace(container, args=None, env=None) for container in containers)
