"""The scripted kubelet behind the real API server: its streams."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from urllib.parse import urlencode

import lab
import lightkube
import pytest
import websocket
from lab import meshed
from lab.kubelet import ScriptedKubelet
from lightkube.resources.core_v1 import Pod

QUIT = ("pilot-agent", "request", "--debug-port=15020", "POST", "quitquitquit")


@pytest.fixture
def worker(client: lightkube.Client, kubelet: ScriptedKubelet, namespace: str) -> Pod:
    """A pod with a classic sidecar, running, in a namespace that nobody serves."""
    pod = client.create(meshed.pod(namespace, "worker"))
    kubelet.run(pod)
    return pod


@contextlib.contextmanager
def stream(
    cluster: lab.Cluster,
    pod: Pod,
    subresource: str,
    query: Sequence[tuple[str, str]],
    protocols: Sequence[str],
) -> Iterator[websocket.WebSocket]:
    """A WebSocket to a subresource of the pod, as an administrator."""
    pair = cluster.issue("streamer", "streamer", organizations=["system:masters"])
    assert pod.metadata is not None
    path = f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}/{subresource}"
    url = f"{cluster.server}{path}?{urlencode(query)}".replace("https", "wss", 1)
    files = {"ca_certs": cluster.ca, "certfile": pair.certificate, "keyfile": pair.key}
    tls = {name: str(path) for name, path in files.items()}
    socket = websocket.create_connection(url, 30, sslopt=tls, subprotocols=list(protocols))
    try:
        yield socket
    finally:
        # Not close(): it wants to say goodbye to somebody who has gone, and leaks the socket then.
        socket.shutdown()


def frames(socket: websocket.WebSocket) -> list[bytes]:
    """The messages that come until the other side closes."""
    received: list[bytes] = []
    while message := socket.recv():
        assert isinstance(message, bytes)
        received.append(message)
    return received


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
    """The API server of 1.36 passes both through, as the node declares; others speak SPDY to it."""
    query = [("container", "istio-proxy"), ("stdout", "true"), ("stderr", "true")]
    query += [("command", word) for word in QUIT]

    with stream(cluster, worker, "exec", query, offered) as socket:
        assert socket.getsubprotocol() == chosen
        *output, result = frames(socket)
        assert output == [b"\x01", b"\x01OK"]
        assert result[:1] == b"\x03"
        assert json.loads(result[1:]) == {"metadata": {}, "status": "Success"}


def test_a_port_is_forwarded_to_the_agent_and_its_quit_ends_the_proxy(
    cluster: lab.Cluster, client: lightkube.Client, worker: Pod, kubelet: ScriptedKubelet
):
    """T21: the way that works for any status port."""
    protocols = ["v4.channel.k8s.io"]
    with stream(cluster, worker, "portforward", [("ports", "15020")], protocols) as socket:
        socket.send_binary(b"\x00POST /quitquitquit HTTP/1.1\r\nHost: localhost\r\n\r\n")
        data, error, response = frames(socket)

    assert (data, error) == (b"\x00\xac:", b"\x01\xac:")
    assert response.startswith(b"\x00HTTP/1.1 200 OK\r\n")
    assert response.endswith(b"OK")
    assert worker.metadata is not None
    name, namespace = str(worker.metadata.name), str(worker.metadata.namespace)
    lab.until(
        lambda: meshed.proxy_exit_code(client.get(Pod, name, namespace=namespace)) == 0,
        timeout=30,
        what="the proxy to exit",
    )
    assert [e.via for e in kubelet.execs_of(worker)] == ["port-forward"]
