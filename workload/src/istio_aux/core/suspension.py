"""How a Job gets new pods without counting a failure: it is suspended until its pods are gone.

============ ===================================================== ==============
State        What is found                                         Action
============ ===================================================== ==============
running      a pod of it has no sidecar (`begin`)                  `Suspend`
suspended    some of its pods are still there                      `AwaitPods`
suspended    no pods, but its operator may not know that yet       `AwaitPods`
suspended    all pods are gone, or the Job is finished             `Resume`
suspended    its operator does nothing, or the deadline has passed `Resume`, unchanged
resumed      by somebody else                                      `Unmark`
unmarked     by somebody else, or the Job is being deleted         `Leave`
============ ===================================================== ==============

The training operator (1.9 pkg/controller.v1/common/job.go ReconcileJobs) deletes all pods of a Job
that says ``suspend``, succeeded ones as well, whatever cleanPodPolicy says, and counts no failure.
It makes all pods again when the Job does not say so any more, and ``startTime`` begins again. But a
running pod with a deletionTimestamp then counts as failed (pkg/core/status.go
UpdateJobReplicaStatuses), and a TFJob fails with it: so a Job is resumed only when its pods are
gone and its operator has had time to notice. For batch Jobs, JobSets and TrainJobs see `jobs`.

One write suspends a Job and marks it. A leader resumes every Job with the mark. A suspended Job
without the mark belongs to somebody else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from istio_aux.core import ownership
from istio_aux.core.jobs import (
    KINDS,
    FoundJob,
    Job,
    JobApi,
    api_of,
    may_fail_when_suspended,
    queued_by_kueue,
)
from istio_aux.core.keys import Annotation, text_label
from istio_aux.core.pod import Pod

# Label of a Job that we suspended. An annotation of the same name says since when, and what to do
# if nobody resumes the Job.
MARK = "istio-aux.io/suspended-for"
SIDECAR = "sidecar"  # Value of the label.

_marked = text_label(MARK)
# The annotation begins with the time.
_since = Annotation(
    MARK, lambda text: datetime.strptime(text[:20], "%Y-%m-%dT%H:%M:%S%z"), "a time", longest=512
)

_NOTE = (
    "{:%Y-%m-%dT%H:%M:%SZ} istio-aux suspended this job until its pods are gone, and resumes it"
    " then. If istio-aux is no longer installed, set suspend to false."
)


class SuspensionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds."""

    # Between the end of the last pod and the resumption: the operator watches Jobs and pods on two
    # connections, and must not see the resumption first.
    settle: float = 2.0
    doubt: float = 60.0  # After which an operator that has done nothing is considered down.
    longest: float = 600.0  # How long a Job stays suspended beyond the grace period of its pods.
    grace: float = 3600.0  # How much of that is waited for: a checkpoint may take many minutes.
    look: float = 1.0  # Between two looks at a suspended Job.
    late: float = 120.0  # After which pods that are still there are reported: most have 30 s.
    first_retry: float = 1.0  # After an error; each further one doubles it.
    last_retry: float = 30.0
    # Between two searches for marked Jobs: a request that seemed lost may have been performed.
    search: float = 600.0


class Suspend(msgspec.Struct, frozen=True):
    """Suspend the Job, and mark it with the time ``now``."""

    reason: str
    now: datetime


class AwaitPods(msgspec.Struct, frozen=True):
    """Look again a little later; ``pod`` is one that is still there, if there is one."""

    reason: str
    pod: Pod | None = None


class Resume(msgspec.Struct, frozen=True):
    """Resume the Job and remove the mark; ``unchanged``: not all of its pods were replaced."""

    reason: str
    unchanged: bool = False


class Unmark(msgspec.Struct, frozen=True):
    """Remove the mark, and nothing else."""

    reason: str


class Leave(msgspec.Struct, frozen=True):
    """Do nothing, now or later."""

    reason: str


def begin(job: Job, pod: Pod, now: datetime, *, above: Sequence[FoundJob] = ()) -> Suspend | Leave:
    """Decide whether to suspend ``job`` so that ``pod``, which it controls, is replaced.

    If the Job is part of others, the last one ``above`` it is suspended instead.
    """
    if reason := next(_reasons_to_leave(job, pod, above), None):
        return Leave(reason)
    return Suspend("all its pods are replaced, so that they get their sidecar", now)


def is_marked(job: Job) -> bool:
    """Whether we suspended the Job."""
    return _marked.on(job.metadata)


def since(job: Job, first_seen: datetime) -> datetime:
    """When the Job was suspended, as its annotation says.

    Anybody may write that annotation. ``first_seen``, when this process first saw the Job
    suspended, counts if it is earlier, or the annotation has no time.
    """
    return min(_since.get(job.metadata) or first_seen, first_seen)


def own(api: JobApi, job: Job, pods: Iterable[Pod]) -> list[Pod]:
    """Those of the pods with the label of the Job that are its own, and go when it is suspended."""
    return [
        pod
        for pod in pods
        if (api.makes_jobs or _controls(job, pod))
        and not (api.keeps_finished and pod.status.phase in {"Succeeded", "Failed"})
    ]


def follow(
    job: Job,
    left: Sequence[Pod],
    *,
    now: datetime,
    since: datetime,
    waited: float,
    gone: float,
    limits: SuspensionLimits,
) -> AwaitPods | Resume | Unmark | Leave:
    """Decide what to do with a Job that was suspended, by us or by an earlier leader.

    Args:
        job: as it was read, before its pods.
        left: its own pods (`own`).
        now: the present.
        since: when it was suspended.
        waited: seconds since this process first saw it suspended.
        gone: seconds since this process first saw it without pods.
        limits: how long to wait.
    """
    overdue = now >= _deadline(left, since, limits)
    return next(_actions(job, left, waited, gone, limits, overdue=overdue))


def patch(api: JobApi, job: Job, action: Suspend | Resume | Unmark) -> Mapping[str, object]:
    """The merge patch for the Job; its uid and resourceVersion are preconditions."""
    note = _NOTE.format(action.now.astimezone(UTC)) if isinstance(action, Suspend) else None
    body: dict[str, object] = {
        "metadata": {
            "uid": job.metadata.uid,
            "resourceVersion": job.metadata.resource_version,
            "labels": {MARK: SIDECAR if note else None},
            "annotations": {MARK: note},
        }
    }
    if not isinstance(action, Unmark):
        policy = {"suspend": note is not None}
        body["spec"] = {api.policy: policy} if api.policy else policy
    return body


def _deadline(left: Sequence[Pod], since: datetime, limits: SuspensionLimits) -> datetime:
    """When the Job is resumed whatever its pods do.

    A deletionTimestamp is the end of the grace period, which the author of the pod chose.
    """
    ends = [end for pod in left if (end := pod.metadata.deletion_timestamp)]
    waited_for = min(max((since, *ends)), since + timedelta(seconds=limits.grace))
    return waited_for + timedelta(seconds=limits.longest)


def _actions(
    job: Job,
    left: Sequence[Pod],
    waited: float,
    gone: float,
    limits: SuspensionLimits,
    *,
    overdue: bool,
) -> Iterator[AwaitPods | Resume | Unmark | Leave]:
    """What to do; the first one counts."""
    if not is_marked(job):
        yield Leave("it does not carry our mark")
    if job.deleting:
        yield Leave("it is being deleted")
    if not job.run_policy.suspend:
        yield Unmark("somebody else has resumed it")
    if job.finished:
        yield Resume("it is finished")
    seen = job.has("Suspended")
    untouched = all(pod.metadata.deletion_timestamp is None for pod in left)
    if not seen and untouched and waited >= limits.doubt:
        why = f"its operator has not noticed within {limits.doubt:g} s that it is suspended"
        yield Resume(why, unchanged=True)
    if left:
        names = ", ".join(sorted(pod.metadata.name for pod in left)[:3])
        there = f"{len(left)} of its pods are still there: {names}"
        if overdue:
            yield Resume(f"it was suspended for too long, and {there}", unchanged=True)
        yield AwaitPods(there, left[0])
    if not seen:
        yield AwaitPods("its operator has not noticed yet that it is suspended")
    if gone < limits.settle:
        yield AwaitPods("its pods are gone, and its operator has to notice")
    yield Resume("all its pods are gone")


def _reasons_to_leave(job: Job, pod: Pod, above: Sequence[FoundJob]) -> Iterator[str]:
    """Why the Job, or the last one above it, must not be suspended."""
    api = api_of(ownership.controller(pod))
    if api is None or not _controls(job, pod):
        yield "it is not the Job that made the pod"
        return
    found = [(api, job), *((KINDS[owner.reference.kind], owner.job) for owner in above)]
    for of, each in found:
        if each.deleting:
            yield "it is being deleted"
        if each.finished:
            yield "it is finished"
        if each.run_policy.suspend:
            yield "somebody else has suspended it"
        if label := queued_by_kueue(each, pod):
            yield f"Kueue decides when it is suspended: label {label}"
        if (manager := each.run_policy.managed_by or of.manager) != of.manager:
            yield f"it is managed by {manager}"
        if above and may_fail_when_suspended(each):
            yield "a podFailurePolicy may fail it for the way in which a pod ends"
    api, top = found[-1]
    owner = ownership.controller_of(top.metadata)
    if above and owner:
        yield f"it is part of {owner.kind} {owner.name}, which might not expect that"
    if text_label(api.job_name).get(pod.metadata) != top.metadata.name:
        # All of its pods are found by that label.
        yield f"its pod has no label {api.job_name}: {top.metadata.name}"


def _controls(job: Job, pod: Pod) -> bool:
    owner = ownership.controller(pod)
    return owner is not None and owner.uid == job.metadata.uid and bool(owner.uid)
