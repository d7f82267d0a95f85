"""The Node object of the scripted kubelet, and the Lease that keeps it Ready."""

from __future__ import annotations

import asyncio
import datetime

from lab import tools
from lab.kubelet.api import MERGE, Api, Object, RefusedError
from lab.kubelet.record import now

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
# The kubelet renews every 10 s and the node controller gives up after 50 s; half of the former
# leaves room for an API server that is restarted in a test.
RENEWAL = 5.0
# Makes an API server of 1.36 pass WebSockets through instead of translating v5 into SPDY
# (kubernetes pkg/registry/core/pod/rest/subresources.go, checkNodeSupportsWebsockets).
FEATURES = ["ExtendWebSocketsToKubelet"]


async def register(api: Api, name: str, port: int) -> None:
    """Create the Node, or take over the one that is there, reachable at 127.0.0.1 and ``port``."""
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
    await _create(api, "/api/v1/nodes", node)
    status = {"status": _status(name, port)}
    await api.request("PATCH", f"/api/v1/nodes/{name}/status", status, MERGE)
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": "kube-node-lease"},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": 40},
    }
    await _create(api, LEASES, lease)
    await _renew(api, name)


async def keep_ready(api: Api, name: str) -> None:
    while True:
        await asyncio.sleep(RENEWAL)
        await _renew(api, name)


async def _create(api: Api, path: str, body: Object) -> None:
    try:
        await api.request("POST", path, body)
    except RefusedError as error:
        if error.code != 409:
            raise


async def _renew(api: Api, name: str) -> None:
    micros = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    patch = {"spec": {"renewTime": micros}}
    await api.request("PATCH", f"{LEASES}/{name}", patch, MERGE)


def _status(name: str, port: int) -> Object:
    resources = {"cpu": "64", "memory": "256Gi", "pods": "10000"}
    healthy = {"MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False"}
    scripted = ("bootID", "kernelVersion", "machineID", "osImage", "systemUUID")
    return {
        "addresses": [
            {"type": "InternalIP", "address": "127.0.0.1"},
            {"type": "Hostname", "address": name},
        ],
        "capacity": resources,
        "allocatable": resources,
        "conditions": [
            {
                "type": kind,
                "status": status,
                "reason": "Scripted",
                "lastHeartbeatTime": now(),
                "lastTransitionTime": now(),
            }
            for kind, status in {**healthy, "Ready": "True"}.items()
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        **({} if tools.before(36) else {"declaredFeatures": FEATURES}),
        "nodeInfo": {
            **dict.fromkeys(scripted, "scripted"),
            "architecture": "amd64",
            "containerRuntimeVersion": "scripted://1",
            "kubeProxyVersion": "",
            "kubeletVersion": tools.VERSION,
            "operatingSystem": "linux",
        },
    }
