"""The scripted kubelet behind the real API server: its streams, its pods' status, its deletions."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence

import aiohttp
import lab
import lightkube
import pytest
from lab import meshed
from lab.kubelet import ScriptedKubelet
from lightkube.resources.core_v1 import Node, Pod

QUIT = ("pilot-agent", "request", "--debug-port=15020", "POST", "quitquitquit")


@pytest.fixture
def worker(client: lightkube.Client, kubelet: ScriptedKubelet, namespace: str) -> Pod:
    """A pod with a classic sidecar, running, in a namespace that nobody serves."""
    pod = client.create(meshed.pod(namespace, "worker"))
    kubelet.run(pod)
    return pod


def stream(
    cluster: lab.Cluster,
    pod: Pod,
    subresource: str,
    query: Sequence[tuple[str, str]],
    *,
    protocols: Sequence[str],
    send: bytes = b"",
) -> tuple[str | None, list[bytes]]:
    """The protocol chosen and the frames received, in order, until the other side closes."""

    async def talk() -> tuple[str | None, list[bytes]]:
        pair = cluster.issue("streamer", "streamer", organizations=["system:masters"])
        tls = ssl.create_default_context(cafile=str(cluster.ca))
        tls.load_cert_chain(pair.certificate, pair.key)
        connector = aiohttp.TCPConnector(ssl=tls)
        assert pod.metadata is not None
        path = f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}/{subresource}"
        async with aiohttp.ClientSession(cluster.server, connector=connector) as session:
            async with session.ws_connect(path, params=query, protocols=protocols) as socket:
                if send:
                    await socket.send_bytes(send)
                frames = [message.data async for message in socket]
                protocol = socket.protocol
            await connector.close(abort_ssl=True)
            return protocol, frames

    return asyncio.run(asyncio.wait_for(talk(), 30))


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        (("v5.channel.k8s.io", "v4.channel.k8s.io"), "v5.channel.k8s.io"),
        (("v4.channel.k8s.io",), "v4.channel.k8s.io"),
    ],
)
def test_exec_is_answered_in_the_frames_of_a_kubelet(
    cluster: lab.Cluster, worker: Pod, offered: Sequence[str], chosen: str
):
    """The API server passes both protocols through, because the node declares the feature."""
    query = [("container", "istio-proxy"), ("stdout", "true"), ("stderr", "true")]
    query += [("command", word) for word in QUIT]

    protocol, frames = stream(cluster, worker, "exec", query, protocols=offered)

    assert protocol == chosen
    assert frames == [b"\x01", b"\x01OK", b'\x03{"metadata": {}, "status": "Success"}']


def test_a_port_is_forwarded_to_the_agent_and_its_quit_ends_the_proxy(
    cluster: lab.Cluster, client: lightkube.Client, worker: Pod, kubelet: ScriptedKubelet
):
    """T21: the way that works for any status port."""
    _, frames = stream(
        cluster,
        worker,
        "portforward",
        [("ports", "15020")],
        protocols=["v4.channel.k8s.io"],
        send=b"\x00POST /quitquitquit HTTP/1.1\r\nHost: localhost\r\n\r\n",
    )

    assert frames[:2] == [b"\x00\xac:", b"\x01\xac:"]
    assert frames[2].startswith(b"\x00HTTP/1.1 200 OK\r\n")
    assert frames[2].endswith(b"OK")
    assert worker.metadata is not None
    name, namespace = str(worker.metadata.name), str(worker.metadata.namespace)
    lab.until(
        lambda: meshed.proxy_exit_code(client.get(Pod, name, namespace=namespace)) == 0,
        timeout=30,
        what="the proxy to exit",
    )
    assert [e.via for e in kubelet.execs_of(worker)] == ["port-forward"]


def test_a_deleted_pod_is_gone_once_its_node_has_stopped_it(
    client: lightkube.Client, worker: Pod, namespace: str
):
    client.delete(Pod, "worker", namespace=namespace)

    lab.until(
        lambda: not list(client.list(Pod, namespace=namespace)),
        timeout=30,
        what="the pod to be gone",
    )


def test_the_node_is_ready(client: lightkube.Client, kubelet: ScriptedKubelet):
    """And keeps the lease by which the node controller knows."""
    node = client.get(Node, "scripted")

    assert node.status is not None
    ready = {c.type: c.status for c in node.status.conditions or []}
    assert ready["Ready"] == "True"
