"""The ways to a proxy's end: which is tried, and what comes next when one fails.

A way that fails costs about 3 s, so the pods whose first one does start together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from istio_aux.model.annotations import STATUS_PORT
from lab.kubelet import Misbehaviour, Via
from lab.scene import Scene
from lab.served import Stages
from lab.workload import Workload
from lightkube.resources.core_v1 import Pod

PROXY_CONFIG = {"name": "PROXY_CONFIG", "value": '{"statusPort": 15521}'}
AGENT = ("pilot-agent", "request", "--debug-port=15020", "POST", "quitquitquit")
ENVOY = ("pilot-agent", "request", "POST", "quitquitquit")
HTTP = ("POST", "/quitquitquit")


@pytest.fixture(autouse=True, scope="module")
def steep(workload: Workload, stages: Stages) -> dict[str, Pod]:
    """Finished pods whose first way fails, all at once. One cannot be executed in.

    The others have a status port of their own: to one nothing is forwarded, one answers 404.
    """
    scene = stages(workload)
    port = {STATUS_PORT: "15520"}
    return {
        "closed": finished(scene, "closed", "refuse", "exec"),
        "unforwarded": finished(
            scene, "unforwarded", "unavailable", "port-forward", annotations=port
        ),
        "deaf": finished(scene, "deaf", "not-found", "port-forward", annotations=port),
    }


def finished(scene: Scene, name: str, behaviour: Misbehaviour, via: Via, **what: Any) -> Pod:
    pod = scene.start(name, **what)
    scene.kubelet.misbehave(pod, behaviour, via=via)
    scene.kubelet.finish(pod, "main")
    return pod


def ways(scene: Scene, pod: Pod) -> list[tuple[str, ...]]:
    return [e.command for e in scene.kubelet.execs_of(pod)]


@pytest.mark.parametrize(
    "what",
    [
        {"annotations": {STATUS_PORT: "15520"}},
        {"more": {"istio-proxy": {"env": [PROXY_CONFIG]}}},
    ],
    ids=["annotation", "PROXY_CONFIG"],
)
def test_an_agent_on_a_port_of_its_own_is_reached_through_a_forwarded_port(
    selected: Scene, what: Mapping[str, Any]
):
    """T21, T24: such a port is outside of what pilot-agent's own client may ask."""
    pod = selected.start("worker", **what)

    selected.kubelet.finish(pod, "main")

    selected.await_phase(pod, "Succeeded")
    assert selected.proxy_exit_code(pod) == 0
    assert ways(selected, pod) == [HTTP]


def test_a_proxy_without_a_status_server_is_quit_through_envoy(selected: Scene):
    """T21: port 0 turns the status server off; Envoy's admin ends the proxy with 0 as well."""
    pod = selected.start("worker", annotations={STATUS_PORT: "0"})

    selected.kubelet.finish(pod, "main")

    selected.await_phase(pod, "Succeeded")
    assert selected.proxy_exit_code(pod) == 0
    assert ways(selected, pod) == [ENVOY]


@pytest.mark.parametrize("how", ["close-without-status", "reset"])
def test_a_forwarded_quit_that_is_cut_by_its_own_success_is_not_repeated(
    selected: Scene, how: Misbehaviour
):
    """T17: whatever the attempt answered, the container's status says that the proxy is gone."""
    pod = selected.start("worker", annotations={STATUS_PORT: "15520"})
    selected.kubelet.misbehave(pod, how)

    selected.kubelet.finish(pod, "main")

    selected.await_phase(pod, "Succeeded")
    assert ways(selected, pod) == [HTTP]


@pytest.mark.parametrize(
    ("pod", "taken"),
    [("closed", [AGENT, HTTP]), ("unforwarded", [(), ENVOY]), ("deaf", [HTTP, ENVOY])],
)
def test_where_one_way_fails_the_next_one_frees_the_pod(
    scene: Scene, steep: dict[str, Pod], pod: str, taken: list[tuple[str, ...]]
):
    """T14, T16, T21, T23: a 404 is no success; the last way needs no status port."""
    scene.await_phase(steep[pod], "Succeeded")
    assert ways(scene, steep[pod]) == taken
