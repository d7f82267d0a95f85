"""What to do about a pod that may have missed its sidecar: the decision of the repair controller.

Whether the pod should have a sidecar is an input (`injection`). When its turn comes is decided in
`rollout`.
"""

from __future__ import annotations

from collections.abc import Iterator

from istio_aux.core import completion, injection, jobs, ownership
from istio_aux.core.applications import application_of
from istio_aux.core.keys import text_label
from istio_aux.core.pod import PROXY, OwnerReference, Pod, Struct
from istio_aux.core.policy import RacePolicy, RepairPolicy
from istio_aux.core.start import INJECTED, injected, mirrors

MOST_LABELS = 1000
"""Labels of a pod that is decided about, and kept for that. A pod may have 1.4 MB of them."""

_JUJU = (
    (text_label("model.juju.is/disable-webhook"), None),
    (text_label("operator.juju.is/name"), "modeloperator"),
    (text_label("juju-modeloperator"), None),
)
"""Labels, with their value where that matters, of the pods that Juju needs to repair a model: its
operator and the controller (juju internal/provider/kubernetes modeloperator.go, bootstrap.go)."""


class RepairDecision(Struct, frozen=True, tag_field="action"):
    """A decision with its reason, for people."""

    reason: str


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


def decide(
    pod: Pod,
    expectation: injection.Expectation,
    policy: RepairPolicy,
    *,
    live: bool | None,
    job: jobs.Job | None = None,
    meshed: bool = False,
) -> RepairAction:
    """Decide what to do about ``pod``. The first rule below that applies counts.

    Args:
        pod: the pod.
        expectation: whether it should have a sidecar.
        policy: what the cluster admin set.
        live: whether the injector would give a new pod its sidecar; None: not known.
        job: the pod's controller as it was read, if that is a batch Job (`jobs.GONE` if it does
            not exist); None: not read yet. The training operator's Jobs are read by `suspension`.
        meshed: whether another pod of the same controller has a sidecar.
    """
    if reason := next(_reasons_to_skip(pod, policy), None):
        return Skip(reason=reason)
    if expectation.expected is None:
        why = f"not known whether the pod should have a sidecar: {expectation.reason}"
        return ReportUnmeshed(reason=why, unmeshed=False)
    if not expectation.expected:
        return Skip(reason=expectation.reason)
    found = f"the pod has no sidecar and should have one: {expectation.reason}"
    if policy.race is not RacePolicy.RESTART:
        return ReportUnmeshed(reason=found, unmeshed=True)
    owner = ownership.controller(pod)
    way = jobs.replace_pod(job, pod, meshed=meshed) if job else None
    obstacle = next(_reasons_to_keep(pod, policy, live), None)
    if obstacle is None and isinstance(way, jobs.KeepPod):
        obstacle = way.reason
    if owner is None or obstacle is not None:
        reason = f"{found}; not restarted: {obstacle}"
        return ReportUnmeshed(reason=reason, unmeshed=True, waits=not live)
    return Restart(
        reason="; ".join((found, *_costs(owner, way))),
        suspend=ownership.resumable(owner) or isinstance(way, jobs.SuspendJob),
    )


def _reasons_to_skip(pod: Pod, policy: RepairPolicy) -> Iterator[str]:
    """Why the pod is left alone whether it should have a sidecar or not."""
    if policy.race is RacePolicy.OFF:
        yield "race-policy: off"
    if (labels := len(pod.labels)) > MOST_LABELS:
        yield f"the pod has {labels} labels, and {MOST_LABELS} are looked at"
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
    yield from injection.reasons_against(pod, {})
    # Without these pods nothing could be repaired.
    for label, value in _JUJU:
        if label.on(pod.metadata) and value in {None, label.get(pod.metadata)}:
            yield f"Juju needs the pod: label {label.name}"
    ours, name = policy.ours, application_of(pod)
    if ours is not None and (ours.namespace, ours.name) == (pod.metadata.namespace, name):
        yield "the pod is one of istio-aux itself"


def _reasons_to_keep(pod: Pod, policy: RepairPolicy, live: bool | None) -> Iterator[str]:
    """Why an unmeshed pod is not restarted although the policy is ``restart``."""
    if not live:
        # Istio's webhooks have failurePolicy Fail: no new pod would be created.
        yield "the injector is not live" if live is False else "not known if the injector is live"
    if obstacle := ownership.not_replaced(pod):
        yield obstacle
    owner = ownership.controller(pod)
    if owner is not None and ownership.is_job(owner):
        yield from _reasons_to_keep_of_job(pod, owner, policy)
    if pod.status.phase not in {"Pending", "Running"}:
        # The node may be lost: the pod would stay Terminating until the node is back.
        yield f"phase {pod.status.phase or 'not known'}"
    if not (pod.metadata.uid and pod.metadata.resource_version and owner and owner.uid):
        yield "without uid and resourceVersion it cannot be checked that it is still the same pod"


def _reasons_to_keep_of_job(pod: Pod, owner: OwnerReference, policy: RepairPolicy) -> Iterator[str]:
    if not policy.restart_jobs:
        yield f"it is a {owner.kind}'s, and restart-jobs is off"
    if not ownership.resumable(owner) and (failure := ownership.fails_with(pod)):
        yield failure
    if pod.containers and all(
        completion.finished(container, pod.container_status(container.name), pod).finished
        for container in pod.containers
    ):
        yield "its containers are finished"


def _costs(owner: OwnerReference, way: jobs.Way | None) -> Iterator[str]:
    """What the restart costs a Job; the admin has allowed that.

    The kubelet gives a pod that is deleted a phase first (status_manager.go), and the phase counts
    (k8s@1.36 job_controller.go isPodFailed, pod_failure_policy.go).
    """
    if not ownership.is_job(owner):
        return
    if ownership.resumable(owner):
        yield f"the {owner.kind} is suspended until all its pods are gone, and makes new ones"
    yield f"what it has done for the {owner.kind} is lost"
    if way:
        yield way.reason
    elif owner.kind == "Job":
        yield (
            "its end counts for backoffLimit unless podFailurePolicy ignores DisruptionTarget,"
            " and as a success if its containers exit with 0 when they are told to stop"
        )
