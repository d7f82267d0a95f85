"""The ways to a proxy's end: which is tried, and what comes next when one fails.

A way that fails costs about 3 s, so the pods whose first one does start together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import lightkube
import pytest
from lab.kubelet import Misbehaviour, ScriptedKubelet, Via
from lab.scene import Scene
from lab.served import stage
from lab.workload import Workload
from lightkube.resources.core_v1 import Pod

STATUS_PORT = "status.sidecar.istio.io/port"
PROXY_CONFIG = {"name": "PROXY_CONFIG", "value": '{"statusPort": 15521}'}
AGENT = ("pilot-agent", "request", "--debug-port=15020", "POST", "quitquitquit")
ENVOY = ("pilot-agent", "request", "POST", "quitquitquit")
HTTP = ("POST", "/quitquitquit")


@pytest.fixture(scope="module")
def steep(
    client: lightkube.Client, kubelet: ScriptedKubelet, workload: Workload
) -> Iterator[Scene]:
    """A selected namespace for the pods that take more than one way."""
    with stage(client, kubelet, workload) as scene:
        yield scene


@pytest.fixture(scope="module")
def closed(steep: Scene) -> Pod:
    """A finished pod in whose proxy nothing can be executed."""
    return finished(steep, "closed", "refuse", "exec")


@pytest.fixture(scope="module")
def unforwarded(steep: Scene) -> Pod:
    """A finished pod with a status port of its own, to which nothing is forwarded."""
    return finished(
        steep, "unforwarded", "unavailable", "port-forward", annotations={STATUS_PORT: "15520"}
    )


@pytest.fixture(scope="module")
def deaf(steep: Scene) -> Pod:
    """A finished pod whose forwarded status port answers 404."""
    return finished(steep, "deaf", "not-found", "port-forward", annotations={STATUS_PORT: "15520"})


@pytest.fixture(autouse=True, scope="module")
def slow(closed: Pod, unforwarded: Pod, deaf: Pod) -> None:
    """All of them at once, so that they fail side by side."""


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


def test_where_nothing_can_be_executed_a_forwarded_port_frees_the_pod(steep: Scene, closed: Pod):
    """T14, T23: the second attempt takes the second way."""
    steep.await_phase(closed, "Succeeded")
    assert ways(steep, closed) == [AGENT, HTTP]


def test_where_nothing_can_be_forwarded_envoy_frees_the_pod(steep: Scene, unforwarded: Pod):
    """T21, T23: the last way needs no status port."""
    steep.await_phase(unforwarded, "Succeeded")
    assert ways(steep, unforwarded) == [(), ENVOY]


def test_a_forwarded_port_that_answers_404_is_no_success(steep: Scene, deaf: Pod):
    """T16: the proxy runs on, so it is told again, in another way."""
    steep.await_phase(deaf, "Succeeded")
    assert ways(steep, deaf) == [HTTP, ENVOY]
