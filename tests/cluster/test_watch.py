"""A watch that breaks off within an event, and a watch whose version the server forgot."""

from __future__ import annotations

from collections.abc import Iterator

import lab
import pytest
from lab.relay import Relay
from lab.scene import Scene
from lab.served import Programs, Stages, metric
from lab.workload import Workload

# Of an event: enough to reach its middle, far from enough for its end.
SIZE, MIDDLE = 60_000, 20_000


@pytest.fixture(scope="module")
def relay(cluster: lab.Cluster) -> Iterator[Relay]:
    """What lies between the workload and the API server."""
    with Relay(cluster.server) as relay:
        yield relay


@pytest.fixture(scope="module")
def remote(cluster: lab.Cluster, relay: Relay, programs: Programs) -> Workload:
    """A workload that reaches the API server only through the relay."""
    workload = programs("remote", start=False)
    direct = workload.kubeconfig.read_text()
    assert cluster.server in direct
    workload.kubeconfig.write_text(direct.replace(cluster.server, relay.server))
    workload.start()
    workload.await_ready()
    return workload


@pytest.fixture(scope="module")
def far(remote: Workload, stages: Stages) -> Scene:
    """A namespace that the remote workload serves."""
    return stages(remote)


def restarts(workload: Workload, reason: str) -> float:
    return metric(workload, f'istio_aux_watch_restarts_total{{reason="{reason}"}}')


def test_a_watch_that_breaks_off_within_an_event_loses_nothing(
    far: Scene, remote: Workload, relay: Relay
):
    """T28: the connection ends after a third of the event that tells of the payload's end."""
    pod = far.start("worker", annotations={"note": "x" * SIZE})
    far.await_control()
    before = restarts(remote, "connection")

    relay.tear(after=MIDDLE)
    far.kubelet.finish(pod, "main")

    far.await_phase(pod, "Succeeded")
    # The relay counts a connection once both of its ends are closed.
    lab.until(lambda: relay.torn, timeout=60, what="the watch to be torn")
    assert restarts(remote, "connection") > before
    assert len(far.kubelet.execs_of(pod)) == 1


def test_a_version_that_the_server_has_forgotten_costs_a_list_and_loses_nothing(
    cluster: lab.Cluster, far: Scene, remote: Workload, relay: Relay
):
    """T28: an API server that was restarted remembers no event from before, and says 410.

    The workload is kept waiting meanwhile, not refused, so that it goes on from what it saw last.
    """
    pods = [far.start(f"worker-{n}") for n in range(3)]
    far.await_control()
    before = restarts(remote, "expired")

    with relay.hold():
        cluster.process("kube-apiserver").restart()
        cluster.await_api()
    for pod in pods:
        far.kubelet.finish(pod, "main")

    for pod in pods:
        far.await_phase(pod, "Succeeded", timeout=60)
    lab.until(lambda: restarts(remote, "expired") > before, timeout=60, what="a 410")
    assert [len(far.kubelet.execs_of(pod)) for pod in pods] == [1, 1, 1]
