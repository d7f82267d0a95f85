"""Sidecars that never end by themselves are told to, before the proxy: real API server and RBAC."""

from __future__ import annotations

from collections.abc import Iterator

import lab
import lightkube
import pytest
from istio_aux.model.sidecars import SHIPPED
from lab.kubelet import ScriptedKubelet
from lab.scene import Scene
from lab.served import program, stage
from lab.workload import Workload
from lightkube.resources.core_v1 import Pod

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
def telling(cluster: lab.Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workload]:
    """A workload with every shipped rule, and one of the admin's own."""
    with program(cluster, tmp_path_factory.mktemp("telling"), "telling", SETTINGS) as workload:
        yield workload


@pytest.fixture(scope="module")
def scene(client: lightkube.Client, kubelet: ScriptedKubelet, telling: Workload) -> Iterator[Scene]:
    """The namespace that it serves."""
    with stage(client, kubelet, telling) as scene:
        yield scene


def told(scene: Scene, pod: Pod) -> list[str]:
    """The containers that were told to exit, in order."""
    return [each.container for each in scene.kubelet.execs_of(pod)]


@pytest.mark.parametrize("sidecar", LISTENERS)
def test_a_sidecar_exits_and_then_the_proxy(scene: Scene, sidecar: str):
    pod = scene.start(f"with-{sidecar}", payload=("main", sidecar))
    scene.kubelet.listen(pod, sidecar, *LISTENERS[sidecar])

    scene.kubelet.finish(pod, "main")

    scene.await_phase(pod, "Succeeded")
    assert told(scene, pod) == [sidecar, "istio-proxy"]
    assert scene.proxy_exit_code(pod) == 0


def test_a_sidecar_without_a_port_exits_by_a_command_and_then_the_proxy(scene: Scene):
    pod = scene.start("with-collector", payload=("main", "collector"))
    scene.kubelet.obey(pod, "collector", *COMMAND)

    scene.kubelet.finish(pod, "main")

    scene.await_phase(pod, "Succeeded")
    assert told(scene, pod) == ["collector", "istio-proxy"]
    assert scene.kubelet.execs_of(pod)[0].command == COMMAND


def test_two_sidecars_go_in_the_order_of_the_pod_and_nothing_before_the_payload(scene: Scene):
    pod = scene.start("with-two", payload=("daprd", "main", "vault-agent", "upload"))
    for sidecar in ("daprd", "vault-agent"):
        scene.kubelet.listen(pod, sidecar, *LISTENERS[sidecar])

    scene.kubelet.finish(pod, "main")
    scene.await_control()
    assert told(scene, pod) == []
    scene.kubelet.finish(pod, "upload")

    scene.await_phase(pod, "Succeeded")
    assert told(scene, pod) == ["daprd", "vault-agent", "istio-proxy"]


def test_beside_a_native_proxy_the_sidecar_is_all_that_holds_the_pod(scene: Scene):
    pod = scene.start("beside-native", sidecar="native", payload=("main", "vault-agent"))
    scene.kubelet.listen(pod, "vault-agent", *LISTENERS["vault-agent"])

    scene.kubelet.finish(pod, "main")

    scene.await_phase(pod, "Succeeded")
    assert told(scene, pod) == ["vault-agent"]


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
