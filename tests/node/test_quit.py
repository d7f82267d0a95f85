"""The deployed charm frees real pods, also when its workload or the API server dies meanwhile."""

from __future__ import annotations

import os
import signal

import httpx2
import lab
import lab.istio
import lab.juju
import pytest
from lab import images
from lab.deployed import await_selected
from lab.meshed import proxy_exit_code
from lightkube import ApiError, Client
from lightkube.models.core_v1 import Container, PodSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod

# Measured: six pods are over 12 s after the first was made, 20 s on busy cores.
SOON = 200
PODS = 6
# What a client meets while the API server is restarted.
AWAY = (ApiError, httpx2.TransportError)


@pytest.fixture
def selected(
    client: Client, namespace: str, istio: lab.istio.Istio, istio_aux: lab.juju.App
) -> str:
    """A namespace that Istio injects and istio-aux looks after."""
    await_selected(client, namespace)
    return namespace


def pod(namespace: str, name: str, *, seconds: int) -> Pod:
    """A pod of one container, which knows of no sidecar and ends by itself."""
    main = Container(name="main", image=images.BUSYBOX, command=["sleep", str(seconds)])
    return Pod(
        metadata=ObjectMeta(name=name, namespace=namespace),
        spec=PodSpec(containers=[main], restartPolicy="Never", terminationGracePeriodSeconds=1),
    )


def start(client: Client, namespace: str) -> None:
    """Make pods that finish about a second after the first, and return when that one has.

    Workload and API server are away for longer than that.
    """
    for number in range(PODS):
        client.create(pod(namespace, f"job-{number}", seconds=min(number, 1)))

    def first_is_over() -> bool:
        statuses = client.get(Pod, "job-0", namespace=namespace).status
        return any(
            status.name == "main" and status.state and status.state.terminated
            for status in (statuses and statuses.containerStatuses) or []
        )

    lab.until(first_is_over, timeout=SOON, what="the first payload to end")


def await_all_over(client: Client, namespace: str) -> None:
    def over() -> bool:
        pods = list(client.list(Pod, namespace=namespace))
        phases = [pod.status.phase for pod in pods if pod.status]
        return phases == ["Succeeded"] * PODS

    lab.until(over, timeout=SOON, what=f"all {PODS} pods to succeed", ignoring=AWAY)
    codes = {proxy_exit_code(pod) for pod in client.list(Pod, namespace=namespace)}
    assert codes == {0}


def test_pods_that_finish_while_the_workload_is_killed_are_freed(
    client: Client, selected: str, istio_aux: lab.juju.App
) -> None:
    container = istio_aux.leader.containers["istio-aux"]
    killed = container.service_pid("istio-aux")
    assert killed
    start(client, selected)

    os.kill(killed, signal.SIGKILL)

    await_all_over(client, selected)
    assert container.service_pid("istio-aux") not in {None, killed}


def test_pods_that_finish_while_the_api_server_is_restarted_are_freed(
    cluster: lab.Cluster, client: Client, selected: str
) -> None:
    start(client, selected)

    cluster.process("kube-apiserver").restart()
    cluster.await_api()

    await_all_over(client, selected)
