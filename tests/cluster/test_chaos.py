"""Killed with -9: another process takes over, or the same one comes back; nothing is lost.

A lease runs out 15 s after its holder's death.
"""

from __future__ import annotations

import datetime
import signal
from collections.abc import Iterator
from typing import NamedTuple

import lab
import pytest
from lab.scene import Scene
from lab.served import Programs, Stages, end, metric
from lab.workload import Workload
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import Pod


class Rivals(NamedTuple):
    """Two processes with one lease, and pods that they free."""

    first: Workload
    second: Workload
    scene: Scene

    def cast(self) -> tuple[Workload, Workload]:
        """The one that leads, and the other one; both run."""
        both = [self.first, self.second]
        for each in both:
            if not each.running:
                each.start()
                each.await_ready()
        leads = lab.until(
            lambda: [each for each in both if each.status().get("leader")], what="one to lead"
        )
        leader, heir = sorted(both, key=lambda each: each not in leads)
        return leader, heir

    def finish(self, *pods: Pod) -> None:
        """Let the payload of each pod end."""
        for pod in pods:
            self.scene.kubelet.finish(pod, "main")

    def await_freed_once(self, *pods: Pod) -> None:
        """Return when each proxy has ended; it was told to once."""
        for pod in pods:
            self.scene.await_phase(pod, "Succeeded")
        assert [len(self.scene.kubelet.execs_of(pod)) for pod in pods] == [1] * len(pods)

    def taken_within(self, heir: Workload, seconds: float, since: datetime.datetime) -> None:
        """Await that the heir leads; it has led since that soon after a moment."""
        lab.until(lambda: heir.status().get("leader"), what=f"{heir.unit} to take over")
        lease = self.scene.client.get(Lease, "rivals", namespace="rivals").spec
        assert lease
        assert lease.acquireTime
        assert since < lease.acquireTime < since + datetime.timedelta(seconds=seconds)
        assert lease.holderIdentity == heir.status()["lease-holder"]


@pytest.fixture(scope="module")
def rivals(programs: Programs, stages: Stages) -> Iterator[Rivals]:
    first = programs("rivals", {"lease": "rivals/rivals"})
    second = first.replica("rivals-1")
    second.start()
    second.await_ready()
    scene = stages(first)
    lab.until(
        lambda: scene.namespace in second.status().get("selected-namespaces", []),
        what="the second to notice the namespace",
    )
    yield Rivals(first, second, scene)
    end(second)


def test_the_other_takes_over_within_20_s_and_nothing_is_lost_or_done_twice(rivals: Rivals):
    """The lease of one who was killed runs out. Until then the holder alone acts.

    uds-core#972, kuma#10085, kubexit#8.
    """
    leader, heir = rivals.cast()
    before, around, after = (
        [rivals.scene.start(f"{when}-{n}") for n in range(4)]
        for when in ("before", "around", "after")
    )
    rivals.finish(*before)
    rivals.await_freed_once(*before)
    lab.until(
        lambda: heir.status().get("watched-pods") == len(around + after),
        what="the heir to follow the pods that run",
    )
    assert (leader.status()["leader"], heir.status()["leader"]) == (True, False)
    assert leader.status()["lease-holder"] == heir.status()["lease-holder"] != ""

    rivals.finish(*around)
    killed = datetime.datetime.now(datetime.UTC)
    leader.process.kill(signal.SIGKILL)
    leader.process.wait(30)
    rivals.finish(*after)

    rivals.taken_within(heir, 20, killed)
    rivals.await_freed_once(*before, *around, *after)
    assert metric(heir, "istio_aux_leader") == 1


def test_a_leader_that_is_asked_to_stop_hands_over_at_once(rivals: Rivals):
    """SIGTERM releases the lease: nobody waits until it runs out."""
    leader, heir = rivals.cast()
    pods = [rivals.scene.start(f"handover-{n}") for n in range(4)]
    rivals.finish(pods[0])

    told = datetime.datetime.now(datetime.UTC)
    leader.process.kill(signal.SIGTERM)
    rivals.finish(*pods[1:])

    rivals.taken_within(heir, 10, told)
    rivals.await_freed_once(*pods)
    assert leader.process.wait(30) == 0
