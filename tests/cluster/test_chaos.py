"""Killed with -9: another process takes over, or the same one comes back; nothing is lost.

A lease runs out 15 s after its holder's death. So the leader is killed first of all, and what the
other one made of it is looked at last.
"""

from __future__ import annotations

import dataclasses
import datetime
import signal
from collections.abc import Iterator

import lab
import lightkube
import pytest
from lab.kubelet import ScriptedKubelet
from lab.scene import Scene
from lab.served import Programs, end, metric, stage
from lab.workload import Workload
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import Pod

TAKEOVER = datetime.timedelta(seconds=20)


@dataclasses.dataclass(frozen=True)
class Succession:
    """Two processes with one lease, of which the leader was killed."""

    leader: Workload
    heir: Workload
    scene: Scene
    killed: datetime.datetime
    freed_by_leader: list[Pod]
    finished_around: list[Pod]
    finished_after: list[Pod]
    statuses: tuple[dict[str, object], dict[str, object]]


@pytest.fixture(scope="module")
def rivals(programs: Programs) -> Iterator[tuple[Workload, Workload]]:
    """Two processes with one lease; the first one holds it."""
    first = programs("rivals", {"lease": "rivals/rivals"})
    lab.until(lambda: first.status().get("leader"), what="the first to lead")
    second = first.replica("rivals-1")
    second.start()
    second.await_ready()
    yield first, second
    end(second)


@pytest.fixture(autouse=True, scope="module")
def succession(
    client: lightkube.Client, kubelet: ScriptedKubelet, rivals: tuple[Workload, Workload]
) -> Iterator[Succession]:
    """Pods that finish before, while and after the leader is killed."""
    leader, heir = rivals
    with stage(client, kubelet, leader) as scene:
        lab.until(
            lambda: scene.namespace in heir.status().get("selected-namespaces", []),
            what="the heir to notice the namespace",
        )
        before, around, after = (
            [scene.start(f"{when}-{n}") for n in range(4)] for when in ("before", "around", "after")
        )
        for pod in before:
            kubelet.finish(pod, "main")
        for pod in before:
            scene.await_phase(pod, "Succeeded")
        lab.until(
            lambda: heir.status().get("watched-pods") == len(around + after),
            what="the heir to follow the pods that run",
        )
        statuses = leader.status(), heir.status()
        for pod in around:
            kubelet.finish(pod, "main")
        killed = datetime.datetime.now(datetime.UTC)
        leader.process.kill(signal.SIGKILL)
        leader.process.wait(30)
        for pod in after:
            kubelet.finish(pod, "main")
        yield Succession(leader, heir, scene, killed, before, around, after, statuses)


def test_the_other_takes_over_within_20_s_and_nothing_is_lost_or_done_twice(
    succession: Succession, client: lightkube.Client
):
    """T22, T26, T38: the lease of one who was killed runs out. Until then the holder alone acts."""
    heir = succession.heir
    before, follower = succession.statuses
    assert (before["leader"], follower["leader"]) == (True, False)
    assert before["lease-holder"] == follower["lease-holder"] != ""
    lab.until(lambda: heir.status().get("leader"), what="the heir to take over")
    for pod in succession.finished_around + succession.finished_after:
        succession.scene.await_phase(pod, "Succeeded")

    lease = client.get(Lease, "rivals", namespace="rivals")
    assert lease.spec
    assert lease.spec.acquireTime
    assert succession.killed < lease.spec.acquireTime < succession.killed + TAKEOVER
    assert lease.spec.holderIdentity == heir.status()["lease-holder"]
    assert metric(heir, "istio_aux_leader") == 1
    pods = succession.freed_by_leader + succession.finished_around + succession.finished_after
    assert [len(execs(succession, pod)) for pod in pods] == [1] * 12


def test_a_leader_that_is_asked_to_stop_hands_over_at_once(succession: Succession):
    """SIGTERM releases the lease: nobody waits until it runs out."""
    first, second, scene = succession.heir, succession.leader, succession.scene
    lab.until(lambda: first.status().get("leader"), what="the first to lead")
    second.start()
    second.await_ready()
    pods = [scene.start(f"handover-{n}") for n in range(4)]
    scene.kubelet.finish(pods[0], "main")

    told = datetime.datetime.now(datetime.UTC)
    first.process.kill(signal.SIGTERM)
    for pod in pods[1:]:
        scene.kubelet.finish(pod, "main")

    lab.until(lambda: second.status().get("leader"), what="the second to take over")
    for pod in pods:
        scene.await_phase(pod, "Succeeded")
    lease = scene.client.get(Lease, "rivals", namespace="rivals")
    assert lease.spec
    assert lease.spec.acquireTime
    assert told < lease.spec.acquireTime < told + datetime.timedelta(seconds=10)
    assert first.process.wait(30) == 0
    assert [len(execs(succession, pod)) for pod in pods] == [1] * 4


def execs(succession: Succession, pod: Pod) -> list[object]:
    return list(succession.scene.kubelet.execs_of(pod))
