"""The Node object of the scripted kubelet, and the Lease that keeps it Ready."""

from __future__ import annotations

import asyncio
import datetime

import httpx2
from lightkube import ApiError, AsyncClient
from lightkube.models import coordination_v1, core_v1, meta_v1
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import Node
from lightkube.types import PatchType

VERSION = "v1.36.3"
LEASE_NAMESPACE = "kube-node-lease"
# The kubelet renews every 10 s and the node controller gives up after 50 s; half of the former
# leaves room for an API server that is restarted in a test.
RENEWAL = 5.0
# Makes an API server of 1.36 pass WebSockets through instead of translating v5 into SPDY
# (kubernetes pkg/registry/core/pod/rest/subresources.go, checkNodeSupportsWebsockets).
FEATURES = ["ExtendWebSocketsToKubelet"]


async def register(client: AsyncClient, name: str, port: int) -> None:
    """Create the Node, or take over the one that is there, reachable at 127.0.0.1 and ``port``."""
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
    try:
        await client.create(Node(metadata=meta_v1.ObjectMeta(name=name, labels=labels)))
    except ApiError as error:
        if error.status.code != 409:
            raise
    status = core_v1.NodeStatus(
        addresses=[
            core_v1.NodeAddress(type="InternalIP", address="127.0.0.1"),
            core_v1.NodeAddress(type="Hostname", address=name),
        ],
        capacity={"cpu": "64", "memory": "256Gi", "pods": "10000"},
        allocatable={"cpu": "64", "memory": "256Gi", "pods": "10000"},
        conditions=_conditions(),
        daemonEndpoints=core_v1.NodeDaemonEndpoints(
            kubeletEndpoint=core_v1.DaemonEndpoint(Port=port)
        ),
        declaredFeatures=FEATURES,
        nodeInfo=core_v1.NodeSystemInfo(
            architecture="amd64",
            bootID="scripted",
            containerRuntimeVersion="scripted://1",
            kernelVersion="scripted",
            kubeProxyVersion="",
            kubeletVersion=VERSION,
            machineID="scripted",
            operatingSystem="linux",
            osImage="scripted",
            systemUUID="scripted",
        ),
    )
    patch = {"status": status.to_dict()}
    await client.patch(Node.Status, name, patch, patch_type=PatchType.STRATEGIC)
    await _renew(client, name)


async def keep_ready(client: AsyncClient, name: str) -> None:
    """Renew the node's lease for as long as this runs."""
    while True:
        await asyncio.sleep(RENEWAL)
        try:
            await _renew(client, name)
        except httpx2.HTTPError:
            continue  # an API server that is away gets the next renewal


async def remove(client: AsyncClient, name: str) -> None:
    """Take the node out of the cluster; nothing happens when the API server is away."""
    try:
        await client.delete(Node, name)
    except httpx2.HTTPError:
        return


async def _renew(client: AsyncClient, name: str) -> None:
    lease = Lease(
        metadata=meta_v1.ObjectMeta(name=name, namespace=LEASE_NAMESPACE),
        spec=coordination_v1.LeaseSpec(
            holderIdentity=name,
            leaseDurationSeconds=40,
            renewTime=datetime.datetime.now(datetime.UTC),
        ),
    )
    await client.apply(lease, field_manager="scripted-kubelet", force=True)


def _conditions() -> list[core_v1.NodeCondition]:
    now = datetime.datetime.now(datetime.UTC)
    healthy = {"MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False"}
    return [
        core_v1.NodeCondition(
            type=kind,
            status=value,
            lastHeartbeatTime=now,
            lastTransitionTime=now,
            reason="Scripted",
        )
        for kind, value in {**healthy, "Ready": "True"}.items()
    ]
