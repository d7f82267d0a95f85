"""The deployed charm frees real pods, also when its workload or the API server dies meanwhile."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

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
from lightkube.resources.core_v1 import Event, Pod

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


@pytest.fixture
def rehearsing(istio_aux: lab.juju.App) -> Iterator[lab.juju.App]:
    """The charm with `quit=dry-run`."""
    istio_aux.configure(quit="dry-run")
    istio_aux.settle()
    yield istio_aux
    istio_aux.configure(quit="on")
    istio_aux.settle()


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


def test_a_dry_run_tells_what_it_would_do_and_leaves_the_proxy_running(
    client: Client, selected: str, rehearsing: lab.juju.App
) -> None:
    client.create(pod(selected, "job", seconds=0))
    fields: dict[str, Any] = {"involvedObject.name": "job", "reason": "ProxyQuitDryRun"}

    lab.until(
        lambda: list(client.list(Event, namespace=selected, fields=fields)),
        timeout=SOON,
        what="the Event on the pod",
    )

    assert "quit: dry-run" in rehearsing.status()[1]
    assert proxy_exit_code(client.get(Pod, "job", namespace=selected)) is None

    rehearsing.configure(quit="on")
    rehearsing.settle()

    def freed() -> bool:
        status = client.get(Pod, "job", namespace=selected).status
        return status is not None and status.phase == "Succeeded"

    lab.until(freed, timeout=SOON, what="the pod to succeed once quit is on")
