"""How a Job gets new pods without a failure: suspended until all are gone, then resumed.

Only the decision may live here; who acts on it reads the Job and its pods again each time.

Theory of operation of the training operator (1.9 pkg/controller.v1/common/job.go ReconcileJobs).
While a Job that is not finished says ``suspend``, its operator deletes all its pods, succeeded ones
as well, whatever cleanPodPolicy says, and counts no failure. Once it does not say so any more, the
operator makes all pods anew, and ``startTime`` begins again. But a running pod that is still on its
way out then counts as failed (pkg/core/status.go UpdateJobReplicaStatuses), and a TFJob fails with
it; so a Job is resumed when all its pods are gone, and the operator has had time to notice. The
controller of batch Jobs counts no failure either: see `batchjobs`.

What we suspended carries our mark from the same write on, and a Job with the mark is ours to
resume: the next leader finds it. A Job that is suspended without the mark is somebody else's. No
Job stays suspended longer than `Patience` says, whatever becomes of its pods.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from istio_aux.core import ownership
from istio_aux.core.pod import Condition, Metadata, OwnerReference, Pod, Struct

MARK = "istio-aux.io/suspended-for"
"""Label of a Job that we suspended and will resume. An annotation of the same name says since when,
and what to do if nobody resumes it."""
SIDECAR = "sidecar"
"""Value of the label."""
_SINCE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
"""What the annotation begins with."""
JOB_NAME = "training.kubeflow.org/job-name"
"""Label of a pod, by which its operator finds it (1.9 common_types.go JobNameLabel)."""

_FINISHED = frozenset({"Succeeded", "Failed", "Complete", "SuccessCriteriaMet", "FailureTarget"})


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of Job that can be suspended.

    Attributes:
        api_version: which version of its API is used.
        kind: its name.
        policy: the fields of its spec that lead to ``suspend`` and ``managedBy``.
        job_name: label of its pods, by which they are found.
        manager: ``managedBy`` of those that its own controller deals with.
    """

    api_version: str
    kind: str
    policy: tuple[str, ...]
    job_name: str
    manager: str


_BATCH = Kind(
    api_version="batch/v1",
    kind="Job",
    policy=(),
    job_name="batch.kubernetes.io/job-name",
    manager="kubernetes.io/job-controller",
)
_TRAINING = tuple(
    Kind(
        api_version=ownership.TRAINING,
        kind=kind,
        policy=("runPolicy",),
        job_name=JOB_NAME,
        # 1.9 common_types.go RunPolicy.
        manager="kubeflow.org/training-operator",
    )
    for kind in sorted(ownership.TRAINING_KINDS)
)
KINDS: Mapping[str, Kind] = {kind.kind: kind for kind in (_BATCH, *_TRAINING)}
"""All that can be suspended, by name."""


def kind_of(owner: OwnerReference | None) -> Kind | None:
    """The owner's kind, if it can be suspended."""
    kind = KINDS.get(owner.kind) if owner else None
    return kind if owner and kind and kind.api_version == owner.api_version else None


class RunPolicy(Struct, frozen=True):
    """``spec.runPolicy``, which all kinds of the training operator have."""

    suspend: bool | None = None
    managed_by: str | None = None


class Spec(RunPolicy, frozen=True):
    """``spec`` of a Job: a batch Job has there what others have in ``runPolicy``."""

    run_policy: RunPolicy | None = None


class Status(Struct, frozen=True):
    """``status`` of a Job."""

    conditions: tuple[Condition, ...] | None = None


class Job(Struct, frozen=True):
    """A Job of any kind, reduced to what is read here."""

    metadata: Metadata = Metadata()
    spec: Spec = Spec()
    status: Status | None = None

    @property
    def marked(self) -> bool:
        """Whether it says that we suspended it."""
        return MARK in (self.metadata.labels or {})

    @property
    def run_policy(self) -> RunPolicy:
        """Where it says whether it is suspended, and by whom it is managed."""
        return self.spec.run_policy or self.spec

    def is_(self, *conditions: str) -> bool:
        """Whether one of these conditions is true of it."""
        found = self.status.conditions or () if self.status else ()
        return any(c.type in conditions and c.status == "True" for c in found)


class Decision(Struct, frozen=True, tag_field="action"):
    """What all answers have: a reason for people."""

    reason: str


class Suspend(Decision, frozen=True, tag="suspend"):
    """Suspend the Job, and mark it with the time ``now``."""

    now: datetime


class Wait(Decision, frozen=True, tag="wait"):
    """Look again a little later.

    Attributes:
        pod: one that is to go and is still there, if there is one.
    """

    pod: Pod | None = None


class Resume(Decision, frozen=True, tag="resume"):
    """Resume the Job, and take the mark off.

    Attributes:
        without_restart: whether its pods were not, or not all, replaced.
    """

    without_restart: bool = False


class Release(Decision, frozen=True, tag="release"):
    """Take the mark off, and nothing else: somebody else has resumed the Job."""


class Leave(Decision, frozen=True, tag="leave"):
    """It is not ours to deal with."""


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds in seconds."""

    settle: float = 2.0
    """Between the end of the last pod and the resumption: the operator learns of Jobs and of pods
    on two connections, and must not see the first before the second."""
    doubt: float = 60.0
    """After which an operator that has done nothing is not at work."""
    longest: float = 600.0
    """How long a Job stays suspended at most, not counting the grace period of its pods."""
    grace: float = 3600.0
    """How much of that grace period is waited for: a checkpoint may take many minutes."""


def begin(job: Job, pod: Pod, now: datetime) -> Suspend | Leave:
    """Decide whether ``job`` is to be suspended so that ``pod``, which it controls, is replaced."""
    if reason := next(_not_ours(job, pod), None):
        return Leave(reason=reason)
    return Suspend(reason="all its pods are replaced, so that they get their sidecar", now=now)


def since(job: Job, first_seen: datetime) -> datetime:
    """When the Job was suspended, as its annotation says.

    Anybody may have written that: it is ``first_seen``, when this process first saw it suspended,
    if the annotation says nothing, or something later.
    """
    found = _SINCE.match((job.metadata.annotations or {}).get(MARK, ""))
    try:
        return min(datetime.fromisoformat(found[0]), first_seen) if found else first_seen
    except ValueError:  # Such as the 31st of February.
        return first_seen


def own(job: Job, pods: Iterable[Pod]) -> list[Pod]:
    """Those of the pods that the Job controls."""
    return [pod for pod in pods if _is_of(pod, job)]


def follow(
    job: Job,
    left: Sequence[Pod],
    *,
    now: datetime,
    since: datetime,
    waited: float,
    gone: float,
    patience: Patience,
) -> Wait | Resume | Release | Leave:
    """Decide what is next for a Job that was suspended, by us or by an earlier leader.

    Args:
        job: the Job, read before its pods were.
        left: its own pods, in any phase, deleted or not.
        now: the time of day.
        since: when it was suspended.
        waited: seconds since this process first saw it suspended.
        gone: seconds since this process first found none of its pods.
        patience: the bounds.
    """
    overdue = now >= _deadline(left, since, patience)
    return next(_steps(job, left, waited, gone, patience, overdue=overdue))


def patch(kind: Kind, job: Job, action: Suspend | Resume | Release) -> Mapping[str, object]:
    """What to merge into the Job, only as it was read: uid and resourceVersion are preconditions.

    Suspension and mark change in one write.
    """
    suspend = isinstance(action, Suspend)
    body: dict[str, object] = {
        "metadata": {
            "uid": job.metadata.uid,
            "resourceVersion": job.metadata.resource_version,
            "labels": {MARK: SIDECAR if suspend else None},
            "annotations": {MARK: _note(action.now) if isinstance(action, Suspend) else None},
        }
    }
    if not isinstance(action, Release):
        spec: dict[str, object] = {"suspend": suspend}
        for field in reversed(kind.policy):
            spec = {field: spec}
        body["spec"] = spec
    return body


def _note(now: datetime) -> str:
    """What the annotation says to people, beginning with the time."""
    return (
        f"{now.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ} istio-aux suspended this job until its pods are"
        " gone, and resumes it then. If istio-aux is no longer installed, set suspend to false."
    )


def _deadline(left: Sequence[Pod], since: datetime, patience: Patience) -> datetime:
    """When the Job is resumed whatever its pods do.

    A deletionTimestamp is the end of the pod's grace period, which the pod's author chose.
    """
    ends = [end for pod in left if (end := pod.metadata.deletion_timestamp)]
    waited_for = min(max((since, *ends)), since + timedelta(seconds=patience.grace))
    return waited_for + timedelta(seconds=patience.longest)


def _steps(
    job: Job,
    left: Sequence[Pod],
    waited: float,
    gone: float,
    patience: Patience,
    *,
    overdue: bool,
) -> Iterator[Wait | Resume | Release | Leave]:
    """What there is to do; the first counts, and the last one is always there."""
    if not job.marked:
        yield Leave(reason="it does not carry our mark")
    if job.metadata.deletion_timestamp is not None:
        yield Leave(reason="it is being deleted")
    if not job.run_policy.suspend:
        yield Release(reason="somebody else has resumed it")
    if job.is_(*_FINISHED):
        yield Resume(reason="it is finished")
    seen = job.is_("Suspended")
    untouched = all(pod.metadata.deletion_timestamp is None for pod in left)
    if not seen and untouched and waited >= patience.doubt:
        why = f"its operator has not noticed within {patience.doubt:g} s that it is suspended"
        yield Resume(reason=why, without_restart=True)
    if left:
        names = ", ".join(sorted(pod.metadata.name for pod in left)[:3])
        there = f"{len(left)} of its pods are still there: {names}"
        if overdue:
            yield Resume(reason=f"it was suspended for too long, and {there}", without_restart=True)
        yield Wait(reason=there, pod=left[0])
    if not seen:
        yield Wait(reason="its operator has not noticed yet that it is suspended")
    if gone < patience.settle:
        yield Wait(reason="its pods are gone, and its operator has to notice")
    yield Resume(reason="all its pods are gone")


def _not_ours(job: Job, pod: Pod) -> Iterator[str]:
    """Reasons not to suspend a Job."""
    kind = kind_of(ownership.controller(pod))
    if kind is None or not _is_of(pod, job):
        yield "it is not the Job that made the pod"
        return
    if job.metadata.deletion_timestamp is not None:
        yield "it is being deleted"
    if job.is_(*_FINISHED):
        yield "it is finished"
    if job.run_policy.suspend:
        yield "somebody else has suspended it"
    for label in (*(job.metadata.labels or {}), *pod.labels):
        if label.startswith(ownership.KUEUE):
            yield f"Kueue says when it is suspended: label {label}"
    if (manager := job.run_policy.managed_by or kind.manager) != kind.manager:
        yield f"it is managed by {manager}"
    if pod.labels.get(kind.job_name) != job.metadata.name:
        # All of its pods are found by that label.
        yield f"its pod has no label {kind.job_name}: {job.metadata.name}"


def _is_of(pod: Pod, job: Job) -> bool:
    owner = ownership.controller(pod)
    return owner is not None and owner.uid == job.metadata.uid and bool(owner.uid)
