"""Read one pod as it is now, by its UID.

Only the reading may live here.
"""

from __future__ import annotations

from istio_aux.core.pod import Pod
from istio_aux.kube import actions
from istio_aux.kube.client import Client
from istio_aux.quit.record import Record


async def read(client: Client, record: Record) -> Pod | None:
    """The pod of ``record``; None, and noted there, when it is gone or its name is another's.

    Raises:
        KubeError: the API server refused, or gave no pod.
    """
    pod = await actions.read_pod(client, record.key)
    record.left = record.left or pod is None
    return pod
