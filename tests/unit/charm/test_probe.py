"""What the workload says in /status is what the charm reads there."""

from __future__ import annotations

from datetime import UTC, datetime

import httpx2
import msgspec
from istio_aux import status
from istio_aux.injector import rules as injectors
from istio_aux.model.policy import Capability, QuitMode, RacePolicy, StartMode, State
from istio_aux.model.resources import Requests, group
from istio_aux.repair.reports import ApplicationMesh, Unmeshed
from istio_aux.repair.suspended_jobs import SuspendedJob
from istio_aux.status import ProcessStatus
from unit.rules.pods import held

import probe
from probe import Application, Injector, Probe

NOW = datetime(2026, 11, 21, 19, 40, 12, tzinfo=UTC)


def shown(name: str, state: State, why: str, native: Capability) -> injectors.Injector:
    return injectors.Injector(
        configuration=name, revision="default", state=state, why=why, since=NOW, native=native
    )


def test_every_word_of_the_workload_is_understood() -> None:
    mesh = {"live": None, "live_reason": "not probed", "revision": "default"}
    mesh |= {"root_namespace": "istio-system", "meshed": False, "meshed_reason": "app-0 has none"}
    pod = {"namespace": "a", "name": "app-0", "owner": "StatefulSet/app", "reason": "too early"}
    said = ProcessStatus(
        ready=True,
        missing=["the list of pods", "the list of namespaces"],
        start_mode=StartMode.AUTO,
        capability=Capability.NATIVE,
        called_before_us=("istio",),
        injectors=[
            shown("one", State.LIVE, "it injects", Capability.NATIVE),
            shown("two", State.REFUSED, "TLS", Capability.UNKNOWN),
        ],
        injector_live=True,
        watched_pods=0,
        selected_namespaces=["a"],
        stuck_pods=[held("istio-proxy")],
        blocked_pods=[held("vault-agent"), msgspec.structs.replace(held("log"), lasting=False)],
        lost_pods=[held(), held()],
        holders=group([held("vault-agent", since=NOW, requests=Requests(gpus=8))]),
        race=RacePolicy.RESTART,
        unmeshed_pods=[Unmeshed(**pod, since=NOW)],
        unmeshed_total=612,
        unmeshed_unknown=3,
        suspended_jobs=[SuspendedJob("a", "TFJob", "mnist", NOW, "pods")],
        applications=[ApplicationMesh("a", "app", **mesh)],  # pyright: ignore[reportArgumentType]  of several types
        unreadable_objects=[],
        unreadable_total=0,
        quits_total=0,
        leader=True,
        lease_holder="istio-aux-0_1",
        quit=QuitMode.ON,
        capability_why="one: on request",
        token_expires=NOW,
        certificate="5e1f",
        version="1.2.3",
    )
    body = msgspec.json.encode(said)
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, content=body))

    understood = probe.ask("http://localhost", transport)

    assert understood == Probe(
        ready=True,
        missing="the list of pods; the list of namespaces",
        selected_namespaces=1,
        stuck_pods=("training/job",),
        lost_pods=2,
        blocked_pods=1,
        called_before_us=("istio",),
        injectors=(
            Injector("one", live=True, why="it injects", since=NOW),
            Injector("two", live=False, why="TLS", since=NOW),
        ),
        live=True,
        capability="native",
        capability_why="one: on request",
        watches_injectors=True,
        holders=(f"1 pod is held by vault-agent since {NOW:%Y-%m-%d %H:%M}Z: 8 GPUs",),
        race="restart",
        unmeshed_total=612,
        unmeshed_unknown=3,
        suspended_jobs=("a/mnist",),
        applications=(Application("a", "app", **mesh),),  # pyright: ignore[reportArgumentType]  likewise
        lease_holder="istio-aux-0_1",
        certificate="5e1f",
        version="1.2.3",
    )


def test_every_word_about_a_listed_pod_is_understood() -> None:
    pods = [
        status.ListedPod("a", "app-0", "unmeshed", "too early", NOW, "StatefulSet/app"),
        status.ListedPod("a", "mnist", "stuck", "404", attempts=3),
        status.ListedPod("b", "more", "lost", "oom"),
    ]
    holders = group([held("istio-proxy", requests=Requests(gpus=1))])
    body = msgspec.json.encode(status.page(pods, limit=2, leader=True, holders=holders))
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, content=body))

    assert probe.page("http://localhost", ["stuck"], transport=transport) == probe.Page(
        total=3,
        pods=(
            probe.ListedPod("a", "app-0", "unmeshed", "too early", NOW, "StatefulSet/app"),
            probe.ListedPod("a", "mnist", "stuck", "404", attempts=3),
        ),
        next="a/mnist",
        leader=True,
        holders=("1 pod is held by istio-proxy: 1 GPU",),
    )
