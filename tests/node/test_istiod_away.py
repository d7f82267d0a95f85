"""istiod goes, the unit restarts, Jobs finish; and the charm catches up when istiod is back.

Nobody can write a PeerAuthentication meanwhile: Istio's validator has `failurePolicy: Fail`.

It is away while pods start: held payloads wait for it, and deleted ones for nothing. The trial by
night prints how Jobs fare beside others that are injected only.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

import lab.istio
import lab.juju
import pytest
from lab import workloads
from lab.fixtures import SELECTED, await_marks, await_selected, new_namespaces
from lab.meshed import PROXY, is_gone, is_ready
from lab.workload import follow
from lab.workloads import TALK, Workload, await_end, container, describes, job, pod, template
from lightkube import ApiError, Client
from lightkube.generic_resource import create_namespaced_resource
from lightkube.resources.core_v1 import Event, Namespace, Pod
from lightkube.types import PatchType

PeerAuthentication = create_namespaced_resource(
    "security.istio.io", "v1", "PeerAuthentication", "peerauthentications"
)
TRAIN = Workload(
    "train", pod(container("while [ ! -e /tmp/end ]; do sleep 0.2; done")), "Succeeded", (0,)
)


@pytest.fixture
def running(client: Client, selected: str) -> str:
    """A meshed pod whose payload runs until the file `/tmp/end` is there."""
    client.create(TRAIN.in_namespace(selected))
    lab.until(
        lambda: is_ready(client.get(Pod, "train", namespace=selected)),
        what="the pod to run beside its proxy",
    )
    return selected


@pytest.fixture
def away(client: Client, running: str, istio: lab.istio.Istio) -> Iterator[lab.istio.Istio]:
    """Istio, whose istiod is gone; it comes back afterwards at the latest."""
    with istio.away():
        yield istio


def test_jobs_finish_although_the_unit_restarts_while_istiod_is_away(
    cluster: lab.Cluster,
    client: Client,
    running: str,
    away: lab.istio.Istio,
    istio_aux: lab.juju.App,
) -> None:
    model = istio_aux.model.name
    client.delete(PeerAuthentication, istio_aux.name, namespace=model)
    unit = istio_aux.leader.containers["istio-aux"]
    workload = unit.service_pid("istio-aux")

    unit.process.restart()
    lab.until(
        lambda: unit.service_pid("istio-aux") not in (None, workload),
        what="the workload to run again",
        ignoring=(OSError, IndexError),
    )
    follow(cluster, f"kubectl -n {running} exec train -c main -- touch /tmp/end")
    ended = await_end(client, TRAIN, running)
    assert describes(TRAIN, ended.outcome), ended.outcome
    istio_aux.settle()
    assert "not applied: PeerAuthentication" in istio_aux.status()[1]

    away.come_back()
    lab.until(
        lambda: client.get(PeerAuthentication, istio_aux.name, namespace=model),
        what="the charm to catch up, without an event but the workload's notice",
        ignoring=(ApiError,),
    )
    istio_aux.settle()
    assert istio_aux.status()[0] == "active", istio_aux.status()


MESHED = container(f"until {TALK}; do sleep 1; done")
"""It goes on once its sidecar connects it."""
SMALL = {"sidecar.istio.io/proxyCPU": "1m", "sidecar.istio.io/proxyMemory": "1Mi"}
WAITING: dict[str, Any] = {
    "annotations": SMALL,
    "restart": "OnFailure",
    "schedulingGates": [{"name": "lab.test/wait"}],
}
SOON = 60.0  # Seconds, of the 300 for which the hook waits. Measured: 2.
INJECTED = {key: SELECTED[key] for key in SELECTED if key == "istio-injection"}
JOBS = 30
AGE = 60.0  # Seconds after which a held pod is told.


def schedule(client: Client, *namespaces: str) -> None:
    """Let all pods that wait for it be scheduled."""
    gone = [{"op": "remove", "path": "/spec/schedulingGates"}]
    for namespace in namespaces:
        for each in client.list(workloads.Pod, namespace=namespace):
            client.patch(workloads.Pod, each["metadata"]["name"], gone, namespace=namespace,
                         patch_type=PatchType.JSON)  # fmt: skip


def status(client: Client, namespace: str, name: str) -> dict[str, Any]:
    return client.get(workloads.Pod, name, namespace=namespace)["status"]


def is_held(client: Client, namespace: str, name: str) -> bool:
    """Whether its init containers have ended: the kubelet reports nothing more until the hook."""
    inits = status(client, namespace, name).get("initContainerStatuses") or [{"state": {}}]
    return all("terminated" in each["state"] for each in inits)


def test_a_held_pod_that_is_deleted_while_istiod_is_away_goes_at_once_and_another_waits(
    client: Client, selected: str, istio: lab.istio.Istio
) -> None:
    """kubernetes#116032: nothing else ends it before its hook, which waits for five minutes."""
    for name in ("deleted", "waits"):
        client.create(Workload(name, pod(MESHED, **WAITING)).in_namespace(selected))
    [proxy, _] = client.get(workloads.Pod, "deleted", namespace=selected)["spec"]["containers"]
    hook = proxy["lifecycle"]["postStart"]["exec"]["command"]
    assert (proxy["name"], hook) == (PROXY, ["pilot-agent", "wait", "--timeoutSeconds=300"])

    with istio.away():
        schedule(client, selected)
        for name in ("deleted", "waits"):
            lab.until(lambda at=name: is_held(client, selected, at), what=f"{name} to be held")
        begin = time.monotonic()
        client.delete(workloads.Pod, "deleted", namespace=selected)
        lab.until(
            lambda: is_gone(client, workloads.Pod, "deleted", selected),
            what="the deleted pod to go",
        )
        assert time.monotonic() - begin < SOON
        assert status(client, selected, "waits")["phase"] == "Pending"

    lab.until(
        lambda: status(client, selected, "waits")["phase"] == "Succeeded",
        what="the other pod to complete",
    )
    notes = [
        event.message
        for event in client.list(Event, namespace=selected, fields={"reason": "ProxyQuit"})
        if event.involvedObject.name == "deleted"
    ]
    assert notes == [
        "the pod is being deleted, and its payload has never started; istio-proxy exited with 0"
    ]


class Seen(NamedTuple):
    """What became of a payload: when it started after istiod was back, and whether it is done."""

    started: float | None
    done: bool


def payloads(client: Client, namespace: str, back: float) -> list[Seen]:
    """The last state of the payload of each pod."""
    seen = list[Seen]()
    for each in client.list(workloads.Pod, namespace=namespace):
        statuses = each["status"].get("containerStatuses") or []
        [state] = [it["state"] for it in statuses if it["name"] == "main"] or [{}]
        at = (state.get("running") or state.get("terminated") or {}).get("startedAt")
        started = datetime.fromisoformat(at).timestamp() - back if at else None
        seen.append(Seen(started, state.get("terminated", {}).get("exitCode") == 0))
    return seen


def told(what: str, seen: list[Seen]) -> str:
    """A row of the table."""
    starts = sorted(each.started for each in seen if each.started is not None)
    span = f"{starts[0]:.0f} to {starts[-1]:.0f} s" if starts else "never"
    return f"{what}: {sum(each.done for each in seen)} of {len(seen)} done, started {span}"


@pytest.mark.nightly("60 Jobs, for minutes: the test above has two pods")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seconds", [40, 100, 200])
def test_held_jobs_outlive_an_istiod_that_is_away(
    client: Client, istio: lab.istio.Istio, istio_aux: lab.juju.App, seconds: float
) -> None:
    """istio#45627. Beside them Jobs that nobody holds, which try until their proxy is ready."""
    with new_namespaces(client, "with", "without") as names:
        ours, others = names["with"], names["without"]
        await_selected(client, ours)
        client.patch(Namespace, others, {"metadata": {"labels": INJECTED}})
        await_marks(client, others, PROXY)
        made = job(template(MESHED, **WAITING), backoffLimit=6)
        for namespace in (ours, others):
            for number in range(JOBS):
                client.create(Workload(f"job-{number}", made).in_namespace(namespace))
            lab.until(
                lambda at=namespace: len([*client.list(workloads.Pod, namespace=at)]) == JOBS,
                what=f"the pods of {namespace}",
            )
        with istio.away():
            begin = time.monotonic()
            schedule(client, ours, others)
            time.sleep(max(0.0, begin + seconds - time.monotonic()))  # This is how long it is away.
            istio.come_back()
            back = time.time()

        def over() -> bool:
            conditions = [
                {each["type"] for each in job["status"].get("conditions", [])}
                for job in client.list(workloads.Job, namespace=ours)
            ]
            rest = [each for each in payloads(client, others, back) if not each.done]
            return all("Complete" in each for each in conditions) and not rest

        try:
            lab.until(over, what="all Jobs to end", every=1, timeout=240)
        finally:
            for name, namespace in names.items():
                print(told(f"away {seconds} s, {name}", payloads(client, namespace, back)))
        events = client.list(Event, namespace=ours, fields={"reason": "PodNotStarted"})
        notes = [event.message or "" for event in events]
        assert notes or seconds < AGE
        assert all(note.startswith("IA0119: the payload waits for") for note in notes), notes
