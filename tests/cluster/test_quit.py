"""The workload frees the proxies of finished pods, and of no others: real API server, real RBAC."""

from __future__ import annotations

from typing import Literal

import pytest
from lab.scene import Scene
from lab.workload import Workload
from lightkube.resources.core_v1 import Pod

QUIT = ("pilot-agent", "request", "--debug-port=15020", "POST", "quitquitquit")


@pytest.mark.parametrize("restart_policy", ["Never", "OnFailure"])
def test_a_payload_that_succeeds_frees_its_proxy_with_one_quit(
    selected: Scene, restart_policy: Literal["Never", "OnFailure"]
):
    """T14, T15, T20, T22: no shell, the port named, exit code 0, once."""
    pod = selected.start("worker", restart_policy=restart_policy)

    selected.kubelet.finish(pod, "main")

    selected.await_phase(pod, "Succeeded")
    assert selected.proxy_exit_code(pod) == 0
    execs = [(e.container, e.command) for e in selected.kubelet.execs_of(pod)]
    assert execs == [("istio-proxy", QUIT)]


@pytest.mark.parametrize(
    ("exit_code", "reason"), [(1, "Error"), (137, "OOMKilled"), (128, "StartError")]
)
def test_a_payload_that_fails_under_never_frees_its_proxy_and_the_pod_fails(
    selected: Scene, exit_code: int, reason: str
):
    """T1, T3, T39: the pod's owner sees the failure, and the proxy does not cause it.

    Killed, or never started: nothing of ours runs in the pod that could be killed with it.
    """
    pod = selected.start("worker")

    selected.kubelet.finish(pod, "main", exit_code=exit_code, reason=reason)

    selected.await_phase(pod, "Failed")
    assert selected.proxy_exit_code(pod) == 0


def test_a_payload_that_fails_under_on_failure_keeps_its_proxy_until_it_succeeds(selected: Scene):
    """T2, T4: terminated, waiting to be restarted and restarted are all not finished."""
    pod = selected.start("worker", restart_policy="OnFailure")
    kubelet = selected.kubelet

    kubelet.finish(pod, "main", exit_code=1)
    selected.await_control()
    kubelet.crash_loop(pod, "main")
    selected.await_control()
    kubelet.restart(pod, "main")
    selected.await_control()
    assert kubelet.execs_of(pod) == []

    kubelet.finish(pod, "main")
    selected.await_phase(pod, "Succeeded")


def test_every_payload_container_has_to_finish(selected: Scene):
    """T6: also the small one that uploads results."""
    pod = selected.start("worker", payload=("main", "upload"))

    selected.kubelet.finish(pod, "main")
    selected.await_control()
    assert selected.kubelet.execs_of(pod) == []

    selected.kubelet.finish(pod, "upload")
    selected.await_phase(pod, "Succeeded")


def test_a_pod_that_always_restarts_keeps_its_proxy(selected: Scene):
    """T5: the proxy would only be restarted."""
    pod = selected.start("server", restart_policy="Always")

    selected.kubelet.finish(pod, "main")

    selected.await_control()
    assert selected.kubelet.execs_of(pod) == []


def test_a_native_sidecar_is_left_to_the_kubelet(selected: Scene):
    """T10: the pod completes without us; an exec would hit a container that is restarted."""
    pod = selected.start("worker", sidecar="native", payload=("main", "upload"))

    selected.kubelet.finish(pod, "main")
    selected.await_control()
    assert selected.phase(pod) == "Running"
    selected.kubelet.finish(pod, "upload")

    selected.await_control()
    assert selected.phase(pod) == "Succeeded"
    assert selected.kubelet.execs_of(pod) == []


def test_a_pod_without_a_sidecar_is_left_alone(selected: Scene):
    """T11: also one that waits for a payload container of its own."""
    pod = selected.start("worker", sidecar=None, payload=("main", "server"))

    selected.kubelet.finish(pod, "main")

    selected.await_control()
    assert selected.kubelet.execs_of(pod) == []


def test_a_pod_that_is_nothing_but_a_proxy_is_left_alone(selected: Scene):
    """A gateway has no payload that could finish."""
    pod = selected.start("gateway", payload=())

    selected.await_control()

    assert selected.kubelet.execs_of(pod) == []


def test_a_pod_that_is_being_deleted_is_left_alone(selected: Scene):
    """Its proxy gets a signal anyway, and may still serve what drains."""
    pod = selected.start("worker")
    selected.kubelet.linger(pod)
    selected.client.delete(Pod, "worker", namespace=selected.namespace)

    selected.kubelet.finish(pod, "main")

    selected.await_control()
    assert selected.phase(pod) == "Running"
    assert selected.kubelet.execs_of(pod) == []
    selected.kubelet.release(pod)
    selected.await_gone(pod)


def test_a_container_without_a_status_is_not_finished(selected: Scene):
    """T9: unknown is never finished."""
    pod = selected.start("worker", payload=("main", "upload"))
    selected.kubelet.omit(pod, "upload")

    selected.kubelet.finish(pod, "main")
    selected.await_control()
    assert selected.kubelet.execs_of(pod) == []

    selected.kubelet.omit(pod)
    selected.kubelet.finish(pod, "upload")
    selected.await_phase(pod, "Succeeded")


def test_a_pod_in_a_namespace_that_is_not_selected_is_left_alone(scene: Scene):
    pod = scene.start("worker")

    scene.kubelet.finish(pod, "main")

    scene.await_control()
    assert scene.kubelet.execs_of(pod) == []


def test_a_label_on_a_namespace_frees_pods_that_finished_before_it(
    scene: Scene, workload: Workload
):
    pod = scene.start("worker")
    scene.kubelet.finish(pod, "main")
    scene.await_control()

    workload.select(scene.namespace)

    scene.await_phase(pod, "Succeeded")


def test_a_namespace_that_loses_its_label_is_left_alone(selected: Scene, workload: Workload):
    workload.select(selected.namespace, selected=False)
    pod = selected.start("worker")

    selected.kubelet.finish(pod, "main")

    selected.await_control()
    assert selected.kubelet.execs_of(pod) == []
