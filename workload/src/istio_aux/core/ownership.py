"""Whether somebody makes a new pod when one is deleted; it matters for nothing else.

A decision to quit never asks who owns a pod. This is for the deletion of pods that lost their
proxy: that may only happen where a controller is known to make up for it.
"""

from __future__ import annotations

from istio_aux.core.pod import OwnerReference, Pod

_REPLACING = {
    "batch": frozenset({"Job"}),
    "kubeflow.org": frozenset(
        {"JAXJob", "MPIJob", "PaddleJob", "PyTorchJob", "TFJob", "XGBoostJob"}
    ),
}
"""Kinds, by API group, whose controllers make a new pod when one of theirs is deleted: kubernetes
pkg/controller/job, kubeflow/training-operator pkg/controller.v1/common."""


def controller(pod: Pod) -> OwnerReference | None:
    """The one owner that controls the pod (metav1.GetControllerOf), or None."""
    owners = [owner for owner in pod.metadata.owner_references or () if owner.controller]
    return owners[0] if len(owners) == 1 else None


def not_replaced(pod: Pod) -> str | None:
    """Say why nobody is known to make a new pod in place of this one, or None if somebody is."""
    owner = controller(pod)
    if owner is None:
        return "the pod has no controller that would make a new one"
    group, _, _version = owner.api_version.rpartition("/")
    if owner.kind in _REPLACING.get(group, frozenset()):
        return None
    return f"its controller {owner.kind} ({owner.api_version}) is not known to make a new pod"
