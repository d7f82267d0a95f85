"""The annotations of a pod, and what keeps a pod from its end."""

from __future__ import annotations

import datetime
from typing import Any

import lab
import pytest
from lab.scene import Scene
from lab.served import metric
from lab.workload import Workload
from lightkube.resources.core_v1 import Pod


def pods(workload: Workload, scene: Scene, key: str) -> dict[str, Any]:
    """What ``/status`` lists under ``key`` of the scene's pods, by name."""
    found = workload.status()[key]
    return {pod["name"]: pod for pod in found if pod["namespace"] == scene.namespace}


@pytest.mark.parametrize(
    "annotations",
    [
        {"istio-aux.io/ignore-containers": "vault-agent"},
        {"istio-aux.io/quit-after": "main"},
    ],
    ids=["ignore-containers", "quit-after"],
)
def test_a_container_that_the_pod_excuses_keeps_no_proxy(
    selected: Scene, annotations: dict[str, str]
):
    """T13: the proxy goes with the main container, and the other runs on for itself."""
    pod = selected.start("worker", payload=("main", "vault-agent"), annotations=annotations)

    selected.kubelet.finish(pod, "main")

    lab.until(
        lambda: selected.proxy_exit_code(pod) == 0, timeout=30, what="the proxy to exit with 0"
    )
    assert selected.phase(pod) == "Running"


@pytest.mark.parametrize(
    "annotations",
    [
        {"istio-aux.io/quit": "false"},
        {"istio-aux.io/quit": "no"},
        {"istio-aux.io/quit-after": "nobody"},
        {"istio-aux.io/quit-grace": "soon"},
    ],
    ids=["false", "misspelt", "no container", "no duration"],
)
def test_a_pod_that_opts_out_or_has_an_invalid_annotation_keeps_its_proxy(
    selected: Scene, annotations: dict[str, str]
):
    """A misspelt annotation must not cost a proxy."""
    pod = selected.start("worker", annotations=annotations)

    selected.kubelet.finish(pod, "main")

    selected.await_control()
    assert selected.kubelet.execs_of(pod) == []


def test_a_grace_period_passes_between_the_end_of_the_payload_and_the_quit(selected: Scene):
    """Telemetry that is still in flight gets out (istio/proxy#2122)."""
    pod = selected.start("worker", annotations={"istio-aux.io/quit-grace": "2s"})

    selected.kubelet.finish(pod, "main")

    finished = finished_at(selected.look(pod))
    selected.await_phase(pod, "Succeeded")
    (quit_,) = selected.kubelet.execs_of(pod)
    assert quit_.at >= finished + datetime.timedelta(seconds=2)


def finished_at(pod: Pod) -> datetime.datetime:
    """When `main` ended, as the API server has it."""
    assert pod.status
    (main,) = [c for c in pod.status.containerStatuses or [] if c.name == "main"]
    assert main.state
    assert main.state.terminated
    assert main.state.terminated.finishedAt
    return main.state.terminated.finishedAt


def test_a_pod_that_another_sidecar_blocks_is_reported_by_its_name(
    selected: Scene, workload: Workload
):
    """T13: long-running sidecars that nobody excused are not silently ignored."""
    pod = selected.start("worker", payload=("main", "vault-agent"))

    selected.kubelet.finish(pod, "main")

    blocked = lab.until(
        lambda: pods(workload, selected, "blocked-pods").get("worker"),
        timeout=30,
        what="the pod to be reported as blocked",
    )
    assert blocked["by"] == ["vault-agent"]
    assert selected.kubelet.execs_of(pod) == []
    selected.kubelet.finish(pod, "vault-agent")
    selected.await_phase(pod, "Succeeded")
    lab.until(
        lambda: not pods(workload, selected, "blocked-pods"), timeout=30, what="the report to end"
    )


def test_a_proxy_that_dies_before_its_payload_is_reported_and_the_pod_stays(
    selected: Scene, workload: Workload
):
    """T30, T39: `pilot-agent wait` timed out, or Envoy was killed for its memory."""
    late, killed = selected.start("late"), selected.start("killed")

    selected.kubelet.finish(late, "istio-proxy", 0)
    selected.kubelet.finish(killed, "istio-proxy", 137, reason="OOMKilled")

    lab.until(
        lambda: pods(workload, selected, "lost-pods").keys() == {"late", "killed"},
        timeout=30,
        what="the pods to be reported as lost",
    )
    for pod in (late, killed):
        assert "main" in selected.await_event(pod, "ProxyLost")
        assert selected.kubelet.execs_of(pod) == []
        assert selected.phase(pod) == "Running"
    assert metric(workload, 'istio_aux_dead_proxies_total{action="reported"}') >= 2
    for pod in (late, killed):
        selected.kubelet.finish(pod, "main")
    lab.until(
        lambda: not pods(workload, selected, "lost-pods"), timeout=30, what="the report to end"
    )
