"""Jobs of the training operator and their pods: a row says only what differs from one that runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from istio_aux.model.owners import KINDS, FoundJob, Job
from istio_aux.model.pod import OwnerReference, Pod
from istio_aux.repair.suspension import MARK, SIDECAR
from unit.rules.pods import RUNNING
from unit.rules.unmeshed import raw

TFJOB = ("kubeflow.org/v1", "TFJob")


def document(
    *conditions: str,
    policy: Mapping[str, Any] | None = None,
    marked: bool = False,
    labels: Mapping[str, str] | None = None,
    **metadata: Any,
) -> dict[str, Any]:
    """The Job as JSON, with those conditions that are true of it."""
    return {
        "apiVersion": TFJOB[0],
        "kind": TFJOB[1],
        "metadata": {
            "name": "mnist",
            "namespace": "training",
            "uid": "job-1",
            "resourceVersion": "7",
            "labels": {**(labels or {}), **({MARK: SIDECAR} if marked else {})},
            **metadata,
        },
        "spec": {"runPolicy": {"cleanPodPolicy": "None", **(policy or {})}},
        "status": {"conditions": [{"type": c, "status": "True"} for c in conditions]},
    }


def job(*conditions: str, **fields: Any) -> Job:
    """The same as a `Job`."""
    return msgspec.convert(document(*conditions, **fields), Job)


def suspended(*conditions: str, **fields: Any) -> Job:
    """A Job that we have suspended, and that its operator has noticed."""
    fields = {"policy": {"suspend": True}, "marked": True, **fields}
    return job(*(conditions or ("Suspended",)), **fields)


def alone(found: Job) -> Sequence[FoundJob]:
    """The Job as it is read; it is part of no other one."""
    return [FoundJob(OwnerReference(api_version=TFJOB[0], kind=TFJOB[1], name="mnist"), found)]


def pod_document(name: str = "mnist-worker-0", **fields: Any) -> dict[str, Any]:
    """A pod of the Job as JSON."""
    fields = {
        "namespace": "training",
        "owner": TFJOB,
        "owner_uid": "job-1",
        "restart": "Never",
        "labels": {KINDS["TFJob"].job_name: "mnist"},
        **fields,
    }
    found = raw({"main": RUNNING}, name=name, **fields)
    for reference in found["metadata"].get("ownerReferences", []):
        reference["name"] = "mnist"
    return found


def pod(name: str = "mnist-worker-0", **fields: Any) -> Pod:
    """The same as a `Pod`."""
    return msgspec.convert(pod_document(name, **fields), Pod)


def pods(*names: str, **fields: Any) -> Sequence[Pod]:
    """Several."""
    return [pod(name, uid=f"uid-{name}", **fields) for name in names]
