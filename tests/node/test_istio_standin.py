"""The stand-in for Istio on a real kubelet: what a Job sees of its sidecar, as with Istio."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

import lab
import lab.istio
import pytest
from lab import images, tools
from lab.meshed import proxy_exit_code
from lightkube import ApiError
from lightkube.models.core_v1 import Container, PodSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap, Namespace, Pod

HOLD = {"proxy.istio.io/config": "holdApplicationUntilProxyStarts: true"}
NATIVE = {"sidecar.istio.io/nativeSidecar": "true"}
UNMESHED = {"sidecar.istio.io/inject": "false"}
# A TCP connection to the API server, at once.
TALK = "nc kubernetes.default 443 </dev/null"
QUIT = ("pilot-agent", "request", "--debug-port=15020", "POST", "quitquitquit")
# Measured: a pod runs after 2 s and ends 2 s after its payload; 10 s on busy cores.
SOON = 100


@pytest.fixture
def meshed(cluster: lab.Cluster, istio: lab.istio.Istio, namespace: str) -> str:
    """A namespace whose pods Istio injects and can start."""
    with cluster.client() as client:
        labels = {"labels": {"istio-injection": "enabled"}}
        client.patch(Namespace, namespace, {"metadata": labels})
        lab.until(
            lambda: client.get(ConfigMap, "istio-ca-root-cert", namespace=namespace),
            timeout=SOON,
            what="the root certificate",
            ignoring=(ApiError,),
        )
        probe = pod(namespace, "probe", "true")
        lab.until(
            lambda: "istio-proxy" in str(client.create(probe, dry_run=True)),
            timeout=SOON,
            what="the namespace to be injected",
        )
    return namespace


def pod(namespace: str, name: str, script: str, annotations: dict[str, str] | None = None) -> Pod:
    main = Container(name="main", image=images.BUSYBOX, command=["sh", "-c", script])
    return Pod(
        metadata=ObjectMeta(name=name, namespace=namespace, annotations=annotations),
        spec=PodSpec(containers=[main], restartPolicy="Never", terminationGracePeriodSeconds=1),
    )


def run(
    cluster: lab.Cluster,
    namespace: str,
    name: str,
    script: str,
    annotations: dict[str, str] | None = None,
) -> int:
    """The exit code of a payload."""
    with cluster.client() as client:
        client.create(pod(namespace, name, script, annotations))
        ended = lab.until(
            lambda: exit_codes(client.get(Pod, name, namespace=namespace)),
            timeout=SOON,
            what=f"the payload of {namespace}/{name} to end",
        )
    return ended[0]


def exit_codes(pod: Pod) -> list[int]:
    """The exit code of the container `main`, when it has ended."""
    statuses = (pod.status.containerStatuses if pod.status else None) or []
    states = [s.state.terminated for s in statuses if s.name == "main" and s.state]
    return [terminated.exitCode for terminated in states if terminated]


def await_pod(cluster: lab.Cluster, namespace: str, name: str, phase: str) -> Pod:
    def reached() -> Pod | None:
        with cluster.client() as client:
            found = client.get(Pod, name, namespace=namespace)
        return found if found.status and found.status.phase == phase else None

    return lab.until(reached, timeout=SOON, what=f"{namespace}/{name} to be {phase}")


def in_proxy(
    cluster: lab.Cluster, namespace: str, name: str, command: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    kubectl = [tools.path("kubectl"), "--kubeconfig", cluster.kubeconfig, "-n", namespace]
    return subprocess.run(
        [*kubectl, "exec", name, "-c", "istio-proxy", "--", *command],
        capture_output=True,
        text=True,
        timeout=SOON,
        check=False,
    )


@pytest.mark.parametrize(
    ("annotations", "succeeds"), [({}, False), (HOLD, True), (NATIVE, True), (UNMESHED, True)]
)
def test_a_payload_that_talks_at_once_needs_a_proxy_that_is_ready(
    cluster: lab.Cluster, meshed: str, annotations: dict[str, str], succeeds: bool
) -> None:
    code = run(cluster, meshed, "talker", TALK, annotations)

    assert (code == 0) is succeeds


@pytest.mark.parametrize(("script", "phase"), [("exit 0", "Succeeded"), ("exit 3", "Failed")])
def test_after_a_quit_by_exec_the_proxy_ends_with_0_and_the_payload_decides(
    cluster: lab.Cluster, meshed: str, script: str, phase: str
) -> None:
    run(cluster, meshed, "job", script, HOLD)

    done = in_proxy(cluster, meshed, "job", QUIT)

    assert (done.returncode, done.stdout) == (0, "OK\n"), done.stderr
    assert proxy_exit_code(await_pod(cluster, meshed, "job", phase)) == 0


def test_a_native_sidecar_ends_by_itself(cluster: lab.Cluster, meshed: str) -> None:
    run(cluster, meshed, "job", "exit 0", NATIVE)

    assert proxy_exit_code(await_pod(cluster, meshed, "job", "Succeeded")) == 0


def test_a_classic_sidecar_that_nobody_quits_keeps_the_pod_running(
    cluster: lab.Cluster, meshed: str
) -> None:
    run(cluster, meshed, "job", "exit 0", HOLD)
    done = in_proxy(cluster, meshed, "job", ("pilot-agent", "request", "GET", "ready"))

    assert done.returncode == 0, done.stderr
    assert proxy_exit_code(await_pod(cluster, meshed, "job", "Running")) is None


def test_the_proxy_has_no_shell(cluster: lab.Cluster, meshed: str) -> None:
    run(cluster, meshed, "job", "exit 0", HOLD)

    done = in_proxy(cluster, meshed, "job", ("sh", "-c", "true"))

    assert done.returncode != 0
    assert "executable file not found" in done.stderr


def test_another_pod_may_not_quit_a_proxy(cluster: lab.Cluster, meshed: str) -> None:
    run(cluster, meshed, "job", "exit 0", HOLD)
    status = await_pod(cluster, meshed, "job", "Running").status
    assert status

    post = f"wget -q -O - --post-data= http://{status.podIP}:15020/quitquitquit 2>&1 | grep 403"
    code = run(cluster, meshed, "stranger", post, UNMESHED)

    assert code == 0
    assert proxy_exit_code(await_pod(cluster, meshed, "job", "Running")) is None


def test_the_payload_may_quit_its_own_proxy(cluster: lab.Cluster, meshed: str) -> None:
    post = "wget -q -O - --post-data= http://127.0.0.1:15020/quitquitquit"

    code = run(cluster, meshed, "job", post, HOLD)

    assert code == 0
    assert proxy_exit_code(await_pod(cluster, meshed, "job", "Succeeded")) == 0


@pytest.mark.parametrize(
    "annotations",
    [
        {"proxy.istio.io/config": f"{HOLD['proxy.istio.io/config']}\nstatusPort: 15520"},
        {**HOLD, "status.sidecar.istio.io/port": "15520"},
    ],
)
def test_a_moved_status_port_is_where_the_proxy_listens(
    cluster: lab.Cluster, meshed: str, annotations: dict[str, str]
) -> None:
    code = run(cluster, meshed, "job", "nc 127.0.0.1 15520 </dev/null", annotations)

    refused = in_proxy(cluster, meshed, "job", QUIT)
    done = in_proxy(cluster, meshed, "job", ("pilot-agent", "request", "POST", "quitquitquit"))

    assert code == 0
    assert refused.returncode == 255
    assert "connection refused" in refused.stderr
    assert done.returncode == 0
    assert proxy_exit_code(await_pod(cluster, meshed, "job", "Succeeded")) == 0


def test_meshed_pods_reach_each_other_through_their_proxies(
    cluster: lab.Cluster, meshed: str
) -> None:
    with cluster.client() as client:
        client.create(pod(meshed, "server", "nc -ll -p 9000 -e netstat -tn", HOLD))
    status = await_pod(cluster, meshed, "server", "Running").status
    assert status

    # The server shows whom it talks to: its own proxy's address for what arrived from outside.
    ask = f"until nc {status.podIP} 9000 </dev/null | grep 127.0.0.6; do usleep 50000; done"

    assert run(cluster, meshed, "client", ask, HOLD) == 0
