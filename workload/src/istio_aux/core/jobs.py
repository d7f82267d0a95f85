"""Jobs of all kinds that can be suspended, and how a pod of a batch Job may be replaced.

An evicted pod counts as a failure of its batch Job, unless podFailurePolicy says otherwise, and the
Job fails after backoffLimit failures. A suspended Job counts none: its controller takes its
finalizer off a pod before it deletes it (k8s@1.36 job_controller.go deleteJobPods).
`tests/cluster/test_batch_jobs.py` shows both with the real controller.

A Job may be part of a JobSet, and that of a TrainJob. An eviction would fail the Job, and the set
fails or starts again with it. Each of them suspends what it made and resumes it, so the one at the
top is suspended (`tests/node/workloads/test_trainjob.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from istio_aux.core import ownership
from istio_aux.core.keys import label_with
from istio_aux.core.pod import Condition, Metadata, OwnerReference, Pod, Struct

# Condition that an eviction sets on a pod (k8s@1.36 eviction.go); a suspension does not.
_DISRUPTED = "DisruptionTarget"
# Conditions of a Job whose controller makes no more pods (job_controller.go syncJob, 1.9
# common_types.go, JobSet 0.8 jobset_types.go, Trainer 2.0 trainjob_types.go).
_FINISHED = frozenset(
    {"Succeeded", "Failed", "Complete", "Completed", "SuccessCriteriaMet", "FailureTarget"}
)
# Owners of Jobs that fail or start again when one of their Jobs fails, with their API groups.
_FAIL_WITH_A_JOB = {"JobSet": "jobset.x-k8s.io", "TrainJob": "trainer.kubeflow.org"}


class JobApi(msgspec.Struct, frozen=True):
    """An API whose Jobs can be suspended."""

    version: str
    policy: str  # The field of the spec with ``suspend`` and ``managedBy``; empty: the spec itself.
    job_name: str  # Label of the pods with the name of their Job.
    manager: str  # ``managedBy`` of Jobs that the API's own controller manages.
    makes_jobs: bool = False  # It makes batch Jobs, or what makes them, and no pods.
    keeps_finished: bool = True  # Its pods that are finished stay while it is suspended.


_BATCH = JobApi("batch/v1", "", "batch.kubernetes.io/job-name", "kubernetes.io/job-controller")
_TRAINING = JobApi(
    # 1.9 common_types.go JobNameLabel, RunPolicy.
    ownership.TRAINING,
    "runPolicy",
    "training.kubeflow.org/job-name",
    "kubeflow.org/training-operator",
    keeps_finished=False,
)
_SETS = {
    "JobSet": JobApi(
        "jobset.x-k8s.io/v1alpha2",
        "",
        "jobset.sigs.k8s.io/jobset-name",
        "jobset.sigs.k8s.io/jobset-controller",
        makes_jobs=True,
    ),
    # Its JobSet has its name (Trainer 2.0 plugins/jobset/jobset.go Build).
    "TrainJob": JobApi(
        "trainer.kubeflow.org/v1alpha1",
        "",
        "jobset.sigs.k8s.io/jobset-name",
        "trainer.kubeflow.org/trainjob-controller",
        makes_jobs=True,
    ),
}
KINDS: Mapping[str, JobApi] = {
    "Job": _BATCH,
    **dict.fromkeys(sorted(ownership.TRAINING_KINDS), _TRAINING),
    **_SETS,
}
"""All kinds that can be suspended."""


def api_of(owner: OwnerReference | None) -> JobApi | None:
    """The API of a Job that can be suspended."""
    api = KINDS.get(owner.kind) if owner else None
    return api if owner and api and api.version == owner.api_version else None


class FailureRule(Struct, frozen=True):
    """One of ``podFailurePolicy.rules``; the first that matches counts."""

    action: str = ""
    # It may match or not: the exit code of a program that is told to stop is not known before.
    on_exit_codes: dict[str, object] | None = None
    on_pod_conditions: tuple[Condition, ...] | None = None


class PodFailurePolicy(Struct, frozen=True):
    """``spec.podFailurePolicy``."""

    rules: tuple[FailureRule, ...] | None = None


class ReplicatedJobSpec(Struct, frozen=True):
    """``spec`` of the template of a JobSet's Jobs."""

    pod_failure_policy: PodFailurePolicy | None = None


class JobTemplate(Struct, frozen=True):
    """``template`` of a JobSet's Jobs."""

    spec: ReplicatedJobSpec = ReplicatedJobSpec()


class ReplicatedJob(Struct, frozen=True):
    """One of ``spec.replicatedJobs`` of a JobSet."""

    template: JobTemplate = JobTemplate()


class RunPolicy(Struct, frozen=True):
    """``spec.runPolicy`` of the training operator's kinds."""

    suspend: bool | None = None
    managed_by: str | None = None


class JobSpec(RunPolicy, frozen=True):
    """``spec``; all but the training operator's kinds have the fields of `RunPolicy` in it."""

    run_policy: RunPolicy | None = None
    backoff_limit: int | None = None
    backoff_limit_per_index: int | None = None
    pod_failure_policy: PodFailurePolicy | None = None
    replicated_jobs: tuple[ReplicatedJob, ...] | None = None


class JobStatus(Struct, frozen=True):
    """``status``; only that of a batch Job counts pods."""

    conditions: tuple[Condition, ...] | None = None
    failed: int | None = None
    terminating: int | None = None
    # UIDs of pods that are about to be counted.
    uncounted_terminated_pods: dict[str, tuple[str, ...] | None] | None = None


class Job(Struct, frozen=True):
    """A Job of any kind, reduced to the fields that are read."""

    metadata: Metadata = Metadata()
    spec: JobSpec = JobSpec()
    status: JobStatus | None = None

    @property
    def run_policy(self) -> RunPolicy:
        """Where ``suspend`` and ``managedBy`` are."""
        return self.spec.run_policy or self.spec

    @property
    def finished(self) -> bool:
        """Whether it has succeeded or failed."""
        return any(self.has(condition) for condition in _FINISHED)

    @property
    def deleting(self) -> bool:
        """Whether it has a deletionTimestamp."""
        return self.metadata.deletion_timestamp is not None

    def has(self, condition: str) -> bool:
        """Whether the condition is true."""
        found = (self.status.conditions or ()) if self.status else ()
        return any(c.type == condition and c.status == "True" for c in found)


class FoundJob(msgspec.Struct, frozen=True):
    """A Job, and the reference by which it was found."""

    reference: OwnerReference
    job: Job


GONE = Job(status=JobStatus(conditions=(Condition(type="Failed", status="True"),)))
"""Stands for a Job that no longer exists."""


class KeepPod(msgspec.Struct, frozen=True):
    """No pod of the Job may be replaced."""

    reason: str


class EvictPod(msgspec.Struct, frozen=True):
    """The pod is evicted; the reason says what that costs the Job."""

    reason: str


class SuspendJob(msgspec.Struct, frozen=True):
    """The Job is suspended until its pods are gone; the reason says what that costs."""

    reason: str


Way = KeepPod | EvictPod | SuspendJob


def is_batch(owner: OwnerReference) -> bool:
    """Whether the owner is a Job of Kubernetes itself."""
    return owner.kind == "Job" and owner.api_version.startswith("batch/")


def set_of(job: Job) -> OwnerReference | None:
    """The JobSet or TrainJob that the Job is part of, if it is of an API that is known."""
    owner = ownership.controller_of(job.metadata)
    api = api_of(owner)
    return owner if api and api.makes_jobs else None


def queued_by_kueue(job: Job, pod: Pod) -> str:
    """The label by which Kueue decides when the Job is suspended; empty if there is none."""
    return label_with(ownership.KUEUE, job.metadata, pod.metadata)


def replace_pod(job: Job, pod: Pod, *, meshed: bool) -> Way:
    """Decide how ``pod`` of the batch Job ``job`` may be replaced.

    ``meshed`` says whether another pod of the Job has a sidecar, and need not lose its work.

    Returns:
        The first that applies: the Job must be left alone; the set that it is part of is suspended,
        if `suspension` finds no reason against that; an eviction does not count as a failure; the
        Job can be suspended; an eviction counts, and the Job has failures left.
    """
    if reason := next(_reasons_to_keep(job), None):
        return KeepPod(reason)
    if owner := set_of(job):
        return SuspendJob(f"{owner.kind} {owner.name} is suspended until all its pods are gone")
    if _ignores_eviction(job):
        return EvictPod("its end does not count: podFailurePolicy ignores DisruptionTarget")
    if next(_reasons_not_to_suspend(job, pod, meshed), None) is None:
        return SuspendJob("the Job is suspended until all its pods are gone, and makes new ones")
    if reason := next(_reasons_to_fail(job), None):
        return KeepPod(reason)
    return EvictPod(
        f"its end counts as failure {_failures(job) + 1} of backoffLimit {job.spec.backoff_limit},"
        " and as a success if its containers exit with 0 when they are told to stop"
    )


def _reasons_to_keep(job: Job) -> Iterator[str]:
    """Why no pod of the Job may be replaced."""
    if job.finished or job.deleting:
        yield "its Job is finished"
    if job.spec.suspend:
        yield "its Job is suspended"
    if (manager := job.spec.managed_by or _BATCH.manager) != _BATCH.manager:
        yield f"its Job is managed by {manager}"
    owner = ownership.controller_of(job.metadata)
    if owner and ownership.group(owner) == _FAIL_WITH_A_JOB.get(owner.kind) and not set_of(job):
        yield f"its Job is part of {owner.kind} {owner.name}, which might fail or start again"


def _ignores_eviction(job: Job) -> bool:
    """Whether an eviction never counts as a failure, whatever the exit code of the pod."""
    for rule in _rules(job):
        if rule.on_exit_codes is not None:
            return False  # It may match.
        if _matches_eviction(rule):
            return rule.action == "Ignore"
    return False


def _reasons_not_to_suspend(job: Job, pod: Pod, meshed: bool) -> Iterator[str]:
    owner = ownership.controller_of(job.metadata)
    if owner and (ownership.group(owner), owner.kind) != ("batch", "CronJob"):
        yield f"its {owner.kind} might not expect that"
    if queued_by_kueue(job, pod):
        yield "Kueue decides when it is suspended"
    if may_fail_when_suspended(job):
        yield "its podFailurePolicy may fail it for the way in which a pod ends"
    if meshed:
        yield "another pod of it has its sidecar, and would lose its work"


def _reasons_to_fail(job: Job) -> Iterator[str]:
    """Why the Job might fail after an eviction."""
    for rule in _rules(job):
        if rule.action in {"FailJob", "FailIndex"} and (
            rule.on_exit_codes is not None or _matches_eviction(rule)
        ):
            yield f"its Job might fail: podFailurePolicy says {rule.action}"
    limit, failures = job.spec.backoff_limit or 0, _failures(job)
    if failures >= limit:
        yield f"its Job would fail: {failures} failures of backoffLimit {limit}"
    if job.spec.backoff_limit_per_index is not None:
        yield "its index might fail: it has a backoffLimitPerIndex"


def _failures(job: Job) -> int:
    """The failures that are counted, or may be in a moment."""
    status = job.status or JobStatus()
    uncounted = (status.uncounted_terminated_pods or {}).get("failed") or ()
    return (status.failed or 0) + (status.terminating or 0) + len(uncounted)


def may_fail_when_suspended(job: Job) -> bool:
    """Whether a rule may fail the Job, or one of the set, for the way in which a pod ends.

    Unlike the count of failures, rules also apply to pods without the finalizer.
    """
    policies = [each.template.spec.pod_failure_policy for each in job.spec.replicated_jobs or ()]
    rules = [rule for policy in policies if policy for rule in policy.rules or ()]
    return any(rule.action == "FailJob" for rule in (*_rules(job), *rules))


def _rules(job: Job) -> tuple[FailureRule, ...]:
    policy = job.spec.pod_failure_policy
    return (policy.rules or ()) if policy else ()


def _matches_eviction(rule: FailureRule) -> bool:
    return any(
        condition.type == _DISRUPTED and condition.status in {"", "True"}
        for condition in rule.on_pod_conditions or ()
    )
