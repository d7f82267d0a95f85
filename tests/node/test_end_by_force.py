"""What a payload that works on after SIGTERM still reaches, beside the real Istio.

Prints the table of `docs/how-to/distributed-training.md`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

import lab
import pytest
from lab import workloads
from lab.meshed import PROXY, is_ready
from lab.workloads import TALK, Workload, container
from lightkube import Client
from lightkube.resources.core_v1 import Event, Pod

pytestmark = pytest.mark.nightly("unit/rules/test_quit_blocked.py; a grace period has to pass")

GRACE, WORKS = 60, 30  # Seconds.
DRAIN = f"terminationDrainDuration: {GRACE}s"
CLASSIC = {"istio-aux.io/start": "hold"}  # Such a pod would get a native sidecar.
ANNOTATIONS: Mapping[str, Mapping[str, str]] = {
    "classic": CLASSIC,
    "native": {"istio-aux.io/start": "native"},
    "drain": {**CLASSIC, "proxy.istio.io/config": DRAIN},
}
SAVE = f"""
trap 'over=1' TERM; while [ -z "$over" ]; do sleep 1; done
good=0 refused=0 end=$(($(date +%s) + {WORKS}))
while [ $(date +%s) -lt $end ]; do
  if {TALK}; then good=$((good + 1)); else refused=$((refused + 1)); fi; sleep 1
done
echo "$good $refused" >/dev/termination-log
"""


class Seen(NamedTuple):
    """Calls after SIGTERM, and seconds from the deletion of the pod to three ends."""

    good: int
    refused: int
    payload: float
    proxy: float
    gone: float


def ends(pod: Any, begin: float) -> Seen:
    """What the last state of a pod says that is gone now."""
    status = pod["status"]
    every = [*status["containerStatuses"], *status.get("initContainerStatuses", [])]
    states = {each["name"]: each["state"]["terminated"] for each in every}
    main, proxy = (
        datetime.fromisoformat(states[name]["finishedAt"]).timestamp() - begin
        for name in ("main", PROXY)
    )
    good, refused = map(int, states["main"]["message"].split())
    return Seen(good, refused, main, proxy, time.time() - begin)


@pytest.fixture
def where(places: Mapping[str, str]) -> str:
    return places["native"]


def told(client: Client, namespace: str, reason: str) -> dict[str, str]:
    """The notes of the Events of a reason, by pod."""
    events = [each for each in client.list(Event, namespace=namespace) if each.reason == reason]
    return {each.involvedObject.name or "": each.message or "" for each in events}


def test_a_native_proxy_that_had_no_time_to_end_is_told(client: Client, where: str) -> None:
    """Its exit code is not in what the watch shows. buildkite/agent-stack-k8s#862."""
    hurried = {"terminationGracePeriodSeconds": 0}
    pod = workloads.pod(container(TALK), annotations=ANNOTATIONS["native"], **hurried)
    client.create(Workload("hurried", pod).in_namespace(where))

    notes = lab.until(lambda: told(client, where, "ProxyKilled"), what="the Event")

    killed = (
        "IA0109: istio-proxy was killed with exit code 137: terminationGracePeriodSeconds was 0"
    )
    assert notes == {"hurried": f"{killed}: 5 is enough"}


def test_only_a_native_proxy_serves_a_payload_that_works_on_and_the_pod_ends_with_that(
    client: Client, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """istio#7136. Of the classic ones one loses the network, and one stays after its payload."""
    seen = delete_all(client, where)

    with capsys.disabled():
        print(f"\n{WORKS} of {GRACE} s | calls: good, refused | seconds: payload, proxy, pod")
        for name, each in sorted(seen.items()):
            print(f"{name} | {each.good}, {each.refused} | ", end="")
            print(f"{each.payload:.0f}, {each.proxy:.0f}, {each.gone:.0f}")
    classic, native, drained = (seen[name] for name in ANNOTATIONS)
    assert native.good > 0
    assert (native.refused, drained.refused) == (0, 0)
    assert 0 < classic.good < classic.refused
    assert classic.proxy < classic.payload
    assert native.gone < drained.gone
    assert drained.payload < drained.proxy
    notes = told(client, where, "NetworkLost")
    assert [*notes] == ["classic"]
    lost = "IA0108: deleted, and not finished: main (running); a classic proxy"
    assert notes["classic"].startswith(lost)


def delete_all(client: Client, namespace: str) -> dict[str, Seen]:
    """Delete a pod of each kind while it runs; what is known of each when it is gone."""
    for name, marks in ANNOTATIONS.items():
        grace = {"terminationGracePeriodSeconds": GRACE}
        pod = workloads.pod(container(SAVE), annotations=marks, **grace)
        client.create(Workload(name, pod).in_namespace(namespace))
    for name in ANNOTATIONS:
        lab.until(
            lambda name=name: is_ready(client.get(Pod, name, namespace=namespace)),
            what=f"{name} to be Ready",
        )
    seen, begin = dict[str, Seen](), time.time()
    for name in ANNOTATIONS:
        client.delete(workloads.Pod, name, namespace=namespace)
    for kind, pod in client.watch(workloads.Pod, namespace=namespace, server_timeout=10 * GRACE):
        if kind == "DELETED":
            seen[pod["metadata"]["name"]] = ends(pod, begin)
        if len(seen) == len(ANNOTATIONS):
            break
    return seen
