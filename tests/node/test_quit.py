"""The deployed charm frees real pods, also when its workload is killed meanwhile."""

from __future__ import annotations

import os
import signal

import lab
import lab.juju
from lab.meshed import proxy_exit_code, scripted
from lightkube import Client
from lightkube.resources.core_v1 import Pod

# Measured: six pods are over 12 s after the first was made, 20 s on busy cores.
SOON = 200
PODS = 6


def test_pods_that_finish_while_the_workload_is_killed_are_freed(
    client: Client, selected: str, istio_aux: lab.juju.App
) -> None:
    """T26: they finish about a second after the first; the workload is away for longer."""
    container = istio_aux.leader.containers["istio-aux"]
    killed = container.service_pid("istio-aux")
    assert killed
    for number in range(PODS):
        client.create(scripted(selected, f"job-{number}", f"sleep {min(number, 1)}"))

    def first_is_over() -> bool:
        status = client.get(Pod, "job-0", namespace=selected).status
        return any(
            container.name == "main" and container.state and container.state.terminated
            for container in (status and status.containerStatuses) or []
        )

    lab.until(first_is_over, timeout=SOON, what="the first payload to end")

    os.kill(killed, signal.SIGKILL)

    def over() -> bool:
        pods = list(client.list(Pod, namespace=selected))
        return [pod.status.phase for pod in pods if pod.status] == ["Succeeded"] * PODS

    lab.until(over, timeout=SOON, what=f"all {PODS} pods to succeed")
    assert {proxy_exit_code(pod) for pod in client.list(Pod, namespace=selected)} == {0}
    assert container.service_pid("istio-aux") not in {None, killed}
    istio_aux.settle()
    assert istio_aux.status()[0] == "active", istio_aux.status()
