"""The ways to a proxy's end at a real API server: which is tried, and what comes next after it.

What follows from an answer is a rule: `tests/unit/test_quit_failures.py` plays it in time.
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
OWN_PORT = {STATUS_PORT: "15520"}


@pytest.fixture(autouse=True, scope="module")
def steep(workload: Workload, stages: Stages) -> dict[str, Pod]:
    """Finished pods whose first way fails, all at once: it costs 3 s. One cannot be executed in.

    The others have a status port of their own: to one nothing is forwarded, one answers 404.
    """
    scene = stages(workload)
    return {
        "closed": finished(scene, "closed", "refuse", "exec"),
        "unforwarded": finished(
            scene, "unforwarded", "unavailable", "port-forward", annotations=OWN_PORT
        ),
        "deaf": finished(scene, "deaf", "not-found", "port-forward", annotations=OWN_PORT),
    }


def finished(
    scene: Scene, name: str, behaviour: Misbehaviour, via: Via | None = None, **what: Any
) -> Pod:
    pod = scene.start(name, **what)
    scene.kubelet.misbehave(pod, behaviour, via=via)
    scene.kubelet.finish(pod, "main")
    return pod


def ways(scene: Scene, pod: Pod) -> list[tuple[str, ...]]:
    return [e.command for e in scene.kubelet.execs_of(pod)]


@pytest.mark.parametrize(
    ("what", "way"),
    [
        ({"annotations": OWN_PORT}, HTTP),
        ({"more": {"istio-proxy": {"env": [PROXY_CONFIG]}}}, HTTP),
        ({"annotations": {STATUS_PORT: "0"}}, ENVOY),
    ],
    ids=["annotation", "PROXY_CONFIG", "no status server"],
)
def test_an_agent_is_reached_where_it_listens(
    selected: Scene, what: Mapping[str, Any], way: tuple[str, ...]
):
    """T21, T24: pilot-agent's own client may not ask other ports; Envoy's admin exits 0, too."""
    pod = selected.start("worker", **what)

    selected.kubelet.finish(pod, "main")

    selected.await_phase(pod, "Succeeded")
    assert selected.proxy_exit_code(pod) == 0
    assert ways(selected, pod) == [way]


@pytest.mark.parametrize("how", ["exit-137", "close-without-status", "reset"])
@pytest.mark.parametrize(
    ("annotations", "way"), [({}, AGENT), (OWN_PORT, HTTP)], ids=["exec", "port-forward"]
)
def test_a_quit_that_is_cut_by_its_own_success_is_not_repeated(
    selected: Scene, how: Misbehaviour, annotations: dict[str, str], way: tuple[str, ...]
):
    """T17: whatever the attempt answered, the container's status says that the proxy is gone."""
    pod = finished(selected, "worker", how, annotations=annotations)

    selected.await_phase(pod, "Succeeded")
    assert ways(selected, pod) == [way]


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
