"""The workload frees the proxies of finished pods, and of no others: real API server, real RBAC.

Which pods are finished is a rule: `tests/unit/rules/`. So is what follows from an answer of a
proxy: `tests/unit/test_quit_failures.py` plays it in time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lab
import lightkube
import pytest
from istio_aux.kube import actions
from istio_aux.model.annotations import STATUS_PORT
from istio_aux.model.sidecars import SHIPPED
from lab import meshed
from lab.kubelet import Misbehaviour, ScriptedKubelet, Via
from lab.scene import Scene
from lab.workload import Programs, Stages, Workload
from lightkube.core.selector import build_selector
from lightkube.operators import not_equal, not_in
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Pod

from config import Applications

AGENT = ("pilot-agent", "request", "--debug-port=15020", "POST", "quitquitquit")


def test_a_payload_that_succeeds_frees_its_proxy_with_one_quit(selected: Scene):
    """No shell, the port named, exit code 0, once.

    istio.io#5073, istio#11659, kruise#1285, uds-core#972.
    """
    pod = selected.start("worker")

    selected.kubelet.finish(pod, "main")

    selected.await_phase(pod, "Succeeded")
    assert selected.proxy_exit_code(pod) == 0
    execs = [(e.container, e.command) for e in selected.kubelet.execs_of(pod)]
    assert execs == [("istio-proxy", AGENT)]


def run_job(scene: Scene) -> Pod:
    """A Job of one try whose pod has a classic sidecar; returns the pod, running."""
    scene.client.create(meshed.job(meshed.pod(scene.namespace, "job"), backoffLimit=0))
    pods = lab.until(
        lambda: list(scene.client.list(Pod, namespace=scene.namespace)), what="the Job's pod"
    )
    scene.kubelet.run(pods[0])
    return pods[0]


def conditions(scene: Scene) -> set[str]:
    status = scene.client.get(Job, "job", namespace=scene.namespace).status
    return {c.type for c in (status and status.conditions) or [] if c.status == "True"}


def test_a_label_on_its_namespace_frees_a_job_that_hangs_beside_its_sidecar(
    scene: Scene, workload: Workload
):
    """The problem that istio-aux is there for. A namespace that loses its label is left alone."""
    pod = run_job(scene)
    scene.kubelet.finish(pod, "main")
    scene.await_control()
    assert (scene.phase(pod), conditions(scene)) == ("Running", set())

    workload.select(scene.namespace)
    scene.await_phase(pod, "Succeeded")

    workload.select(scene.namespace, selected=False)
    later = scene.start("later")
    scene.kubelet.finish(later, "main")
    scene.await_control()
    assert scene.kubelet.execs_of(later) == []


def test_a_job_of_an_injected_application_ends_in_a_namespace_that_is_not_selected(
    kubelet: ScriptedKubelet, scene: Scene, programs: Programs
):
    """With the workload's own rights; of the same namespace nothing else is touched."""
    programs("asked", inject=(Applications(scene.namespace, ("web",)),))
    other = scene.start("other")
    kubelet.finish(other, "main")
    web = scene.start("web", labels={"app.kubernetes.io/name": "web"})

    kubelet.finish(web, "main")

    scene.await_phase(web, "Succeeded")
    assert kubelet.execs_of(other) == []


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


@pytest.mark.parametrize("how", ["exit-137", "close-without-status", "reset"])
@pytest.mark.parametrize(
    ("annotations", "way"), [({}, AGENT), (OWN_PORT, HTTP)], ids=["exec", "port-forward"]
)
def test_a_quit_that_is_cut_by_its_own_success_is_not_repeated(
    selected: Scene, how: Misbehaviour, annotations: dict[str, str], way: tuple[str, ...]
):
    """Whatever the attempt answered, the container's status says that the proxy is gone.

    python#2156.
    """
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
    """istio.io#5073: a 404 is no success; the last way needs no status port."""
    scene.await_phase(steep[pod], "Succeeded")
    assert ways(scene, steep[pod]) == taken


OWN = "my-proxy=9000/stop?now"
SETTINGS = {"sidecars": ",".join([*(f"{name}=quit" for name in SHIPPED), OWN])}
# Container, port and path, as the sidecar has them.
LISTENERS = {
    "cloud-sql-proxy": (9091, "/quitquitquit"),
    "alloydb-auth-proxy": (9091, "/quitquitquit"),
    "vault-agent": (8200, "/agent/v1/quit"),
    "linkerd-proxy": (4191, "/shutdown"),
    "consul-dataplane": (20300, "/graceful_shutdown"),
    "daprd": (3500, "/v1.0/shutdown"),
    "kuma-sidecar": (9901, "/quitquitquit"),
    "my-proxy": (9000, "/stop?now"),
}


@pytest.fixture(scope="module")
def telling(programs: Programs) -> Workload:
    """A workload with every shipped rule, and one of the admin's own."""
    return programs("telling", SETTINGS)


@pytest.fixture(scope="module")
def place(telling: Workload, stages: Stages) -> Scene:
    return stages(telling)


def test_each_sidecar_exits_and_then_the_proxy(place: Scene):
    pods = {name: place.start(f"with-{name}", payload=("main", name)) for name in LISTENERS}
    for name, listener in LISTENERS.items():
        place.kubelet.listen(pods[name], name, *listener)

    for pod in pods.values():
        place.kubelet.finish(pod, "main")

    for name, pod in pods.items():
        place.await_phase(pod, "Succeeded")
        assert [each.container for each in place.kubelet.execs_of(pod)] == [name, "istio-proxy"]
        assert place.proxy_exit_code(pod) == 0


def test_a_sidecar_that_fails_is_told_and_the_proxy_goes_all_the_same(place: Scene):
    """The pod fails by it, and its owner is told why."""
    pod = place.start("fails", payload=("main", "cloud-sql-proxy"))
    place.kubelet.listen(pod, "cloud-sql-proxy", *LISTENERS["cloud-sql-proxy"], 143)

    place.kubelet.finish(pod, "main")

    place.await_phase(pod, "Failed")
    assert place.proxy_exit_code(pod) == 0
    lab.until(
        lambda: any("cloud-sql-proxy exited with 143" in note for note in place.notes(pod)),
        what="the Event",
    )


def test_a_sidecar_whose_own_switch_is_off_keeps_the_proxy_and_is_named_with_the_switch(
    place: Scene, telling: Workload
):
    """Nothing listens there. The proxy stays: the sidecar may need the network to end."""
    pod = place.start("switch-off", payload=("main", "vault-agent"))

    place.kubelet.finish(pod, "main")

    def stuck() -> list[str]:
        found = telling.status()["stuck-pods"]
        return [each["reason"] for each in found if each["name"] == "switch-off"]

    [reason] = lab.until(stuck, what="the pod to be stuck")
    assert "connection refused" in reason
    assert "vault-agent needs annotation vault.hashicorp.com/agent-enable-quit" in reason
    assert place.proxy_exit_code(pod) is None


AT = "2026-11-21T08:16:30Z"


def status(phase: str, *, exited: bool) -> dict[str, Any]:
    ended = {"terminated": {"exitCode": 0, "finishedAt": AT, "startedAt": AT, "containerID": "x"}}
    states = {"main": ended, meshed.PROXY: ended if exited else {"running": {"startedAt": AT}}}
    return {
        "phase": phase,
        "containerStatuses": [
            {
                "name": name, "state": state, "image": "app", "imageID": "app",
                "ready": False, "restartCount": 0,
            }
            for name, state in states.items()
        ],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("selection", "fields"),
    [
        (
            actions.JOBS,
            {
                "status.phase": not_in(["Succeeded", "Failed"]),
                "spec.restartPolicy": not_equal("Always"),
            },
        ),
        (actions.NOT_TERMINAL, {"status.phase": not_in(["Succeeded", "Failed"])}),
    ],
)
def test_a_pod_that_leaves_a_selection_comes_as_it_was_before(
    scene: Scene, client: lightkube.Client, selection: Mapping[str, str], fields: Any
):
    """So its last state shows an exit only where a change before has shown it already.

    The kubelet reports the exit first, and the phase once it has stopped the pod: that quit needs
    no second read. Where both come in one change, only a read tells the exit code.
    """
    asked = build_selector(fields, for_fields=True)
    assert sorted(asked.split(",")) == sorted(selection["fieldSelector"].split(","))

    def patch(name: str, phase: str, *, exited: bool) -> None:
        client.patch(
            Pod.Status, name, {"status": status(phase, exited=exited)}, namespace=scene.namespace
        )

    def watched(name: str, *changes: tuple[str, bool]) -> list[tuple[str, int | None]]:
        client.create(meshed.pod(scene.namespace, name))
        patch(name, "Running", exited=False)
        events = client.watch(Pod, namespace=scene.namespace, fields=fields)
        told = [next(events)]
        for phase, exited in changes:
            patch(name, phase, exited=exited)
            told.append(next(events))
        assert {pod.status and pod.status.phase for _, pod in told} == {"Running"}
        return [(what, meshed.proxy_exit_code(pod)) for what, pod in told]

    assert watched("once", ("Succeeded", True)) == [("ADDED", None), ("DELETED", None)]
    assert watched("twice", ("Running", True), ("Succeeded", True)) == [
        ("ADDED", None), ("MODIFIED", 0), ("DELETED", 0),
    ]  # fmt: skip
