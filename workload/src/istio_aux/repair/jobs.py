"""Ask the API server for a batch Job: what a pod of it may suffer depends on it (`core.batchjobs`).

Only the asking may live here.
"""

from __future__ import annotations

from istio_aux.core.batchjobs import Job
from istio_aux.core.pod import OwnerReference
from istio_aux.kube import paths
from istio_aux.kube.client import Client
from istio_aux.kube.errors import ApiError
from istio_aux.kube.reader import Reader

_job = Reader(Job, "Job")


async def read(client: Client, namespace: str, owner: OwnerReference) -> Job | None:
    """The Job that ``owner`` names; None when it is gone or its name is another's.

    Raises:
        KubeError: the API server refused, or gave no Job.
    """
    try:
        path = paths.named(owner.api_version, "jobs", namespace, owner.name)
        job = _job.read(await client.get(path))
    except ApiError as error:
        if error.code != 404:
            raise
        return None
    return job if job.metadata.uid == owner.uid else None
