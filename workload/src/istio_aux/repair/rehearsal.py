"""Ask the API server whether a new pod of an application would get its sidecar, by a dry run.

Only the question may live here. The pods of an application that asks by name depend on our own
admission as well, and right after the start of this process, for one, nobody calls it yet: a pod
that is evicted then comes back as it was. Nothing but such a creation shows the whole way.
"""

from __future__ import annotations

import msgspec

from istio_aux.core import injection_probe
from istio_aux.core.pod import Pod
from istio_aux.core.start import START
from istio_aux.kube import actions
from istio_aux.kube.client import Client


async def why_not(client: Client, pod: Pod) -> str | None:
    """Say why a new pod with the labels of ``pod`` would get no sidecar; None: it would.

    Raises:
        KubeError: the API server refused, or did not answer.
    """
    found = injection_probe.created(
        await actions.dry_run_pod(client, pod.metadata.namespace, _like(pod))
    )
    return None if found.injected else f"a new pod would get no sidecar: {found.why}"


def _like(pod: Pod) -> bytes:
    """A pod with the same labels."""
    return msgspec.json.encode(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "generateName": injection_probe.NAME,
                "labels": pod.labels,
                # Of our admission only the label matters here.
                "annotations": {START: "off"},
            },
            "spec": {
                "automountServiceAccountToken": False,
                "containers": [injection_probe.CONTAINER],
            },
        }
    )
