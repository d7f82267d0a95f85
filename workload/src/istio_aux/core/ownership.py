"""What is known of the controller of a pod: does it make a new one, and what does that cost it.

A decision to quit never asks who owns a pod. This is for those that delete or evict: pods that lost
their proxy, and pods that never got one. That may only happen where a controller is known to make
up for it.
"""

from __future__ import annotations

import re

from istio_aux.core.pod import Metadata, OwnerReference, Pod

TRAINING_KINDS = frozenset({"JAXJob", "MPIJob", "PaddleJob", "PyTorchJob", "TFJob", "XGBoostJob"})

_JOBS = {"batch": frozenset({"Job"}), "kubeflow.org": TRAINING_KINDS}
"""Kinds, by API group, whose pods end, and whose controllers make a new pod when one of theirs is
deleted, or fail (`fails_with`): kubernetes pkg/controller/job, kubeflow/training-operator
pkg/controller.v1/common."""

_RESTARTING = frozenset({"JAXJob", "PaddleJob", "PyTorchJob"})
"""Those of kubeflow.org that take a failed replica for a restart, unless they are to ``Never``."""

TRAINING = "kubeflow.org/v1"
"""What the training operator serves; mpi-operator's kubeflow.org/v2beta1 is another matter."""

KUEUE = "kueue.x-k8s.io/"
"""Prefix of Kueue's labels: of a Job's ``queue-name``, and of ``podset`` on the pods of a Job that
it manages without one. Whether such a Job is suspended is for Kueue to say."""

_SERVICES = {
    "": frozenset({"ReplicationController"}),
    "apps": frozenset({"DaemonSet", "ReplicaSet", "StatefulSet"}),
}
"""The same for pods that are not meant to end: kubernetes pkg/controller."""

_ORDINAL = re.compile(r".*-([0-9]+)")
"""kubernetes pkg/controller/statefulset: statefulPodRegex."""


def controller(pod: Pod) -> OwnerReference | None:
    """The one owner that controls the pod, or None."""
    return controller_of(pod.metadata)


def controller_of(metadata: Metadata) -> OwnerReference | None:
    """The one owner that controls an object (metav1.GetControllerOf), or None."""
    owners = [owner for owner in metadata.owner_references or () if owner.controller]
    return owners[0] if len(owners) == 1 else None


def is_job(owner: OwnerReference) -> bool:
    """Whether the owner is a Job of a known kind: it is over when its pods are finished."""
    return owner.kind in _JOBS.get(group(owner), frozenset())


def not_replaced(pod: Pod) -> str | None:
    """Say why nobody is known to make a new pod in place of this one, or None if somebody is."""
    owner = controller(pod)
    if owner is None:
        return "the pod has no controller that would make a new one"
    if is_job(owner) or owner.kind in _SERVICES.get(group(owner), frozenset()):
        return None
    return f"its controller {owner.kind} ({owner.api_version}) is not known to make a new pod"


def fails_with(pod: Pod) -> str | None:
    """Say why the controller itself would fail if this pod were evicted, or None if it would not.

    The training operator counts a running pod with a deletionTimestamp as a failed replica (1.9
    pkg/core/status.go), and what it makes of that depends on the kind and its restartPolicy
    (UpdateJobStatus of each). ``ExitCode`` among those cannot be told from ``Never`` by the pod.
    """
    owner = controller(pod)
    if owner is None or group(owner) != "kubeflow.org":
        return None
    if owner.kind in _RESTARTING and pod.restart_policy != "Never":
        return None
    return f"the {owner.kind} would fail: its operator counts a pod that is deleted as failed"


def resumable(owner: OwnerReference) -> bool:
    """Whether the owner is a Job that makes all its pods anew when it was suspended and is resumed.

    Other than for the deletion of a pod, no kind of the training operator counts a failure for that
    (1.9 pkg/controller.v1/common/job.go ReconcileJobs): see `suspension`.
    """
    return owner.api_version == TRAINING and is_job(owner)


def ordinal(pod: Pod) -> int | None:
    """The place of a StatefulSet's pod, which is part of its name; None for all others."""
    owner = controller(pod)
    if owner is None or (group(owner), owner.kind) != ("apps", "StatefulSet"):
        return None
    found = _ORDINAL.fullmatch(pod.metadata.name)
    return int(found[1]) if found else None


def group(owner: OwnerReference) -> str:
    """The API group of the owner; empty for the core group."""
    return owner.api_version.rpartition("/")[0]
