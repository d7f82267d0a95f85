"""A proxy that ends before the payload of its pod, on a real kubelet, is told at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lab.istio
import lab.juju
import pytest
from lab import workloads
from lab.fixtures import await_selected, new_namespaces
from lab.workloads import TALK, Workload, container
from lightkube import Client
from lightkube.resources.core_v1 import Event

# No istiod answers the proxy, and its hook gives up after a second instead of a minute.
NEVER_READY = {
    "proxy.istio.io/config": "discoveryAddress: istiod.nowhere.svc:15012",
    "inject.istio.io/templates": "sidecar,impatient",
}
FOREVER = container(f"{TALK} || echo no network; sleep 86400")
HOLD_TIMED_OUT = Workload(
    "hold-timed-out", workloads.pod(FOREVER, annotations=NEVER_READY), ends="", codes=()
)
KILLED = Workload("killed", workloads.pod(FOREVER), ends="", codes=())


@pytest.fixture(scope="module")
def selected(client: Client, istio: lab.istio.Istio, istio_aux: lab.juju.App) -> Iterator[str]:
    """A namespace with both pods, whose proxies have ended as their names say."""
    with new_namespaces(client, "lost") as names:
        name = names["lost"]
        await_selected(client, name)
        for workload in (HOLD_TIMED_OUT, KILLED):
            client.create(workload.in_namespace(name))
        lab.until(
            lambda: look(client, name, "killed")["status"]["phase"] == "Running",
            what="the payload to run",
        )
        # As the kernel does when memory is short.
        kill(name, "killed", "/usr/local/bin/pilot-agent", "proxy")
        yield name


def kill(namespace: str, pod: str, *command: str) -> None:
    pids = lab.until(
        lambda: list(pids_of(namespace, pod, *command)),
        what=f"{' '.join(command)} in {namespace}/{pod}",
    )
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def pids_of(namespace: str, pod: str, *words: str) -> Iterator[int]:
    """The pids of the processes of a pod's proxy whose command line has these words in this order.

    A proxy is told by its environment which pod it is in, and what is executed beside it as well.
    """
    told = {f"POD_NAME={pod}".encode(), f"POD_NAMESPACE={namespace}".encode()}
    wanted = " ".join(words).encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().split(b"\0")
            # Of other programs it need not be readable.
            if b" ".join(command[: len(words)]) != wanted:
                continue
            environment = (process / "environ").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue  # It ended in between.
        if told <= {*environment}:
            yield int(process.name)


def look(client: Client, namespace: str, name: str) -> Any:
    return client.get(workloads.Pod, name, namespace=namespace)


@pytest.mark.parametrize("name", ["hold-timed-out", "killed"])
def test_a_payload_that_has_lost_its_proxy_is_reported_and_left_alone(
    client: Client, selected: str, name: str
) -> None:
    """A hold that timed out, and a proxy that was killed: never started again.

    istio#45627, scuttle#34.
    """
    fields: dict[str, Any] = {"involvedObject.name": name, "reason": "ProxyLost"}
    [event] = lab.until(
        lambda: [*client.list(Event, namespace=selected, fields=fields)],
        what=f"Event ProxyLost on {selected}/{name}",
    )

    assert (event.type, event.involvedObject.uid) == (
        "Warning",
        look(client, selected, name)["metadata"]["uid"],
    )
    pod = look(client, selected, name)
    [proxy] = workloads.proxies([pod])
    [payload] = workloads.read_outcome([], [pod]).pods[0].payload
    assert (pod["status"]["phase"], proxy.restarts) == ("Running", 0)
    assert proxy.exit_code is not None
    assert (payload.exit_code, payload.restarts) == (None, 0)
