"""Quits that go wrong: the answer to one proves nothing, and one that hangs delays no other.

Attempts that fail take their time: 10 s until a hung one is dropped, 8 s until a proxy that runs on
is told again. So the pods of the slow tests start together, when the first test of the file does.
"""

from __future__ import annotations

from collections.abc import Iterator

import lab
import lightkube
import pytest
from lab.kubelet import Misbehaviour, ScriptedKubelet
from lab.scene import Scene
from lab.served import stage
from lab.workload import Workload
from lightkube.resources.core_v1 import Pod

# More than the pods of one namespace may be tried at once.
HUNG = 8


@pytest.fixture(scope="module")
def troubled(
    client: lightkube.Client, kubelet: ScriptedKubelet, workload: Workload
) -> Iterator[Scene]:
    """A selected namespace for the pods whose end takes long."""
    with stage(client, kubelet, workload) as scene:
        yield scene


@pytest.fixture(scope="module")
def liar(troubled: Scene) -> Pod:
    """A finished pod whose first quit answers OK, and whose proxy runs on."""
    return misbehaving(troubled, "liar", "lie", times=1)


@pytest.fixture(scope="module")
def deaf(troubled: Scene) -> Pod:
    """A finished pod whose first quit meets a 404, which pilot-agent takes for success."""
    return misbehaving(troubled, "deaf", "not-found", times=1)


@pytest.fixture(scope="module")
def refusing(troubled: Scene) -> Pod:
    """A finished pod whose agent refuses every quit."""
    return misbehaving(troubled, "refusing", "refuse", times=None)


@pytest.fixture(scope="module")
def hanging(
    client: lightkube.Client, kubelet: ScriptedKubelet, workload: Workload
) -> Iterator[Scene]:
    """The namespace of a tenant whose agents hang."""
    with stage(client, kubelet, workload) as scene:
        yield scene


@pytest.fixture(scope="module")
def hung(hanging: Scene) -> list[Pod]:
    """Finished pods whose first quit never ends."""
    return [misbehaving(hanging, f"hung-{n}", "hang", times=1) for n in range(HUNG)]


def misbehaving(scene: Scene, name: str, behaviour: Misbehaviour, *, times: int | None) -> Pod:
    pod = scene.start(name)
    scene.kubelet.misbehave(pod, behaviour, times=times)
    scene.kubelet.finish(pod, "main")
    return pod


@pytest.fixture(autouse=True, scope="module")
def slow(liar: Pod, deaf: Pod, refusing: Pod, hung: list[Pod]) -> None:
    """All of them at once, so that they fail side by side."""


def test_quits_that_hang_delay_no_other_pod(troubled: Scene, hung: list[Pod]):
    """T18: agents that do not answer keep only pods of their own namespace waiting."""
    others = [troubled.start(f"prompt-{n}") for n in range(5)]

    for pod in others:
        troubled.kubelet.finish(pod, "main")

    for pod in others:
        troubled.await_phase(pod, "Succeeded")
    assert max(len(troubled.kubelet.execs_of(pod)) for pod in hung) == 1
    assert {troubled.phase(pod) for pod in hung} == {"Running"}


@pytest.mark.parametrize("how", ["exit-137", "close-without-status", "reset"])
def test_a_quit_that_is_killed_by_its_own_success_is_not_repeated(
    selected: Scene, how: Misbehaviour
):
    """T17: whatever the exec answered, the container's status says that the proxy is gone."""
    pod = selected.start("worker")
    selected.kubelet.misbehave(pod, how)

    selected.kubelet.finish(pod, "main")

    selected.await_phase(pod, "Succeeded")
    assert len(selected.kubelet.execs_of(pod)) == 1


def test_an_agent_that_is_not_up_yet_is_asked_again(selected: Scene):
    """T23: a payload that ends within 100 ms of its start meets a closed port."""
    pod = misbehaving(selected, "worker", "refuse", times=1)

    selected.await_phase(pod, "Succeeded")
    assert len(selected.kubelet.execs_of(pod)) == 2


def test_a_node_that_cannot_be_reached_is_asked_again(selected: Scene):
    """T23: the exec fails before it is one."""
    pod = misbehaving(selected, "worker", "unavailable", times=1)

    selected.await_phase(pod, "Succeeded")
    assert len(selected.kubelet.execs_of(pod)) == 2


def test_a_new_pod_of_the_same_name_is_not_quit_for_the_old_one(selected: Scene):
    """T19: TFJobs reuse names; a retry for the old pod never reaches the new one."""
    kubelet = selected.kubelet
    old = misbehaving(selected, "worker-0", "refuse", times=None)
    lab.until(lambda: kubelet.execs_of(old), timeout=30, what="the old pod's first quit")
    selected.client.delete(Pod, "worker-0", namespace=selected.namespace, grace_period=0)
    selected.await_gone(old)

    new = selected.start("worker-0")
    # Retries come about 3 s apart, so a second one of a later pod is proof enough.
    witness = misbehaving(selected, "witness", "refuse", times=2)
    selected.await_phase(witness, "Succeeded")
    assert kubelet.execs_of(new) == []

    kubelet.finish(new, "main")
    selected.await_phase(new, "Succeeded")


def test_a_proxy_that_refuses_every_quit_is_reported_until_it_exits(
    troubled: Scene, workload: Workload, refusing: Pod
):
    """T23: it delays no other pod, is visible, and is freed once that is possible."""

    def stuck() -> list[str]:
        return [pod["name"] for pod in workload.status()["stuck-pods"]]

    lab.until(lambda: "refusing" in stuck(), timeout=60, what="the pod to be reported as stuck")
    troubled.kubelet.misbehave(refusing, "refuse", times=0)

    troubled.await_phase(refusing, "Succeeded")
    lab.until(lambda: "refusing" not in stuck(), timeout=30, what="the report to end")


def test_an_agent_that_lies_is_asked_again(troubled: Scene, liar: Pod, deaf: Pod):
    """T16: neither OK nor exit code 0 is proof; the container's status is."""
    for pod in (liar, deaf):
        troubled.await_phase(pod, "Succeeded")
        assert len(troubled.kubelet.execs_of(pod)) == 2


def test_a_quit_that_hangs_is_given_up_and_repeated(hanging: Scene, hung: list[Pod]):
    """T18: each attempt has a deadline."""
    for pod in hung:
        hanging.await_phase(pod, "Succeeded")
        assert len(hanging.kubelet.execs_of(pod)) == 2
