"""Sidecars that never end by themselves are told to, before the proxy: real API server and RBAC."""

from __future__ import annotations

import lab
import pytest
from istio_aux.model.sidecars import SHIPPED
from lab.scene import Scene
from lab.served import Programs, Stages
from lab.workload import Workload

OWN = "my-proxy=9000/stop?now"
COMMAND = ("/bin/kill", "-TERM", "1")
SETTINGS = {"quit-sidecars": [*SHIPPED, OWN, f"collector={' '.join(COMMAND)}"]}
# Container, port and path, as the sidecar has them.
LISTENERS = {
    "cloud-sql-proxy": (9091, "/quitquitquit"),
    "vault-agent": (8200, "/agent/v1/quit"),
    "linkerd-proxy": (4191, "/shutdown"),
    "daprd": (3500, "/v1.0/shutdown"),
    "kuma-sidecar": (9901, "/quitquitquit"),
    "my-proxy": (9000, "/stop?now"),
}


@pytest.fixture(scope="module")
def telling(programs: Programs) -> Workload:
    """A workload with every shipped rule, and one of the admin's own."""
    return programs("telling", SETTINGS)


@pytest.fixture(scope="module")
def scene(telling: Workload, stages: Stages) -> Scene:
    """The namespace that it serves."""
    return stages(telling)


def test_each_sidecar_exits_and_then_the_proxy(scene: Scene):
    """By its port and path, or by its command."""
    pods = {name: scene.start(f"with-{name}", payload=("main", name)) for name in LISTENERS}
    pods["collector"] = scene.start("with-collector", payload=("main", "collector"))
    for name, listener in LISTENERS.items():
        scene.kubelet.listen(pods[name], name, *listener)
    scene.kubelet.obey(pods["collector"], "collector", *COMMAND)

    for pod in pods.values():
        scene.kubelet.finish(pod, "main")

    for name, pod in pods.items():
        scene.await_phase(pod, "Succeeded")
        execs = scene.kubelet.execs_of(pod)
        assert [each.container for each in execs] == [name, "istio-proxy"]
        assert scene.proxy_exit_code(pod) == 0
    assert scene.kubelet.execs_of(pods["collector"])[0].command == COMMAND


def test_a_sidecar_that_fails_is_told_and_the_proxy_goes_all_the_same(scene: Scene):
    """The pod fails by it, and its owner is told why."""
    pod = scene.start("fails", payload=("main", "cloud-sql-proxy"))
    scene.kubelet.listen(pod, "cloud-sql-proxy", *LISTENERS["cloud-sql-proxy"], 143)

    scene.kubelet.finish(pod, "main")

    scene.await_phase(pod, "Failed")
    assert scene.proxy_exit_code(pod) == 0
    lab.until(
        lambda: any("cloud-sql-proxy exited with 143" in note for note in scene.notes(pod)),
        timeout=60,
        what="the Event",
    )


def test_a_sidecar_whose_own_switch_is_off_keeps_the_proxy_and_is_named_with_the_switch(
    scene: Scene, telling: Workload
):
    """Nothing listens there. The proxy stays: the sidecar may need the network to end."""
    pod = scene.start("switch-off", payload=("main", "vault-agent"))

    scene.kubelet.finish(pod, "main")

    def stuck() -> list[str]:
        found = telling.status()["stuck-pods"]
        return [each["reason"] for each in found if each["name"] == "switch-off"]

    [reason] = lab.until(stuck, timeout=60, what="the pod to be stuck")
    assert "connection refused" in reason
    assert "vault-agent needs annotation vault.hashicorp.com/agent-enable-quit" in reason
    assert scene.proxy_exit_code(pod) is None
