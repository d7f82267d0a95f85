"""The stand-in for Istio on a real kubelet, beside what `test_start` and `test_parade` show."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator, Sequence

import lab
import lab.istio
import pytest
from lab import tools
from lab.fixtures import await_account
from lab.meshed import await_phase, proxy_exit_code, scripted
from lightkube import ApiError
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap, Namespace, Pod

HOLD = {"proxy.istio.io/config": "holdApplicationUntilProxyStarts: true"}
UNMESHED = {"sidecar.istio.io/inject": "false"}
pytestmark = pytest.mark.nightly("cluster/test_pilot_agent.py")
QUIT = ("pilot-agent", "request", "--debug-port=15020", "POST", "quitquitquit")
# Measured: a pod runs after 2 s and ends 2 s after its payload; 10 s on busy cores.
SOON = 100


# Their payloads start, and mostly end, side by side.
PODS = {
    "idle": ("exit 0", HOLD),
    "quitting": ("wget -q -O - --post-data= http://127.0.0.1:15020/quitquitquit", HOLD),
    "moved": (
        "nc 127.0.0.1 15520 </dev/null",
        {"proxy.istio.io/config": f"{HOLD['proxy.istio.io/config']}\nstatusPort: 15520"},
    ),
    "server": ("nc -ll -p 9000 -e netstat -tn", HOLD),
}


@pytest.fixture(scope="module")
def meshed(cluster: lab.Cluster, requested: lab.istio.Istio) -> Iterator[str]:
    """A namespace that Istio injects, with all of `PODS`."""
    name = f"meshed-{secrets.token_hex(3)}"
    with cluster.client() as client:
        labels = {"istio.io/rev": requested.revision}
        client.create(Namespace(metadata=ObjectMeta(name=name, labels=labels)))
        await_account(client, name)
        lab.until(
            lambda: client.get(ConfigMap, "istio-ca-root-cert", namespace=name),
            timeout=SOON,
            what="the root certificate",
            ignoring=(ApiError,),
        )
        probe = scripted(name, "probe", "true")
        lab.until(
            lambda: "istio-proxy" in str(client.create(probe, dry_run=True)),
            timeout=SOON,
            what="the namespace to be injected",
        )
        for pod_name, (script, annotations) in PODS.items():
            client.create(scripted(name, pod_name, script, annotations))
        yield name
        client.delete(Namespace, name)


def run(
    cluster: lab.Cluster, namespace: str, name: str, script: str, annotations: dict[str, str]
) -> int:
    """The exit code of a payload of the test's own."""
    with cluster.client() as client:
        client.create(scripted(namespace, name, script, annotations))
    return code(cluster, namespace, name)


def code(cluster: lab.Cluster, namespace: str, name: str) -> int:
    """The exit code of a payload, once it has ended."""
    with cluster.client() as client:
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
    with cluster.client() as client:
        return await_phase(client, namespace, name, phase, timeout=SOON)


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


def test_the_proxy_has_no_shell(cluster: lab.Cluster, meshed: str) -> None:
    await_pod(cluster, meshed, "idle", "Running")

    done = in_proxy(cluster, meshed, "idle", ("sh", "-c", "true"))

    assert done.returncode != 0
    assert "executable file not found" in done.stderr


def test_another_pod_may_not_quit_a_proxy(cluster: lab.Cluster, meshed: str) -> None:
    status = await_pod(cluster, meshed, "idle", "Running").status
    assert status

    post = f"wget -q -O - --post-data= http://{status.podIP}:15020/quitquitquit 2>&1 | grep 403"

    assert run(cluster, meshed, "stranger", post, UNMESHED) == 0
    assert proxy_exit_code(await_pod(cluster, meshed, "idle", "Running")) is None


def test_the_payload_may_quit_its_own_proxy(cluster: lab.Cluster, meshed: str) -> None:
    assert code(cluster, meshed, "quitting") == 0
    assert proxy_exit_code(await_pod(cluster, meshed, "quitting", "Succeeded")) == 0


def test_a_moved_status_port_is_where_the_proxy_listens(cluster: lab.Cluster, meshed: str) -> None:
    found = code(cluster, meshed, "moved")

    refused = in_proxy(cluster, meshed, "moved", QUIT)
    done = in_proxy(cluster, meshed, "moved", ("pilot-agent", "request", "POST", "quitquitquit"))

    assert found == 0
    assert refused.returncode == 255
    assert "connection refused" in refused.stderr
    assert (done.returncode, done.stdout) == (0, "OK\n"), done.stderr
    assert proxy_exit_code(await_pod(cluster, meshed, "moved", "Succeeded")) == 0


def test_meshed_pods_reach_each_other_through_their_proxies(
    cluster: lab.Cluster, meshed: str
) -> None:
    status = await_pod(cluster, meshed, "server", "Running").status
    assert status

    # The server shows whom it talks to: its own proxy's address for what arrived from outside.
    ask = f"until nc {status.podIP} 9000 </dev/null | grep 127.0.0.6; do usleep 50000; done"

    assert run(cluster, meshed, "client", ask, HOLD) == 0
