"""The leader is killed with -9: another process takes over, and nothing is lost.

A lease runs out 15 s after its holder's death.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator

import lab
import pytest
from lab.scene import Scene
from lab.workload import Programs, Stages, Workload, end_at_once, metric
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import Pod


@pytest.fixture
def leader(programs: Programs) -> Workload:
    leader = programs("rivals", {"lease": "rivals/rivals"})
    lab.until(lambda: leader.status().get("leader"), what="it to lead")
    return leader


@pytest.fixture
def scene(leader: Workload, stages: Stages) -> Scene:
    """A namespace that both serve."""
    return stages(leader)


@pytest.fixture
def heir(leader: Workload, scene: Scene) -> Iterator[Workload]:
    """Another process with the same lease."""
    heir = leader.replica("rivals-1")
    heir.start()
    heir.await_ready()
    lab.until(
        lambda: scene.namespace in heir.status().get("selected-namespaces", []),
        what="the second to notice the namespace",
    )
    yield heir
    end_at_once(heir)


def test_the_other_takes_over_within_20_s_and_nothing_is_lost_or_done_twice(
    leader: Workload, heir: Workload, scene: Scene
):
    """The lease of one who was killed runs out. Until then the holder alone acts.

    uds-core#972, kuma#10085, kubexit#8.
    """
    before, around, after = (
        [scene.start(f"{when}-{n}") for n in range(4)] for when in ("before", "around", "after")
    )
    finish(scene, before)
    await_freed_once(scene, before)
    lab.until(
        lambda: heir.status().get("watched-pods") == len(around + after),
        what="the heir to follow the pods that run",
    )
    assert (leader.status()["leader"], heir.status()["leader"]) == (True, False)
    assert leader.status()["lease-holder"] == heir.status()["lease-holder"] != ""

    finish(scene, around)
    killed = datetime.datetime.now(datetime.UTC)
    leader.process.end()
    finish(scene, after)

    lab.until(lambda: heir.status().get("leader"), what="the heir to take over")
    lease = scene.client.get(Lease, "rivals", namespace="rivals").spec
    assert lease
    assert lease.acquireTime
    assert killed < lease.acquireTime < killed + datetime.timedelta(seconds=20)
    assert lease.holderIdentity == heir.status()["lease-holder"]
    await_freed_once(scene, before + around + after)
    assert metric(heir, "istio_aux_leader") == 1


def finish(scene: Scene, pods: list[Pod]) -> None:
    for pod in pods:
        scene.kubelet.finish(pod, "main")


def await_freed_once(scene: Scene, pods: list[Pod]) -> None:
    """Return when each proxy has ended; it was told to once."""
    for pod in pods:
        scene.await_phase(pod, "Succeeded")
    assert [len(scene.kubelet.execs_of(pod)) for pod in pods] == [1] * len(pods)
