"""What to do about a pod that may have missed its sidecar: the decision of the repair controller.

Whether the pod should have a sidecar is an input (`injection`). When its turn comes is decided in
`rollout`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import msgspec

from istio_aux.injector.injection import Expectation, reasons_against
from istio_aux.model import kept, owners
from istio_aux.model.annotations import INJECTED, injected, label_with, mirrors, text_label
from istio_aux.model.applications import Applications, PodOptions, application_of
from istio_aux.model.names import JUJU_PODS
from istio_aux.model.owners import FailureRule, Job, JobStatus, PodController
from istio_aux.model.pod import PROXY, Pod
from istio_aux.model.policy import RacePolicy, RepairPolicy
from istio_aux.quit import facts
from istio_aux.start.plan import admitted

# Condition that an eviction sets on a pod (k8s@1.36 eviction.go); a suspension does not.
_DISRUPTED = "DisruptionTarget"
# Owners of Jobs that fail or start again when one of their Jobs fails, with their API groups.
_FAIL_WITH_A_JOB = {"JobSet": "jobset.x-k8s.io", "TrainJob": "trainer.kubeflow.org"}

_JUJU = tuple((text_label(key), value) for key, value in JUJU_PODS)


class RepairDecision(kept.Reasoned, frozen=True, tag_field="action"):
    """What to do about a pod."""


class Skip(RepairDecision, frozen=True, tag="ignore"):
    """Do nothing: the pod needs no sidecar, or must not be touched."""


class ReportUnmeshed(RepairDecision, frozen=True, tag="report"):
    """Do not restart the pod, which has no sidecar; the reason says why not."""

    unmeshed: bool  # Whether it should have one; False: that is not known.
    waits: bool = False  # Whether it is decided again as soon as the injector is live.


class Restart(RepairDecision, frozen=True, tag="restart"):
    """Replace the pod, only in the version that was seen.

    It is evicted, never deleted: that would bypass PodDisruptionBudgets.
    """

    # Whether its Job, which might fail after an eviction, is suspended instead: see `suspension`.
    suspend: bool = False


RepairAction = Skip | ReportUnmeshed | Restart


def expectation(
    pod: Pod,
    labels: Mapping[str, str],
    options: PodOptions,
    applications: Applications,
    expect: Callable[[Pod], Expectation],
) -> tuple[Pod, Expectation]:
    """Return the pod as our admission would make it now, and whether that should have a sidecar.

    ``labels`` are those of its namespace, which need not be selected: a pod of any namespace may
    miss its sidecar. ``expect`` says what Istio would do.
    """
    covered = applications.has(pod)
    ours = covered or options.namespaces.matches(labels)
    new = admitted(pod, applications, options.inject if ours else None, labels)
    why = options.left_out(
        pod.metadata.namespace, selected=True, chosen=options.pods.matches(pod.labels),
        covered=covered,
    )  # fmt: skip
    return new, Expectation(expected=False, reason=why) if why else expect(new)


def decide(
    pod: Pod,
    expectation: Expectation,
    policy: RepairPolicy,
    *,
    finished: bool,
    live: bool | None,
    job: owners.Job | None = None,
    meshed: bool = False,
) -> RepairAction:
    """Decide what to do about ``pod``. The first rule below that applies counts.

    Args:
        pod: the pod. Its containers are only looked at for the name of the proxy.
        expectation: whether it should have a sidecar.
        policy: what the cluster admin set.
        finished: whether all its containers are, as `containers_finished` says of the whole pod.
        live: whether the injector would give a new pod its sidecar; None: not known.
        job: the batch Job that controls the pod, once it was read; `owners.GONE` if there is none.
        meshed: whether another pod of the same controller has a sidecar.
    """
    if reason := next(_reasons_to_skip(pod, policy), None):
        return Skip(reason=reason)
    if expectation.expected is None:
        why = f"not known whether the pod should have a sidecar: {expectation.reason}"
        return ReportUnmeshed(reason=why, unmeshed=False)
    if not expectation.expected:
        return Skip(reason=expectation.reason)
    problem = f"the pod has no sidecar and should have one: {expectation.reason}"
    if not policy.race.restarts:
        return ReportUnmeshed(reason=problem, unmeshed=True)
    owner = owners.controls(pod)
    way = replace_pod(job, pod, meshed=meshed) if job else None
    obstacle = next(_reasons_to_keep(pod, owner, policy, finished, live), None)
    if obstacle is None and way and way.how == "keep":
        obstacle = way.reason
    if obstacle is not None:
        reason = f"{problem}; not restarted: {obstacle}"
        return ReportUnmeshed(reason=reason, unmeshed=True, waits=not live)
    return Restart(
        reason="; ".join((problem, *_costs(owner, way))),
        suspend=owner.resumable or (way is not None and way.how == "suspend"),
    )


def containers_finished(pod: Pod) -> bool:
    """Whether the kubelet is done with every container of a whole pod."""
    return bool(pod.containers) and all(
        facts.finished(each, pod).finished for each in pod.containers
    )


def _reasons_to_skip(pod: Pod, policy: RepairPolicy) -> Iterator[str]:
    """Why the pod is left alone whether it should have a sidecar or not."""
    if policy.race is RacePolicy.NONE:
        yield "race-policy: none"
    if (labels := kept.size(pod.labels)) > kept.MOST:
        yield f"too much to judge: the pod has {labels} bytes of labels, not at most {kept.MOST}"
    if pod.metadata.deletion_timestamp is not None:
        yield "the pod is being deleted"
    if pod.status.phase in {"Succeeded", "Failed"}:
        yield f"the pod is finished: phase {pod.status.phase}"
    if pod.names_proxy:
        yield f"the pod has a container {PROXY}"
    if injected.on(pod.metadata):
        yield f"annotation {INJECTED}: Istio has processed the pod"
    if mirrors.on(pod.metadata):
        yield "the pod mirrors a static pod"
    # A new pod would get no sidecar either; the expectation may be out of date.
    yield from reasons_against(pod)
    # Without these pods nothing could be repaired.
    for label, value in _JUJU:
        if label.on(pod.metadata) and value in {None, label.get(pod.metadata)}:
            yield f"Juju needs the pod: label {label.name}"
    ours, name = policy.ours, application_of(pod)
    if ours is not None and (ours.namespace, ours.name) == (pod.metadata.namespace, name):
        yield "the pod is one of istio-aux itself"


def _reasons_to_keep(
    pod: Pod, owner: PodController, policy: RepairPolicy, finished: bool, live: bool | None
) -> Iterator[str]:
    """Why an unmeshed pod is not restarted although the policy restarts pods."""
    if not live:
        # Istio's webhooks have failurePolicy Fail: no new pod would be created.
        yield "the injector is not live" if live is False else "not known if the injector is live"
    if owner.obstacle:
        yield owner.obstacle
    if owner.is_job and policy.race is not RacePolicy.RESTART_JOBS:
        yield f"it is a {owner.kind}'s, and race-policy is not restart-jobs"
    if owner.failure and not owner.resumable:
        yield owner.failure
    if owner.is_job and finished:
        yield "its containers are finished"
    if pod.status.phase not in {"Pending", "Running"}:
        # The node may be lost: the pod would stay Terminating until the node is back.
        yield f"phase {pod.status.phase or 'not known'}"
    if not (pod.metadata.uid and pod.metadata.resource_version and owner.uid):
        yield "without uid and resourceVersion it cannot be checked that it is still the same pod"


def _costs(owner: PodController, way: Way | None) -> Iterator[str]:
    """What the restart costs a Job; the admin has allowed that.

    The kubelet gives a pod that is deleted a phase first (status_manager.go), and the phase counts
    (k8s@1.36 job_controller.go isPodFailed, pod_failure_policy.go).
    """
    if owner.resumable:
        yield f"the {owner.kind} is suspended until all its pods are gone, and makes new ones"
    if owner.is_job:
        yield f"what it has done for the {owner.kind} is lost"
    if way:
        yield way.reason
    elif owner.kind == "Job":
        yield (
            "its end counts for backoffLimit unless podFailurePolicy ignores DisruptionTarget,"
            " and as a success if its containers exit with 0 when they are told to stop"
        )


class Way(msgspec.Struct, frozen=True):
    """How a pod of a Job may be replaced, and what that costs the Job.

    It is evicted, the Job is suspended until all its pods are gone, or no pod may be replaced.
    """

    how: Literal["evict", "suspend", "keep"]
    reason: str


def queued_by_kueue(job: Job, pod: Pod) -> str:
    """The label by which Kueue decides when the Job is suspended; empty if there is none."""
    return label_with(owners.KUEUE, job.metadata, pod.metadata)


def replace_pod(job: Job, pod: Pod, *, meshed: bool) -> Way:
    """Decide how ``pod`` of the batch Job ``job`` may be replaced.

    ``meshed`` says whether another pod of the Job has a sidecar, and need not lose its work.

    Returns:
        The first that applies: the Job must be left alone; the set that it is part of is suspended,
        if `suspension` finds no reason against that; an eviction does not count as a failure; the
        Job can be suspended; an eviction counts, and the Job has failures left.
    """
    if reason := next(_reasons_to_keep_pods(job), None):
        return Way("keep", reason)
    if owner := owners.set_of(job):
        return Way("suspend", f"{owner.kind} {owner.name} is suspended until all its pods are gone")
    if _ignores_eviction(job):
        return Way("evict", "its end does not count: podFailurePolicy ignores DisruptionTarget")
    if next(_reasons_not_to_suspend(job, pod, meshed), None) is None:
        return Way(
            "suspend", "the Job is suspended until all its pods are gone, and makes new ones"
        )
    if reason := next(_reasons_to_fail(job), None):
        return Way("keep", reason)
    return Way(
        "evict",
        f"its end counts as failure {_failures(job) + 1} of backoffLimit {job.spec.backoff_limit},"
        " and as a success if its containers exit with 0 when they are told to stop",
    )


def _reasons_to_keep_pods(job: Job) -> Iterator[str]:
    """Why no pod of the Job may be replaced."""
    if job.finished or job.deleting:
        yield "its Job is finished"
    if job.spec.suspend:
        yield "its Job is suspended"
    if (manager := job.spec.managed_by or owners.BATCH.manager) != owners.BATCH.manager:
        yield f"its Job is managed by {manager}"
    owner = owners.controller_of(job.metadata)
    if owner and owners.group(owner) == _FAIL_WITH_A_JOB.get(owner.kind) and not owners.set_of(job):
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
    owner = owners.controller_of(job.metadata)
    if owner and (owners.group(owner), owner.kind) != ("batch", "CronJob"):
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
