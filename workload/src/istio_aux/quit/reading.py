"""Read one pod as it is now, by its UID.

Only the reading may live here.
"""

from __future__ import annotations

from istio_aux.core.pod import Pod
from istio_aux.kube import paths
from istio_aux.kube.client import Client
from istio_aux.kube.errors import ApiError
from istio_aux.kube.reader import Reader
from istio_aux.quit.record import Record

_pod = Reader(Pod, "pod")


async def read(client: Client, record: Record) -> Pod | None:
    """The pod of ``record``; None, and noted there, when it is gone or its name is another's.

    Raises:
        KubeError: the API server refused, or gave no pod.
    """
    try:
        pod = _pod.read(await client.get(path(record)))
    except ApiError as error:
        if error.code != 404:
            raise
        pod = None
    if pod is None or pod.metadata.uid != record.key.uid:
        record.left = True
        return None
    return pod


def path(record: Record) -> str:
    """Where the API server has the pod, and any other that has its name."""
    return paths.pod(record.key.namespace, record.key.name)
