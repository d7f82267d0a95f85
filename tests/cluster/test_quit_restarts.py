"""Containers that the kubelet starts again, and containers that do not count."""

from __future__ import annotations

from lab.scene import Scene
from lab.versions import CONTAINER_RESTARTS, RESTART_ALL
from lab.workload import Workload
from lightkube.resources.core_v1 import Pod

RESTART = {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}
ALL = {**RESTART, "action": "RestartAllContainers"}


@CONTAINER_RESTARTS.needed
def test_a_container_that_its_own_rule_restarts_is_not_finished(selected: Scene):
    """T12: the pod's policy is Never, and yet exit code 42 means again."""
    main = {"restartPolicy": "Never", "restartPolicyRules": [RESTART]}
    pod = selected.start("worker", more={"main": main})
    kubelet = selected.kubelet

    kubelet.finish(pod, "main", exit_code=42)
    selected.await_control()
    kubelet.restart(pod, "main")
    selected.await_control()
    assert kubelet.execs_of(pod) == []

    kubelet.finish(pod, "main", exit_code=0)
    selected.await_phase(pod, "Succeeded")
    assert selected.proxy_exit_code(pod) == 0


@CONTAINER_RESTARTS.needed
def test_a_container_that_its_own_policy_does_not_restart_is_finished(selected: Scene):
    """T12: the pod's policy OnFailure would start it again, its own does not."""
    pod = selected.start(
        "worker", restart_policy="OnFailure", more={"main": {"restartPolicy": "Never"}}
    )

    selected.kubelet.finish(pod, "main", exit_code=1)

    selected.await_phase(pod, "Failed")
    assert selected.proxy_exit_code(pod) == 0


@RESTART_ALL.needed
def test_a_rule_that_restarts_all_containers_leaves_none_finished(
    selected: Scene, workload: Workload
):
    """T12: neither quit nor lost, also while every container of the pod is terminated."""
    main = {"restartPolicy": "Never", "restartPolicyRules": [ALL]}
    pod = selected.start("worker", payload=("main", "upload"), more={"main": main})
    kubelet = selected.kubelet

    kubelet.finish(pod, "upload")
    kubelet.finish(pod, "main", exit_code=42)
    selected.await_control()
    kubelet.stop_all(pod)
    selected.await_control()
    assert uid(pod) not in [lost["uid"] for lost in workload.status()["lost-pods"]]
    kubelet.restart_all(pod)
    kubelet.finish(pod, "main", exit_code=0)
    selected.await_control()
    assert kubelet.execs_of(pod) == []

    kubelet.finish(pod, "upload")
    selected.await_phase(pod, "Succeeded")
    assert selected.proxy_exit_code(pod) == 0


def uid(pod: Pod) -> str | None:
    return pod.metadata.uid if pod.metadata else None


def test_an_ephemeral_container_keeps_no_pod_from_its_end(selected: Scene):
    """T9: an ephemeral container does not count, running or not."""
    pod = selected.start("worker")
    selected.kubelet.debug(pod, "debugger")

    selected.kubelet.finish(pod, "main")

    selected.await_phase(pod, "Succeeded")


def test_a_pod_at_the_address_of_a_finished_one_is_left_alone(selected: Scene):
    """T19: a retry that is due for the old pod is not for the new one, whose IP is the same."""
    kubelet = selected.kubelet
    old = selected.start("old")
    kubelet.misbehave(old, "refuse", times=1)
    kubelet.finish(old, "main")

    new = selected.start("new", ip=kubelet.address(old))
    selected.await_phase(old, "Succeeded")

    assert kubelet.execs_of(new) == []
    assert selected.phase(new) == "Running"
    kubelet.finish(new, "main")
    selected.await_phase(new, "Succeeded")
    assert len(kubelet.execs_of(new)) == 1
