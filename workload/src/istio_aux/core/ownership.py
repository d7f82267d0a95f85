"""The controllers of pods: which of them replace a deleted or evicted pod, and what that costs.

Pods are deleted or evicted only where a controller is known to replace them. A quit never depends
on the owner of a pod.
"""

from __future__ import annotations

import re

from istio_aux.core.pod import Metadata, OwnerReference, Pod

TRAINING_KINDS = ("JAXJob", "MPIJob", "PaddleJob", "PyTorchJob", "TFJob", "XGBoostJob")

_JOBS = {"batch": frozenset({"Job"}), "kubeflow.org": frozenset(TRAINING_KINDS)}
"""Kinds, by API group, whose pods finish. Their controllers replace a deleted pod, or fail
(`fails_with`): kubernetes pkg/controller/job, training-operator pkg/controller.v1/common."""

_RESTARTING = frozenset({"JAXJob", "PaddleJob", "PyTorchJob"})
"""Kinds of kubeflow.org that restart a failed replica, unless its restartPolicy is Never."""

TRAINING = "kubeflow.org/v1"
"""API of the training operator; kubeflow.org/v2beta1 is mpi-operator's."""

KUEUE = "kueue.x-k8s.io/"
"""Prefix of Kueue's labels: ``queue-name`` of a Job, ``podset`` of pods. Kueue decides when such a
Job is suspended."""

_SERVICES = {
    "": frozenset({"ReplicationController"}),
    "apps": frozenset({"DaemonSet", "ReplicaSet", "StatefulSet"}),
}
"""The same for kinds whose pods do not finish: kubernetes pkg/controller."""

LONGEST_UID = 64
"""Characters of a controller's UID. The API server's have 36, but nobody checks those that the
author of a pod writes into its ownerReferences."""

_ORDINAL = re.compile(r".*-([0-9]+)")  # kubernetes pkg/controller/statefulset: statefulPodRegex.


def controller(pod: Pod) -> OwnerReference | None:
    """The one owner that controls the pod, or None."""
    return controller_of(pod.metadata)


def controller_of(metadata: Metadata) -> OwnerReference | None:
    """The one owner that controls an object (metav1.GetControllerOf), or None."""
    owners = [owner for owner in metadata.owner_references or () if owner.controller]
    return owners[0] if len(owners) == 1 else None


def is_job(owner: OwnerReference) -> bool:
    """Whether the owner is a Job of a known kind, whose pods finish."""
    return owner.kind in _JOBS.get(group(owner), frozenset())


def not_replaced(pod: Pod) -> str | None:
    """Why no controller is known to replace the pod; None if one is."""
    owner = controller(pod)
    if owner is None:
        return "the pod has no controller that would make a new one"
    if len(owner.uid) > LONGEST_UID:
        return f"its controller's UID has more than {LONGEST_UID} characters, so there is none"
    if is_job(owner) or owner.kind in _SERVICES.get(group(owner), frozenset()):
        return None
    return f"its controller {owner.kind} ({owner.api_version}) is not known to make a new pod"


def fails_with(pod: Pod) -> str | None:
    """Why the controller itself would fail if this pod were evicted; None if it would not.

    The training operator counts a running pod with a deletionTimestamp as a failed replica (1.9
    pkg/core/status.go). The consequence depends on the kind and its restartPolicy (UpdateJobStatus
    of each). A pod does not show whether that is ``ExitCode`` or ``Never``.
    """
    owner = controller(pod)
    if owner is None or group(owner) != "kubeflow.org":
        return None
    if owner.kind in _RESTARTING and pod.restart_policy != "Never":
        return None
    return f"the {owner.kind} would fail: its operator counts a pod that is deleted as failed"


def resumable(owner: OwnerReference) -> bool:
    """Whether the owner is a Job of the training operator, which can be suspended and resumed.

    It replaces all its pods then, and counts no failure: see `suspension`.
    """
    return owner.api_version == TRAINING and is_job(owner)


def ordinal(pod: Pod) -> int | None:
    """The number of a StatefulSet's pod, from its name; None for all others."""
    owner = controller(pod)
    if owner is None or (group(owner), owner.kind) != ("apps", "StatefulSet"):
        return None
    found = _ORDINAL.fullmatch(pod.metadata.name)
    return int(found[1]) if found else None


def group(owner: OwnerReference) -> str:
    """The API group of the owner; empty for the core group."""
    return owner.api_version.rpartition("/")[0]
