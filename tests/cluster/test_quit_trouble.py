"""Streams of exec that hang or break: the answer to one proves nothing, and none delays others.

What follows from an answer is a rule, and `tests/unit/test_quit_failures.py` plays it in time.
"""

from __future__ import annotations

import pytest
from lab.kubelet import Misbehaviour
from lab.scene import Scene
from lab.served import Stages
from lab.workload import Workload
from lightkube.resources.core_v1 import Pod

# More than the pods of one namespace may be tried at once.
HUNG = 8


def misbehaving(scene: Scene, name: str, behaviour: Misbehaviour, *, times: int | None) -> Pod:
    """A finished pod whose first quits go wrong."""
    pod = scene.start(name)
    scene.kubelet.misbehave(pod, behaviour, times=times)
    scene.kubelet.finish(pod, "main")
    return pod


@pytest.fixture(scope="module")
def hanging(workload: Workload, stages: Stages) -> Scene:
    """The namespace of a tenant whose agents hang."""
    return stages(workload)


@pytest.fixture(scope="module")
def hung(hanging: Scene) -> list[Pod]:
    """Finished pods whose first quit never ends; it is dropped after 10 s."""
    return [misbehaving(hanging, f"hung-{n}", "hang", times=1) for n in range(HUNG)]


def test_quits_that_hang_delay_no_other_pod(hanging: Scene, hung: list[Pod], selected: Scene):
    """T18: agents that do not answer keep only pods of their own namespace waiting."""
    others = [selected.start(f"prompt-{n}") for n in range(5)]

    for pod in others:
        selected.kubelet.finish(pod, "main")

    for pod in others:
        selected.await_phase(pod, "Succeeded")
    assert max(len(hanging.kubelet.execs_of(pod)) for pod in hung) == 1
    assert {hanging.phase(pod) for pod in hung} == {"Running"}


@pytest.mark.parametrize("how", ["exit-137", "close-without-status", "reset"])
@pytest.mark.usefixtures("hung")
def test_a_quit_that_is_killed_by_its_own_success_is_not_repeated(
    selected: Scene, how: Misbehaviour
):
    """T17: whatever the exec answered, the container's status says that the proxy is gone."""
    pod = misbehaving(selected, "worker", how, times=None)

    selected.await_phase(pod, "Succeeded")
    assert len(selected.kubelet.execs_of(pod)) == 1


@pytest.mark.parametrize("how", ["refuse", "unavailable"])
@pytest.mark.usefixtures("hung")
def test_an_agent_or_a_node_that_is_not_up_yet_is_asked_again(selected: Scene, how: Misbehaviour):
    """T23: the agent's port is closed, or the exec fails before it is one."""
    pod = misbehaving(selected, "worker", how, times=1)

    selected.await_phase(pod, "Succeeded")
    assert len(selected.kubelet.execs_of(pod)) == 2


def test_a_quit_that_hangs_is_given_up_and_repeated(hanging: Scene, hung: list[Pod]):
    """T18: each attempt has a deadline."""
    for pod in hung:
        hanging.await_phase(pod, "Succeeded")
        assert len(hanging.kubelet.execs_of(pod)) == 2
