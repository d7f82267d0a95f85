"""What to do about a pod that may have missed its sidecar: the decision of the repair controller.

Only the decision on one pod may live here; when its turn comes is for `pacing`. It is
level-triggered: it looks at the pod as it is, and why somebody asks does not matter. Whether the
pod should have had a sidecar is an input.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from istio_aux.core import batchjobs, completion, injected, injection, ownership
from istio_aux.core.applications import LABEL
from istio_aux.core.pod import PROXY, OwnerReference, Pod, Struct
from istio_aux.core.policy import RacePolicy, RepairPolicy
from istio_aux.core.start import DATAPLANE, INJECT, MIRROR

_JUJU = (
    ("model.juju.is/disable-webhook", None),
    ("operator.juju.is/name", "modeloperator"),
    ("juju-modeloperator", None),
)
"""Labels, with their value where that matters, of the pods that Juju needs to repair a model: its
operator and the controller (juju internal/provider/kubernetes modeloperator.go, bootstrap.go)."""


class Decision(Struct, frozen=True, tag_field="action"):
    """What all answers have: a reason for people."""

    reason: str


class Ignore(Decision, frozen=True, tag="ignore"):
    """The pod is as it should be, or none of our business."""


class Report(Decision, frozen=True, tag="report"):
    """The pod has no sidecar, and it is not restarted; the reason says why not.

    ``unmeshed`` is False where it is not known whether it should have one. ``waits`` says that it
    is decided on again as soon as the injector is live.
    """

    unmeshed: bool
    waits: bool = False


class Way(StrEnum):
    """How a pod is replaced."""

    EVICT = "evict"
    """Never a plain deletion: that would pass over PodDisruptionBudgets."""
    SUSPEND = "suspend"
    """By way of its Job, which might fail if the pod were evicted: see `suspension`."""


class Restart(Decision, frozen=True, tag="restart"):
    """Replace the pod, only as it was seen: ``uid`` and ``resource_version`` are preconditions.

    The API server holds both for an eviction (k8s@1.36 eviction.go addConditionAndDeletePod).
    ``owner`` makes the new pod.
    """

    uid: str
    resource_version: str
    owner: OwnerReference
    way: Way = Way.EVICT


Action = Ignore | Report | Restart


def decide(
    pod: Pod,
    expectation: injection.Expectation,
    policy: RepairPolicy,
    *,
    live: bool | None,
    owner_finished: bool | None = None,
    job: batchjobs.Job | None = None,
    meshed: bool = False,
) -> Action:
    """Decide what to do about ``pod``.

    Args:
        pod: the pod, as complete and as recent as the caller has it.
        expectation: whether it should have a sidecar, as things are now.
        policy: what the cluster admin set.
        live: whether the injector would give a new pod its sidecar; None: not known.
        owner_finished: whether the pod's controller, if that is a Job, has succeeded or failed;
            None: not known. It is not asked for other controllers, nor for Jobs that would be
            suspended: whoever does that reads the Job.
        job: the pod's controller as it was read, if that is a batch Job; None: not read yet.
        meshed: whether another pod of the same controller has a sidecar.

    Returns:
        The first rule below that applies, in this order; it never raises.
    """
    if reason := next(_nothing_to_do(pod, policy), None):
        return Ignore(reason=reason)
    if expectation.expected is None:
        why = f"not known whether the pod should have a sidecar: {expectation.reason}"
        return Report(reason=why, unmeshed=False)
    if not expectation.expected:
        return Ignore(reason=expectation.reason)
    found = f"the pod has no sidecar and should have one: {expectation.reason}"
    if policy.race is not RacePolicy.RESTART:
        return Report(reason=found, unmeshed=True)
    owner = ownership.controller(pod)
    batch = batchjobs.decide(job, pod, meshed=meshed) if job else None
    obstacle = next(_keeps_pod(pod, policy, live, owner_finished), None)
    if obstacle is None and isinstance(batch, batchjobs.Spare):
        obstacle = batch.reason
    if owner is None or obstacle is not None:
        reason = f"{found}; not restarted: {obstacle}"
        return Report(reason=reason, unmeshed=True, waits=not live)
    suspends = ownership.resumable(owner) or isinstance(batch, batchjobs.Suspend)
    return Restart(
        reason="; ".join((found, *_costs(owner, batch))),
        uid=pod.metadata.uid,
        resource_version=pod.metadata.resource_version,
        owner=owner,
        way=Way.SUSPEND if suspends else Way.EVICT,
    )


def has_sidecar(pod: Pod) -> bool:
    """Whether the pod has Istio's proxy, among its containers or its init containers."""
    return any(container.name == PROXY for container in (*pod.containers, *pod.init_containers))


def _nothing_to_do(pod: Pod, policy: RepairPolicy) -> Iterator[str]:
    """Reasons to leave the pod alone whether it should have a sidecar or not."""
    if policy.race is RacePolicy.OFF:
        yield "race-policy: off"
    if pod.metadata.deletion_timestamp is not None:
        yield "the pod is being deleted"
    if pod.status.phase in {"Succeeded", "Failed"}:
        yield f"the pod is over: phase {pod.status.phase}"
    if has_sidecar(pod):
        yield f"the pod has a container {PROXY}"
    if injected.ANNOTATION in pod.annotations:
        yield f"annotation {injected.ANNOTATION}: Istio has dealt with it"
    yield from _istio_keeps_away(pod)
    yield from _nobody_may(pod, policy)


def _istio_keeps_away(pod: Pod) -> Iterator[str]:
    """Reasons why a new pod would get no sidecar either; the expectation may be of old."""
    if pod.spec.host_network:
        yield "hostNetwork: Istio gives it no sidecar"
    if MIRROR in pod.annotations:
        yield "the pod mirrors a static pod"
    if pod.metadata.namespace in injection.IGNORED:
        yield f"Istio ignores namespace {pod.metadata.namespace}"
    # istio inject.go injectRequired: the label, if there is one, beats the annotation.
    if pod.labels.get(INJECT, pod.annotations.get(INJECT)) == "false":
        source = "label" if INJECT in pod.labels else "annotation"
        yield f'{source} {INJECT}: "false"'
    if pod.labels.get(DATAPLANE) == "ambient":
        yield f'label {DATAPLANE}: "ambient"'


def _nobody_may(pod: Pod, policy: RepairPolicy) -> Iterator[str]:
    """Pods without which nobody could repair anything."""
    for label, value in _JUJU:
        if label in pod.labels and value in {None, pod.labels[label]}:
            yield f"Juju needs the pod: label {label}"
    ours, name = policy.ours, pod.labels.get(LABEL)
    if ours is not None and (ours.namespace, ours.name) == (pod.metadata.namespace, name):
        yield "the pod is one of istio-aux itself"


def _keeps_pod(
    pod: Pod, policy: RepairPolicy, live: bool | None, owner_finished: bool | None
) -> Iterator[str]:
    """Reasons not to restart an unmeshed pod although the policy would."""
    if not live:
        # Istio's webhooks have failurePolicy Fail: a new pod would not even be created.
        yield "the injector is not live" if live is False else "not known if the injector is live"
    if obstacle := ownership.not_replaced(pod):
        yield obstacle
    owner = ownership.controller(pod)
    if owner is not None and ownership.is_job(owner):
        yield from _keeps_pod_of_job(pod, owner, policy, owner_finished)
    if pod.status.phase not in {"Pending", "Running"}:
        # The node may be lost: the pod would be on its way out until the node is back.
        yield f"phase {pod.status.phase or 'not known'}"
    if not (pod.metadata.uid and pod.metadata.resource_version and owner and owner.uid):
        yield "without uid and resourceVersion nobody can tell that it is still the same pod"


def _keeps_pod_of_job(
    pod: Pod, owner: OwnerReference, policy: RepairPolicy, finished: bool | None
) -> Iterator[str]:
    if not policy.restart_jobs:
        yield f"it is a {owner.kind}'s, and restart-jobs is off"
    if not ownership.resumable(owner):
        if finished is None:
            yield f"not known whether its {owner.kind} is finished"
        if finished:
            yield f"its {owner.kind} is finished"
        if failure := ownership.fails_with(pod):
            yield failure
    if pod.containers and all(
        completion.finished(container, pod.container_status(container.name), pod).finished
        for container in pod.containers
    ):
        yield "its containers are finished"


def _costs(owner: OwnerReference, batch: batchjobs.Decision | None) -> Iterator[str]:
    """What the admin who allowed it should know.

    The kubelet gives a pod that is deleted a phase first (status_manager.go), and that is what
    counts (k8s@1.36 job_controller.go isPodFailed, pod_failure_policy.go).
    """
    if not ownership.is_job(owner):
        return
    if ownership.resumable(owner):
        yield f"the {owner.kind} is suspended until all its pods are gone, and makes new ones"
    yield f"what it has done for the {owner.kind} is lost"
    if batch:
        yield batch.reason
    elif owner.kind == "Job":
        yield (
            "its end counts for backoffLimit unless podFailurePolicy ignores DisruptionTarget,"
            " and as a success if its containers exit with 0 when they are told to stop"
        )
