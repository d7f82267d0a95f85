"""How a pod of a batch Job may be replaced, and what that costs the Job.

An evicted pod counts as a failure of its Job, unless podFailurePolicy says otherwise, and a Job
that has had its backoffLimit of failures fails with the next one. A suspended Job counts none: its
controller takes its finalizer off a pod before it deletes it (k8s@1.36 job_controller.go
deleteJobPods). `tests/cluster/test_batch_jobs.py` shows both with the real controller.
"""

from __future__ import annotations

from collections.abc import Iterator

from istio_aux.core import ownership
from istio_aux.core.pod import Condition, Metadata, OwnerReference, Pod, Struct

INDEX_FAILURES = "batch.kubernetes.io/job-index-failure-count"
"""Annotation of a pod: how often its index has failed (with backoffLimitPerIndex)."""

_OVER = frozenset({"Complete", "Failed", "SuccessCriteriaMet", "FailureTarget"})
"""Conditions of a Job after which its controller makes no pod (job_controller.go syncJob)."""
_CONTROLLER = "kubernetes.io/job-controller"
"""``managedBy`` of Jobs that Kubernetes itself deals with."""
_DISRUPTED = "DisruptionTarget"
"""Condition that an eviction sets on a pod (k8s@1.36 eviction.go); a suspension does not."""
_FAIL_WITH_A_JOB = {
    "JobSet": "jobset.x-k8s.io",
    "TrainJob": "trainer.kubeflow.org",
}
"""Owners of Jobs that fail, or begin again, when one of their Jobs fails, with their API groups."""


class Pattern(Struct, frozen=True):
    """One of ``onPodConditions``."""

    type: str = ""
    status: str = "True"


class Codes(Struct, frozen=True):
    """``onExitCodes``; which ones a program has when it is told to stop is not known."""


class Rule(Struct, frozen=True):
    """One of ``podFailurePolicy.rules``; the first that matches counts."""

    action: str = ""
    on_exit_codes: Codes | None = None
    on_pod_conditions: tuple[Pattern, ...] | None = None


class FailurePolicy(Struct, frozen=True):
    """``spec.podFailurePolicy``."""

    rules: tuple[Rule, ...] | None = None


class Spec(Struct, frozen=True):
    """``spec`` of a Job; the API server sets ``backoffLimit`` where its author does not."""

    suspend: bool | None = None
    managed_by: str | None = None
    backoff_limit: int | None = None
    backoff_limit_per_index: int | None = None
    pod_failure_policy: FailurePolicy | None = None


class Uncounted(Struct, frozen=True):
    """``status.uncountedTerminatedPods``: UIDs of pods that will be counted in a moment."""

    failed: tuple[str, ...] | None = None


class Status(Struct, frozen=True):
    """``status`` of a Job."""

    conditions: tuple[Condition, ...] | None = None
    failed: int | None = None
    terminating: int | None = None
    uncounted_terminated_pods: Uncounted | None = None


class Job(Struct, frozen=True):
    """A Job of ``batch/v1``, reduced to what is read here."""

    metadata: Metadata = Metadata()
    spec: Spec = Spec()
    status: Status = Status()


class Decision(Struct, frozen=True, tag_field="way"):
    """What all answers have: a reason for people."""

    reason: str


class Spare(Decision, frozen=True, tag="spare"):
    """No pod of the Job is touched."""


class Evict(Decision, frozen=True, tag="evict"):
    """The pod is evicted; the reason says what that costs the Job."""


class Suspend(Decision, frozen=True, tag="suspend"):
    """The Job is suspended until its pods are gone; the reason says what that costs."""


def is_batch(owner: OwnerReference) -> bool:
    """Whether the owner is a Job of Kubernetes itself."""
    return owner.kind == "Job" and owner.api_version.startswith("batch/")


def over(job: Job) -> bool:
    """Whether the Job has succeeded or failed, or is being deleted."""
    ended = any(c.type in _OVER and c.status == "True" for c in job.status.conditions or ())
    return ended or job.metadata.deletion_timestamp is not None


def decide(job: Job, pod: Pod, *, meshed: bool) -> Spare | Evict | Suspend:
    """Decide how ``pod`` of ``job`` may be replaced.

    Args:
        job: the pod's Job, read a moment ago.
        pod: one of its pods, which has no sidecar.
        meshed: whether another of its pods has one, whose work need not be lost.

    Returns:
        The first that applies: nothing may be done to the Job; an eviction counts for nothing; the
        Job can be suspended; an eviction counts, and the Job can take that.
    """
    if reason := next(_untouchable(job), None):
        return Spare(reason=reason)
    if _ignored(job):
        return Evict(reason="its end does not count: podFailurePolicy ignores DisruptionTarget")
    if next(_not_suspended(job, pod, meshed), None) is None:
        return Suspend(
            reason="the Job is suspended until all its pods are gone, and makes new ones"
        )
    if reason := next(_would_fail(job, pod), None):
        return Spare(reason=reason)
    return Evict(
        reason=f"its end counts as failure {_failures(job) + 1} of backoffLimit"
        f" {job.spec.backoff_limit}, and as a success if its containers exit with 0 when they are"
        " told to stop"
    )


def _untouchable(job: Job) -> Iterator[str]:
    """Reasons not to touch any pod of the Job."""
    if over(job):
        yield "its Job is finished"
    if job.spec.suspend:
        yield "its Job is suspended"
    if (manager := job.spec.managed_by or _CONTROLLER) != _CONTROLLER:
        yield f"its Job is managed by {manager}"
    owner = ownership.controller_of(job.metadata)
    if owner and ownership.group(owner) == _FAIL_WITH_A_JOB.get(owner.kind):
        yield f"its Job is part of {owner.kind} {owner.name}, which might fail or begin again"


def _ignored(job: Job) -> bool:
    """Whether the end of an evicted pod counts for nothing, whatever its exit code."""
    for rule in _rules(job):
        if rule.on_exit_codes is not None:
            return False  # It may be that one which matches.
        if _matches_eviction(rule):
            return rule.action == "Ignore"
    return False


def _not_suspended(job: Job, pod: Pod, meshed: bool) -> Iterator[str]:
    """Reasons not to suspend the Job."""
    owner = ownership.controller_of(job.metadata)
    if owner and (ownership.group(owner), owner.kind) != ("batch", "CronJob"):
        yield f"its {owner.kind} might not expect that"
    if any(
        label.startswith(ownership.KUEUE) for label in (*(job.metadata.labels or {}), *pod.labels)
    ):
        yield "Kueue says when it is suspended"
    # Other than its count, this rule also looks at pods without the controller's finalizer.
    if any(rule.action == "FailJob" for rule in _rules(job)):
        yield "its podFailurePolicy may fail it by how a pod ends"
    if meshed:
        yield "another pod of it has its sidecar, and would lose its work"


def _would_fail(job: Job, pod: Pod) -> Iterator[str]:
    """Reasons why the Job might fail with an eviction."""
    for rule in _rules(job):
        if rule.action in {"FailJob", "FailIndex"} and (
            rule.on_exit_codes is not None or _matches_eviction(rule)
        ):
            yield f"its Job might fail: podFailurePolicy says {rule.action}"
    limit, failures = job.spec.backoff_limit or 0, _failures(job)
    if failures >= limit:
        yield f"its Job would fail: {failures} failures of backoffLimit {limit}"
    per_index = job.spec.backoff_limit_per_index
    if per_index is not None:
        said = pod.annotations.get(INDEX_FAILURES, "")
        if not (said.isdecimal() and len(said) < 10 and int(said) < per_index):
            yield f"its index would fail: {said[:10] or 'unknown'} failures of {per_index}"


def _failures(job: Job) -> int:
    """How many failures are counted, or may be in a moment."""
    status = job.status
    uncounted = status.uncounted_terminated_pods or Uncounted()
    return (status.failed or 0) + (status.terminating or 0) + len(uncounted.failed or ())


def _rules(job: Job) -> tuple[Rule, ...]:
    policy = job.spec.pod_failure_policy
    return (policy.rules or ()) if policy else ()


def _matches_eviction(rule: Rule) -> bool:
    return any(
        pattern.type == _DISRUPTED and pattern.status == "True"
        for pattern in rule.on_pod_conditions or ()
    )
