"""What a real kubelet and containerd say of a port on which something listens, or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import lab
from istio_aux.kube import access
from istio_aux.kube.client import Client as Asking
from istio_aux.model.pod import Key
from istio_aux.repair import ambient
from lab import images
from lab.ambient import TUNNEL
from lab.meshed import written
from lightkube import Client
from lightkube.resources.core_v1 import Pod

# A server of TLS that is sent something else answers with an alert, as ztunnel's does.
COMMANDS: Mapping[str, str] = {
    "alert": f"nc -ll -p {TUNNEL} -e printf '\\025\\003\\003'",
    "close": f"nc -ll -p {TUNNEL} -e true",
    "nothing": "sleep 86400",
}


def test_only_a_pod_in_whose_network_nothing_listens_refuses(
    cluster: lab.Cluster, client: Client, namespace: str
) -> None:
    """istio#55968: so the pod shows whether ztunnel has it. One that is gone is unknown."""
    cluster.load(images.busybox())
    keys = dict[str, Key]()
    for name, command in COMMANDS.items():
        container = {"name": "main", "image": images.BUSYBOX, "command": ["sh", "-c", command]}
        spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
        document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        made = client.create(written(document, namespace))
        assert made.metadata
        keys[name] = Key(namespace, name, str(made.metadata.uid))

    def running() -> bool:
        found = [client.get(Pod, name, namespace=namespace) for name in COMMANDS]
        return all(pod.status and pod.status.phase == "Running" for pod in found)

    lab.until(running, what="the pods to run")

    async def ask() -> dict[str, bool | None]:
        async with Asking(access.find(cluster.kubeconfig)) as asking:
            gone = keys["nothing"]._replace(uid="gone")
            answers = {name: await ambient.ask(asking, key) for name, key in keys.items()}
            return {**answers, "gone": await ambient.ask(asking, gone)}

    assert asyncio.run(ask()) == {"alert": True, "close": None, "nothing": False, "gone": None}
