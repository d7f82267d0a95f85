"""Real pods whose payload talks at its first instruction: it starts after its proxy is ready.

The proxy tells when it got ready, and each payload when the kernel made its process, by the same
clock. That is before what the kubelet calls `startedAt`, which has whole seconds only.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import lab.istio
import pytest
from lab import workloads
from lab.fixtures import REQUESTED, await_marks, await_root, new_namespaces
from lab.meshed import PROXY
from lab.workload import program
from lab.workloads import TALK, container
from lightkube import ApiError, Client
from lightkube.resources.core_v1 import Namespace

CONFIG, HOLD = "proxy.istio.io/config", "holdApplicationUntilProxyStarts"
NATIVE = "sidecar.istio.io/nativeSidecar"
START, STARTED_WITH = "istio-aux.io/start", "istio-aux.io/started-with"
# Field 22 of stat: ticks between the boot and the start of the process.
TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
WHEN = "cut -d' ' -f22 /proc/1/stat >/dev/termination-log"
TALK_AT_ONCE = container(f"{TALK}; code=$?; {WHEN}; exit $code")
INIT = {"initContainers": [{**TALK_AT_ONCE, "name": "fetch"}]}
# A pod with a shorter grace period is held, whatever the start mode says.
ENOUGH = {"terminationGracePeriodSeconds": 5}

# Labels of the namespaces, by how their pods start.
INJECTED = {"istio.io/rev": REQUESTED}
PLACES = {
    "unselected": INJECTED,
    "webhook": {**INJECTED, "lab.test/start-webhook": "yes"},
    "native": {**INJECTED, "lab.test/start-native": "yes"},
    # Here Istio is another one, which the API server calls before us.
    "late": {"istio.io/rev": "asm", "lab.test/start-webhook": "yes"},
}


@dataclass(frozen=True)
class Case:
    """A pod whose payload, and maybe whose init container, talks at once; and where it is made."""

    name: str
    place: str = ""
    started_with: str | None = None
    annotations: Mapping[str, str] = field(default_factory=dict[str, str])
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def pod(self) -> workloads.Workload:
        return workloads.Workload(
            self.name, workloads.pod(TALK_AT_ONCE, annotations=self.annotations, **self.more)
        )


ORDERED = (
    Case("held-by-the-webhook", "webhook", "hold"),
    Case("held-after-istio-was-called", "late", "hold"),
    Case("held-for-it-refuses-to-be-native", "native", "hold", {NATIVE: "false"}),
    Case("native-by-its-annotation", "webhook", "native", {START: "native"}, more=INIT),
    Case("native-by-the-start-mode", "native", "native", more={**INIT, **ENOUGH}),
)
UNORDERED = (
    Case("without-us", "unselected"),
    Case("hold-is-false", "webhook", annotations={CONFIG: f"{HOLD}: false"}),
    Case("start-is-none", "native", annotations={START: "none"}),
)
TALKING = (*ORDERED, *UNORDERED)


@pytest.fixture(scope="module")
def admission(cluster: lab.Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The workloads of `PLACES`, and the Istio whose configuration sorts before theirs."""

    def workload(place: str, mode: str) -> AbstractContextManager[object]:
        name = f"start-{place}"
        # A proxy that is told to quit may never get ready.
        # Here nobody finds out what Istio can do: `test_started_by_hand.py`.
        more = {"quit": "disabled", "start-mode": mode, "root-namespace": "nowhere"}
        return program(
            cluster, tmp_path_factory.mktemp(name), name, more, model="start", publish=True
        )

    vendors = lab.istio.install(cluster, configuration="asm-sidecar-injector", revision="asm")
    with workload("webhook", "auto"), workload("native", "native"):
        yield
    vendors.remove()


@pytest.fixture(scope="module")
def places(
    client: Client, requested: lab.istio.Istio, admission: None
) -> Iterator[Mapping[str, str]]:
    """The namespaces of `PLACES`, whose pods are injected and changed already."""
    with new_namespaces(client, *PLACES) as names:
        for place, name in names.items():
            client.patch(Namespace, name, {"metadata": {"labels": PLACES[place]}})
            await_root(client, name)
            await_marks(client, name, PROXY, *([] if place == "unselected" else [STARTED_WITH]))
        yield names


@pytest.fixture(scope="module")
def pods(client: Client, places: Mapping[str, str]) -> Mapping[str, Any]:
    """Every pod by its name, once its payload has ended; created side by side."""
    for case in TALKING:
        client.create(case.pod.in_namespace(places[case.place]))
    return {
        case.name: lab.until(
            lambda case=case: over(client, places[case.place], case.name),
            what=f"the payload of {case.name} to end",
        )
        for case in TALKING
    }


def over(client: Client, namespace: str, name: str) -> Any:
    """The pod when its payload has ended, or will never start."""
    pod = client.get(workloads.Pod, name, namespace=namespace)
    return pod if pod["status"].get("phase") == "Failed" or ended(pod, "main") else None


def ended(pod: Any, name: str) -> dict[str, Any]:
    """How the container ended; nothing if it has not."""
    status = pod["status"]
    found = [*status.get("containerStatuses", []), *status.get("initContainerStatuses", [])]
    states = [container["state"] for container in found if container["name"] == name]
    return states[0].get("terminated", {}) if states else {}


def started(pod: Any, name: str) -> int:
    """When the container's process was made: nanoseconds after the boot, rounded down to a tick."""
    return int(ended(pod, name)["message"]) * TICK


def await_ready(client: Client, pod: Any) -> int:
    """When the proxy got ready: nanoseconds after the boot."""
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]

    def told() -> list[str]:
        log = "".join(client.log(name, namespace=namespace, container=PROXY))
        return re.findall(r"^(\S+)Z\s.*Envoy proxy is ready", log, re.MULTILINE)

    [ready] = lab.until(
        told, what=f"the proxy of {namespace}/{name} to get ready", ignoring=(ApiError,)
    )
    booted = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return int(datetime.fromisoformat(f"{ready}+00:00").timestamp() * 1e9) - booted


@pytest.mark.parametrize("case", ORDERED, ids=lambda case: case.name)
def test_a_payload_starts_after_its_proxy_is_ready_and_has_a_network_at_once(
    client: Client, pods: Mapping[str, Any], case: Case
) -> None:
    pod = pods[case.name]
    annotations = pod["metadata"]["annotations"]

    assert started(pod, "main") > await_ready(client, pod)
    assert ended(pod, "main")["exitCode"] == 0
    assert annotations[STARTED_WITH] == case.started_with
    assert case.annotations.items() <= annotations.items()


@pytest.mark.parametrize("case", UNORDERED, ids=lambda case: case.name)
def test_a_payload_of_a_pod_left_alone_starts_before_its_proxy_is_ready_and_has_no_network(
    client: Client, pods: Mapping[str, Any], case: Case
) -> None:
    pod = pods[case.name]

    assert started(pod, "main") + TICK < await_ready(client, pod)
    assert ended(pod, "main")["exitCode"] != 0
    assert STARTED_WITH not in pod["metadata"]["annotations"]


@pytest.mark.parametrize(
    "case", [case for case in ORDERED if case.more == INIT], ids=lambda case: case.name
)
def test_an_init_container_starts_after_a_native_proxy_is_ready_and_has_a_network_at_once(
    client: Client, pods: Mapping[str, Any], case: Case
) -> None:
    pod = pods[case.name]

    assert started(pod, "fetch") > await_ready(client, pod)
    assert ended(pod, "fetch")["exitCode"] == 0
