"""Whose turn it is: which unmeshed pods are restarted next, and which have to wait.

Only the order and the pace may live here, no effect and no clock; whether a pod may be restarted at
all is for `repair`. Pods of one controller are restarted one at a time, and the next one only once
the last one's replacement is Ready with a sidecar: a restart that does not help is not repeated.

Theory of operation. For each controller whoever acts keeps a `Course`: what was done, and what
came of it. It calls `begun` right before an eviction is sent, `refused` or `superseded` when
nothing was evicted, and `seen` with the controller's pods whenever it looks. An eviction without
an answer needs no call: `seen` finds out. Times are seconds of one steady clock, but for the
creation of pods. Of a course, the next leader needs only that a restart did not help: `failed`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum

import msgspec
from msgspec import structs

from istio_aux.core import ownership
from istio_aux.core.pod import Pod, Struct
from istio_aux.core.repair import Action, Ignore, Report, Restart, has_sidecar


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds in seconds, and in numbers at once."""

    at_once: int = 5
    """Controllers with a restart under way, in the whole cluster."""
    patience: float = 600.0
    """For a replacement: as long as a Deployment's progressDeadlineSeconds by default."""
    doubt: float = 90.0
    """After which a pod that is still there was not evicted, whatever became of the request: for
    60 s the API server works on one (kube-apiserver --request-timeout), and a watch may lag."""
    first_retry: float = 1.0
    """After a refused eviction: a budget's status lags a moment behind a pod that is Ready. Where
    the API server wants more peace it says so (Retry-After)."""
    last_retry: float = 300.0
    memory: float = 86400.0
    """For a restart that did not help; then one more is tried. A later pod of the controller that
    has its sidecar ends it at once."""
    second_look: float = 1.0
    """After a pod had changed since it was chosen; a watch lags milliseconds behind."""


class Mesh(StrEnum):
    """What a pod is to the mesh."""

    MESHED = "meshed"
    UNMESHED = "unmeshed"
    UNKNOWN = "unknown"
    """It has no sidecar, and it is not known whether it should."""
    UNWANTED = "unwanted"
    """It has no sidecar, and it should not."""


class Member(Struct, frozen=True):
    """A pod of a controller, as it is now; `member` makes one.

    Attributes:
        name: of the pod, in its controller's namespace.
        uid: of the pod.
        mesh: what it is to the mesh.
        ready: whether it serves; a meshed pod of a Job counts, it may be over before it does.
        deleting: whether it is on its way out.
        restart: whether `repair.decide` wants it restarted.
        ordinal: its place in its StatefulSet; None in others.
        created: when, by the clock of the API server, in seconds since 1970; 0 if it is not known.
    """

    name: str
    uid: str
    mesh: Mesh
    ready: bool = False
    deleting: bool = False
    restart: bool = False
    ordinal: int | None = None
    created: float = 0.0


class Victim(Struct, frozen=True):
    """A pod that is being replaced, since when, and the UIDs that its controller had then."""

    pod: Member
    since: float
    known: frozenset[str]


class Course(Struct, frozen=True):
    """What was done about the pods of one controller, and what came of it.

    Attributes:
        victim: the pod whose replacement is awaited.
        stopped: why nothing more is done, empty if it goes on.
        failed: when the pod was created that shows it, as `Member` has it.
        refusals: evictions in a row that were refused.
        refusal: why the last one was.
        retry_at: when the next eviction may be tried.
        served: when the last eviction was begun; None: never.
    """

    victim: Victim | None = None
    stopped: str = ""
    failed: float = 0.0
    refusals: int = 0
    refusal: str = ""
    retry_at: float = 0.0
    served: float | None = None


class Group(Struct, frozen=True):
    """The pods of one controller, all of them, meshed or not, and their course so far.

    ``at`` is the time of day, as `Member.created` has it.
    """

    members: tuple[Member, ...]
    course: Course = Course()
    at: float = math.inf


class Step(Struct, frozen=True, tag_field="step"):
    """What all answers have: a reason for people."""

    reason: str


class Next(Step, frozen=True, tag="next"):
    """Evict this pod now."""

    pod: Member


class Hold(Step, frozen=True, tag="hold"):
    """Ask again when a pod of the controller changes, or at ``until`` if that is set."""

    until: float | None = None


class Stop(Step, frozen=True, tag="stop"):
    """No further pod of this controller is restarted, and somebody should know why."""


class Done(Step, frozen=True, tag="done"):
    """There is no pod to be restarted."""


def member(pod: Pod, action: Action) -> Member:
    """See a pod as pacing does, with what `repair.decide` says about it."""
    meshed = has_sidecar(pod)
    deleting = pod.metadata.deletion_timestamp is not None
    created = pod.metadata.creation_timestamp
    return Member(
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        mesh=Mesh.MESHED if meshed else _mesh(action),
        ready=not deleting and _serves(pod, meshed=meshed),
        deleting=deleting,
        restart=isinstance(action, Restart),
        ordinal=ownership.ordinal(pod),
        created=created.timestamp() if created else 0.0,
    )


def due(
    waiting: Mapping[str, Course], under_way: Iterable[Course], now: float, pace: Pace
) -> list[str]:
    """Say whose turn it is: those that were never served first, then those served longest ago.

    Args:
        waiting: every controller whose next step is `Next`, by any key.
        under_way: courses of all others, as far as they have a victim.
        now: the present time, of the clock that the courses are of.
        pace: the bounds; at most ``at_once`` restarts are under way, new ones included.
    """
    free = pace.at_once - sum(_under_way(course, now, pace) for course in under_way)

    def place(owner: str) -> tuple[float, str]:
        served = waiting[owner].served
        return (-math.inf if served is None else served, owner)

    return heapq.nsmallest(free, waiting, key=place) if free > 0 else []


def step(group: Group, now: float, pace: Pace) -> Step:
    """Say what is next for one controller, as if there were no others."""
    course = group.course
    if course.stopped:
        return Stop(reason=course.stopped)
    if (victim := course.victim) is not None:
        awaited = f"{victim.pod.name} was evicted, and no replacement is Ready with a sidecar"
        if not _under_way(course, now, pace):
            return Stop(reason=f"{awaited} after {pace.patience:g} s")
        doubtful = victim.since + pace.doubt
        until = doubtful if now < doubtful else victim.since + pace.patience
        return Hold(reason=f"{awaited} yet", until=until)
    possible = [pod for pod in group.members if pod.restart]
    if not possible:
        return Done(reason="no pod is to be restarted")
    if now < course.retry_at:
        return Hold(
            reason=f"not restarted: {course.refusal}; tried again later", until=course.retry_at
        )
    return _coming(group, now, pace) or _choose(group.members, possible)


def begun(group: Group, pod: Member, now: float) -> Course:
    """What is known once ``pod`` is about to be evicted."""
    known = frozenset(found.uid for found in group.members)
    victim = Victim(pod=pod, since=now, known=known)
    return structs.replace(group.course, victim=victim, served=now)


def refused(course: Course, why: str, now: float, pace: Pace, *, asked: float = 0.0) -> Course:
    """What is known once the API server has said that it did not evict the pod, and ``why``.

    Usually a PodDisruptionBudget does not allow it now (429). It is tried again, ever later, but
    not before the ``asked`` seconds (Retry-After) are over.
    """
    # Bounded: a float has no 2 ** 1024.
    wait = min(pace.first_retry * 2 ** min(course.refusals, 32), pace.last_retry)
    again = now + max(wait, asked)
    refusals = course.refusals + 1
    return structs.replace(course, victim=None, refusals=refusals, refusal=why, retry_at=again)


def superseded(course: Course, why: str, now: float, pace: Pace) -> Course:
    """What is known once it turned out that the pod is not what it was when it was chosen.

    Nothing was evicted, and nobody refused: the watch has told more in a moment.
    """
    return structs.replace(course, victim=None, refusal=why, retry_at=now + pace.second_look)


def failed(course: Course, created: datetime) -> Course:
    """What the next leader knows once a pod, ``created`` after a restart, has no sidecar either."""
    why = f"a pod made at {created:%Y-%m-%d %H:%M:%S}Z, after another was evicted, has no sidecar"
    return Course(stopped=f"{why} either", failed=created.timestamp(), served=course.served)


def seen(group: Group, now: float, pace: Pace) -> Course:
    """What is known of the pod that was evicted, and of its replacement, after another look."""
    course, victim = group.course, group.course.victim
    if victim is None:
        helps = course.stopped and any(_later(pod, course) for pod in group.members)
        return Course(served=course.served) if helps else course
    for pod in group.members:
        if pod.uid == victim.pod.uid:
            if pod.deleting or now < victim.since + pace.doubt:
                return course
            return refused(course, f"{pod.name} is still there", now, pace)
    replacements = [pod for pod in group.members if _replaces(pod, victim)]
    for pod in replacements:
        if pod.mesh is Mesh.UNMESHED:
            why = f"{pod.name}, made after {victim.pod.name} was evicted, has no sidecar either"
            return Course(stopped=why, failed=pod.created, served=course.served)
    if any(pod.ready and pod.mesh in {Mesh.MESHED, Mesh.UNWANTED} for pod in replacements):
        return Course(served=course.served)
    return course


def _serves(pod: Pod, *, meshed: bool) -> bool:
    owner = ownership.controller(pod)
    if meshed and owner is not None and ownership.is_job(owner):
        return True
    return any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions or ())


def _mesh(action: Action) -> Mesh:
    match action:
        case Ignore():
            return Mesh.UNWANTED
        case Report(unmeshed=False):
            return Mesh.UNKNOWN
        case Report() | Restart():
            return Mesh.UNMESHED


def _under_way(course: Course, now: float, pace: Pace) -> bool:
    victim = course.victim
    return victim is not None and now < victim.since + pace.patience


def _coming(group: Group, now: float, pace: Pace) -> Hold | None:
    """Wait for a pod that may be in place of one that another process has restarted.

    As long as for any replacement: what keeps it from being Ready may have nothing to do with it.
    """
    young = group.at - pace.patience
    for pod in group.members:
        awaited = pod.mesh is Mesh.MESHED and not (pod.ready or pod.deleting)
        if awaited and pod.created > young:
            reason = f"{pod.name} has its sidecar and is not Ready yet"
            return Hold(reason=reason, until=now + pod.created - young)
    return None


def _later(pod: Member, course: Course) -> bool:
    """Whether the pod shows that a restart helps after all."""
    return pod.mesh is Mesh.MESHED and not pod.deleting and pod.created > course.failed


def _choose(members: Sequence[Member], possible: Sequence[Member]) -> Next | Hold:
    """Say which pod goes first: of a StatefulSet the last one, of others one that is not Ready.

    A StatefulSet makes no pod as long as one before it is not Ready (k8s@1.36
    stateful_set_control.go processReplica), unless its podManagementPolicy is Parallel, which is
    not known here. So nothing behind such a pod is evicted, and the pod itself goes before others.
    """
    if any(pod.ordinal is None for pod in possible):
        chosen = min(possible, key=lambda pod: (pod.ready, pod.name))
        return Next(reason=f"{chosen.name} is next", pod=chosen)
    gap = min((pod for pod in members if not pod.ready), key=_place, default=None)
    if gap is not None:
        if gap.restart:
            return Next(reason=f"{gap.name} is next: it is not Ready", pod=gap)
        possible = [pod for pod in possible if _place(pod) < _place(gap)]
        if not possible:
            return Hold(reason=f"{gap.name} is not Ready, and comes before the others")
    chosen = max(possible, key=_place)
    return Next(reason=f"{chosen.name} is next: it has the highest ordinal", pod=chosen)


def _place(pod: Member) -> int:
    return -1 if pod.ordinal is None else pod.ordinal


def _replaces(pod: Member, victim: Victim) -> bool:
    """Whether the pod was made for the victim: by its name in a StatefulSet, else by its age."""
    if pod.uid in victim.known:
        return False
    return victim.pod.ordinal is None or pod.name == victim.pod.name
