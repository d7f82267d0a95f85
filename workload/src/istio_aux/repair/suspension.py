"""How a Job gets new pods without counting a failure: it is suspended until its pods are gone.

============ ===================================================== ==============
State        What is read                                          Action
============ ===================================================== ==============
running      a pod of it has no sidecar (`begin`)                  `Suspend`
suspended    some of its pods are still there, or it is not known  `AwaitPods`
suspended    no pods, but its operator may not know that yet       `AwaitPods`
suspended    all pods are gone, or the Job is finished             `Resume`
suspended    its operator does nothing, or the deadline has passed `Resume`, unchanged
resumed      by another client                                     `Unmark`
unmarked     the request to suspend it may still arrive            `AwaitPods`
unmarked     by another client, or the Job is being deleted         `Leave`
============ ===================================================== ==============

The training operator (1.9 pkg/controller.v1/common/job.go ReconcileJobs) deletes all pods of a Job
that says ``suspend``, succeeded pods as well, whatever cleanPodPolicy says, and counts no failure.
It makes all pods again when the Job does not say so any more, and ``startTime`` begins again. But a
running pod with a deletionTimestamp then counts as failed (pkg/core/status.go
UpdateJobReplicaStatuses), and a TFJob fails with it: so a Job is resumed only when its pods are
gone and its operator has had time to notice. For batch Jobs, JobSets and TrainJobs see `jobs`.

One write suspends a Job and marks it: a label, and an annotation with the time. A leader resumes
every Job with the mark. A suspended Job without the mark belongs to another client.

A Job that cannot be suspended keeps its pods: an eviction may fail it.

The annotation outlives the suspension. It keeps every leader from suspending the Job again within
`AGAIN`, whatever has become of its pods: the work of a Job is lost once. It is on the Job that is
suspended, because the Jobs that a JobSet or a TrainJob makes again have other UIDs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from istio_aux.model import kept, owners
from istio_aux.model.annotations import Annotation, label_with, text_label
from istio_aux.model.names import SUSPENDED as MARK
from istio_aux.model.names import SUSPENDED_FOR as SIDECAR
from istio_aux.model.owners import KINDS, FoundJob, Job, JobApi
from istio_aux.model.pod import Key
from istio_aux.repair.candidate import Candidate

AGAIN = timedelta(days=1)
"""A Job is not suspended again within this time, nor is a restart that did not help repeated."""

_LETS_SUSPEND = {("batch", "CronJob"), ("kubeflow.org", "Trial")}
"""Owners that read the conditions of their batch Jobs and write nothing to them (k8s@1.36
cronjob_controllerv2.go; Katib 0.16 trial_controller.go reconcileJob)."""

_marked = text_label(MARK)
# The annotation begins with the time.
_since = Annotation(
    MARK, lambda text: datetime.strptime(text[:20], "%Y-%m-%dT%H:%M:%S%z"), "a time", longest=512
)

_SUSPENDED = (
    "{:%Y-%m-%dT%H:%M:%SZ} istio-aux suspended this job until its pods are gone, and resumes it"
    " then. If istio-aux is no longer installed, set suspend to false."
)
_RESUMED = (
    "{:%Y-%m-%dT%H:%M:%SZ} this job is resumed, after istio-aux had suspended it to give its pods"
    " their sidecar. It is not suspended again for a day, or until this annotation is removed."
)


class SuspensionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds."""

    # Between the end of the last pod and the resumption: the operator watches Jobs and pods on two
    # connections, and must not see the resumption first.
    settle: float = 2.0
    # For a request to suspend a Job that was not answered: the API server takes up to 60 s.
    unanswered: float = 90.0
    unnoticed: float = 60.0  # After which an operator that has done nothing is considered down.
    longest: float = 600.0  # How long a Job stays suspended beyond the grace period of its pods.
    grace: float = 3600.0  # How much of that is waited for: a checkpoint may take many minutes.
    # Between two reads of a suspended Job; while it has pods, later a tenth of its waiting time.
    interval: float = 1.0
    answer: float = 10.0  # For one read. A Job must not wait for the answer about another.
    late: float = 120.0  # After which pods that are still there are reported: most have 30 s.
    first_retry: float = 1.0  # After an error; each further one doubles it.
    last_retry: float = 30.0
    # Between two searches for marked Jobs, each time longer: a request that seemed lost, or that of
    # an earlier leader, may have been performed.
    first_search: float = 5.0
    search: float = 600.0
    at_once: int = 8  # Suspended Jobs that are read at the same time; of one namespace a quarter.
    usual: float = 0.1  # For what is read of one of them.
    # Jobs of a kind and a namespace that a search finds; a later one finds the others. We suspend a
    # few at a time, but a tenant may write the mark.
    adopted: int = 1000


class Suspend(kept.Reasoned, frozen=True):
    """Suspend the Job, and mark it."""


class PodsLeft(msgspec.Struct, frozen=True):
    """The Job's own pods that were listed. ``unknown`` says why there may be others."""

    pods: Sequence[Candidate] = ()
    unknown: str = ""


class AwaitPods(kept.Reasoned, frozen=True):
    """Decide again a little later; ``pod`` is a pod that is still there, if there is one."""

    pod: Key | None = None


class Resume(kept.Reasoned, frozen=True):
    """Resume the Job and remove the mark.

    ``unchanged``: not all of its pods were replaced; ``untouched``: none was, so no work was lost.
    """

    unchanged: bool = False
    untouched: bool = False


class Unmark(kept.Reasoned, frozen=True):
    """Remove the mark, and nothing else."""


class Leave(kept.Reasoned, frozen=True):
    """Do nothing; ``lasts``: now or later."""

    lasts: bool = True


def begin(
    jobs: Sequence[FoundJob], pod: Candidate, now: datetime, *, meshed: bool = False
) -> Suspend | Leave:
    """Decide whether to suspend a Job so that ``pod`` of it is replaced.

    ``jobs`` has the Job, and those that it is part of: the last one is suspended. ``meshed``:
    another pod of the Job has a sidecar, and need not lose its work.
    """
    if reason := next(_reasons_to_leave(jobs, pod), None):
        return Leave(reason)
    if reason := next(_reasons_to_wait(jobs, now, meshed=meshed), None):
        return Leave(reason, lasts=False)
    return Suspend("all its pods are replaced, so that they get into the mesh")


def is_marked(job: Job) -> bool:
    """Whether we suspended the Job, and have not resumed it."""
    return _marked.get(job.metadata) == SIDECAR


def since(job: Job, first_seen: datetime) -> datetime:
    """When the Job was suspended, as its annotation says.

    A tenant may write that annotation. ``first_seen``, when this process first saw the Job
    suspended, counts if it is earlier, or the annotation has no time.
    """
    return min(_since.get(job.metadata) or first_seen, first_seen)


def allowed(pods: Iterable[Candidate], since: datetime, limits: SuspensionLimits) -> float:
    """For how many seconds the Job is suspended at most, whatever its pods do.

    A deletionTimestamp is the end of the grace period, which the author of the pod chose. The
    API server stores both times, so no clock of ours matters.
    """
    ends = [pod.ends for pod in pods if pod.ends]
    grace = (max((since, *ends)) - since).total_seconds()
    return min(grace, limits.grace) + limits.longest


def own(api: JobApi, job: Job, pods: Iterable[Candidate]) -> list[Candidate]:
    """Return the pods with the label of the Job that it controls and deletes when suspended."""
    uid = job.metadata.uid
    return [
        pod
        for pod in pods
        if (api.makes_jobs or (uid and pod.owner and pod.owner.uid == uid))
        and not (api.keeps_finished and pod.ended)
    ]


def follow(
    job: Job,
    left: PodsLeft,
    *,
    waited: float,
    gone: float,
    overdue: bool,
    limits: SuspensionLimits,
    marked: bool = True,
) -> Iterator[AwaitPods | Resume | Unmark | Leave]:
    """Yield what to do with a Job that we, or an earlier leader, suspended. The first one counts.

    ``job`` was read before ``left``, its `own` pods. This process first saw it suspended ``waited``
    seconds ago, and without pods ``gone`` seconds ago; ``marked``: with our mark since then.
    ``overdue``: it has been suspended for longer than is `allowed`.
    """
    if not is_marked(job):
        if not marked and waited < limits.unanswered and not job.deleting:
            yield AwaitPods("it is not known yet whether it is suspended")
        yield Leave("it does not carry our mark")
    if job.deleting:
        yield Leave("it is being deleted")
    if not job.run_policy.suspend:
        yield Unmark("another client has resumed it")
    if job.finished:
        yield Resume("it is finished")
    seen, pods = job.has("Suspended"), left.pods
    untouched = all(pod.ends is None for pod in pods)
    if not seen and untouched and not left.unknown and waited >= limits.unnoticed:
        why = f"its operator has not noticed within {limits.unnoticed:g} s that it is suspended"
        yield Resume(why, unchanged=True, untouched=bool(pods))
    if pods or left.unknown:
        names = ", ".join(sorted(pod.key.name for pod in pods)[:3])
        there = f"{len(pods)} of its pods are still there: {names}" if pods else ""
        unsure = left.unknown and f"it is not known whether its pods are gone: {left.unknown}"
        why = "; ".join(filter(None, (there, unsure)))
        if overdue:
            yield Resume(f"it was suspended for too long, and {why}", unchanged=True)
        yield AwaitPods(why, pods[0].key if pods else None)
    if not seen:
        yield AwaitPods("its operator has not noticed yet that it is suspended")
    if gone < limits.settle:
        yield AwaitPods("its pods are gone, and its operator has to notice")
    yield Resume("all its pods are gone")


def patch(
    api: JobApi, job: Job, action: Suspend | Resume | Unmark, now: datetime
) -> Mapping[str, object]:
    """The merge patch for the Job; its uid and resourceVersion are preconditions."""
    suspends = isinstance(action, Suspend)
    untouched = isinstance(action, Resume) and action.untouched
    text = _SUSPENDED if suspends else _RESUMED
    body: dict[str, object] = {
        "metadata": {
            "uid": job.metadata.uid,
            "resourceVersion": job.metadata.resource_version,
            "labels": {MARK: SIDECAR if suspends else None},
            "annotations": {MARK: None if untouched else text.format(now.astimezone(UTC))},
        }
    }
    if not isinstance(action, Unmark):
        policy = {"suspend": suspends}
        body["spec"] = {api.policy: policy} if api.policy else policy
    return body


def _reasons_to_leave(jobs: Sequence[FoundJob], pod: Candidate) -> Iterator[str]:
    """Why the last of the Jobs must not be suspended."""
    for reference, job in ((each.reference, each.job) for each in jobs):
        if job.deleting:
            yield "it is being deleted"
        if job.finished:
            yield "it is finished"
        if job.run_policy.suspend:
            yield "another client has suspended it"
        if label := label_with(owners.KUEUE, job.metadata.labels or {}, pod.wish.labels):
            yield f"Kueue decides when it is suspended: label {label}"
        usual = KINDS[reference.kind].manager
        if (manager := job.run_policy.managed_by or usual) != usual:
            yield f"it is managed by {manager}"
        if _may_fail(job):
            yield "a podFailurePolicy may fail it for the way in which a pod ends"
    top = jobs[-1]
    owner, api = owners.controller(top.job.metadata), KINDS[top.reference.kind]
    known = api is owners.BATCH and owner and (owners.group(owner), owner.kind) in _LETS_SUSPEND
    if owner and not (known or api.version == owners.TRAINING):
        yield f"it is part of {owner.kind} {owner.name}, which might not expect that"
    # All of its pods are found by this label.
    if text_label(api.job_name).get(pod.wish.labels) != top.job.metadata.name:
        yield f"its pod has no label {api.job_name}: {top.job.metadata.name}"


def _reasons_to_wait(jobs: Sequence[FoundJob], now: datetime, *, meshed: bool) -> Iterator[str]:
    """Why the last of the Jobs is not suspended now."""
    # Clocks differ, and a tenant may write the annotation: a later time counts for as long.
    times = [before for each in jobs if (before := _since.get(each.job.metadata))]
    if before := next((each for each in times if abs(now - each) < AGAIN), None):
        yield (
            f"it was suspended for its sidecars on {before:%Y-%m-%d %H:%M:%S}Z, and is not"
            " suspended again within a day"
        )
    # The workers of a set or of a training job need each other, and one alone is of no use.
    if meshed and KINDS[jobs[-1].reference.kind] is owners.BATCH:
        yield "another pod of it is in the mesh, and would lose its work"


def _may_fail(job: Job) -> bool:
    """Whether a rule may fail the Job, or one of the set, for the way in which a pod ends.

    Unlike the count of failures, rules also apply to pods without the finalizer.
    """
    of_sets = [each.template.spec.pod_failure_policy for each in job.spec.replicated_jobs or ()]
    policies = (job.spec.pod_failure_policy, *of_sets)
    rules = [rule for policy in policies if policy for rule in policy.rules or ()]
    return any(rule.action == "FailJob" for rule in rules)
