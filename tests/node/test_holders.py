"""Pods that a sidecar or an init container keeps from starting or ending, on a real kubelet.

`audit` names each. A kubelet that forgets a restart: unit/rules/test_quit_blocked.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import lab
import pytest
from lab import images, workloads
from lab.workload import ask
from lab.workloads import TALK, Workload, container, pod
from lightkube import Client

pytestmark = pytest.mark.nightly("unit/rules/test_quit_blocked.py has each of these pods")

NATIVE = {"sidecar.istio.io/nativeSidecar": "true"}
# No istiod answers the proxy.
NEVER_READY = {"proxy.istio.io/config": "discoveryAddress: istiod.nowhere.svc:15012", **NATIVE}
DEAF = container("trap '' TERM; while :; do sleep 1; done", "shipper", restartPolicy="Always")
NO_PROGRAM = {**DEAF, "command": ["/no/such/program"]}
FETCH = [container("exit 1", "fetch")]


def proxy(**more: Any) -> dict[str, Any]:
    """What the pod's author changes of its sidecar."""
    return {"name": "istio-proxy", "image": images.PROXYV2, **more}


MAIN = container("true")
# By name: where, the pod, the state of `audit`, and the container.
PODS: Mapping[str, tuple[str, dict[str, Any], str, str]] = {
    "never-ready": ("native", pod(MAIN, annotations=NEVER_READY), "unstarted", "istio-proxy"),
    "cannot-start": (
        "native", pod(MAIN, annotations=NATIVE, initContainers=[NO_PROGRAM]), "unstarted", "shipper"
    ),
    "runs-on": (
        "native",
        pod(MAIN, annotations=NATIVE, initContainers=[DEAF], terminationGracePeriodSeconds=3600),
        "blocked", "shipper",
    ),
    "no-image": (
        "classic",
        pod(MAIN, proxy(image="nowhere/proxyv2", imagePullPolicy="Never")),
        "blocked", "istio-proxy",
    ),
    "crashes": (
        "classic", pod(MAIN, proxy(args=["no-such-command"]), restart="OnFailure"),
        "blocked", "istio-proxy",
    ),
    "fetch-fails": (
        "classic", pod(MAIN, initContainers=FETCH, restart="OnFailure"), "unstarted", "fetch"
    ),
}  # fmt: skip
WORKS = Workload("works", pod(MAIN, initContainers=[container(f"{TALK}; sleep 86400", "fetch")]))


@pytest.fixture(scope="module", autouse=True)
def created(client: Client, places: Mapping[str, str]) -> Iterator[None]:
    """These pods are there."""
    client.create(WORKS.in_namespace(places["classic"]))
    for name, (place, manifest, *_) in PODS.items():
        client.create(Workload(name, manifest).in_namespace(places[place]))
    yield
    client.delete(workloads.Pod, "runs-on", namespace=places["native"], grace_period=0)


def audited(cluster: lab.Cluster, namespace: str) -> dict[str, dict[str, Any]]:
    lines = ask(cluster.kubeconfig, "audit", "-n", namespace, "-o", "json").stdout.splitlines()
    return {each["name"]: each for each in map(json.loads, lines)}


@pytest.mark.parametrize("name", PODS)
def test_what_holds_a_pod_is_named(
    cluster: lab.Cluster, places: Mapping[str, str], name: str
) -> None:
    """istio#51883, gcs-fuse-csi-driver#1619, istio#36534, istio#28581, kubeflow#6120."""
    place, _, state, by = PODS[name]
    found = lab.until(
        lambda: (each := audited(cluster, places[place]).get(name)) and each["by"] and each,
        timeout=900, every=2, what=f"audit to name {name}",
    )  # fmt: skip

    assert (found["state"], found["by"]) == (state, [by])
    assert f"{by} " in found["reason"]
    assert found["containers"][by]["finished"] is False


def test_an_init_container_that_works_holds_nothing_and_is_explained(
    cluster: lab.Cluster, places: Mapping[str, str]
) -> None:
    """istio#23457: with a classic proxy, it runs before that."""
    where = f"{places['classic']}/{WORKS.name}"
    found = lab.until(
        lambda: (
            each := json.loads(ask(cluster.kubeconfig, "explain", where, "-o", "json").stdout)
        )["containers"].get("fetch", {}).get("why") == "running" and each,
        what=f"the init container of {where} to run",
    )  # fmt: skip

    assert (found["action"], found.get("state")) == ("wait", None)
    assert found["reason"].startswith("not finished: init container fetch (running); fetch runs")
    assert "istio-aux.io/start: native" in found["reason"]
