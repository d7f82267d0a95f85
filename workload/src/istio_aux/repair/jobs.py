"""Ask the API server whether a batch Job is over: then nobody makes a new pod for it.

Only the asking may live here.
"""

from __future__ import annotations

from datetime import datetime

from istio_aux.core.pod import Condition, OwnerReference, Struct
from istio_aux.kube import paths
from istio_aux.kube.client import Client
from istio_aux.kube.errors import ApiError
from istio_aux.kube.reader import Reader

_OVER = frozenset({"Complete", "Failed", "SuccessCriteriaMet", "FailureTarget"})
"""Conditions of a Job after which its controller makes no pod (k8s@1.36 job_controller.go
syncJob)."""


class _Metadata(Struct, frozen=True):
    uid: str = ""
    deletion_timestamp: datetime | None = None


class _Status(Struct, frozen=True):
    conditions: tuple[Condition, ...] | None = None


class _Job(Struct, frozen=True):
    metadata: _Metadata = _Metadata()
    status: _Status = _Status()


_job = Reader(_Job, "Job")


def is_batch(owner: OwnerReference) -> bool:
    """Whether the owner is a Job of Kubernetes itself."""
    return owner.kind == "Job" and owner.api_version.startswith("batch/")


async def finished(client: Client, namespace: str, owner: OwnerReference) -> bool:
    """Whether the Job has succeeded, has failed, or is gone.

    Raises:
        KubeError: the API server refused, or gave no Job.
    """
    try:
        path = paths.named(owner.api_version, "jobs", namespace, owner.name)
        job = _job.read(await client.get(path))
    except ApiError as error:
        if error.code != 404:
            raise
        return True
    if job.metadata.uid != owner.uid or job.metadata.deletion_timestamp is not None:
        return True
    return any(c.type in _OVER and c.status == "True" for c in job.status.conditions or ())
