"""The stand-in for Istio on a real kubelet, beside what `test_start` and `test_parade` show."""

from __future__ import annotations

import lab
import lab.istio
import pytest
from lab.meshed import await_phase, has_sidecar, proxy_exit_code, scripted
from lightkube import Client
from lightkube.resources.core_v1 import Namespace, Pod

HOLD = {"proxy.istio.io/config": "holdApplicationUntilProxyStarts: true"}
UNMESHED = {"sidecar.istio.io/inject": "false"}
pytestmark = pytest.mark.nightly("cluster/test_pilot_agent.py")
# Measured: a pod runs after 2 s and ends 2 s after its payload; 10 s on busy cores.
SOON = 100


@pytest.fixture
def meshed(client: Client, namespace: str, requested: lab.istio.Istio) -> str:
    """A namespace that Istio injects, without istio-aux."""
    labels = {"istio.io/rev": requested.revision}
    client.patch(Namespace, namespace, {"metadata": {"labels": labels}})
    probe = scripted(namespace, "probe", "true")
    lab.until(
        lambda: has_sidecar(client.create(probe, dry_run=True)),
        timeout=SOON,
        what=f"pods of {namespace} to be injected",
    )
    return namespace


def address(client: Client, namespace: str, script: str) -> str:
    """Where a new pod `server` with this payload runs."""
    client.create(scripted(namespace, "server", script, HOLD))
    status = await_phase(client, namespace, "server", "Running", timeout=SOON).status
    assert status
    assert status.podIP
    return status.podIP


def test_another_pod_may_not_quit_a_proxy(client: Client, meshed: str) -> None:
    server = address(client, meshed, "sleep 1000")
    post = f"wget -q -O - --post-data= http://{server}:15020/quitquitquit 2>&1 | grep 403"
    client.create(scripted(meshed, "stranger", post, UNMESHED))

    await_phase(client, meshed, "stranger", "Succeeded", timeout=SOON)

    assert proxy_exit_code(client.get(Pod, "server", namespace=meshed)) is None


def test_meshed_pods_reach_each_other_through_their_proxies(client: Client, meshed: str) -> None:
    server = address(client, meshed, "nc -ll -p 9000 -e netstat -tn")
    # The server shows whom it talks to: its own proxy's address for what arrived from outside.
    ask = f"until nc {server} 9000 </dev/null | grep 127.0.0.6; do usleep 50000; done"
    quit_ = "wget -q -O - --post-data= http://127.0.0.1:15020/quitquitquit"
    client.create(scripted(meshed, "client", f"{ask}; {quit_}", HOLD))

    await_phase(client, meshed, "client", "Succeeded", timeout=SOON)
