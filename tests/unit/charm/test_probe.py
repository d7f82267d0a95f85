"""What the workload says in /status is what the charm reads there."""

from __future__ import annotations

from datetime import UTC, datetime

import httpx2
import msgspec
from istio_aux.model.answers import (
    ApplicationMesh,
    Injector,
    ProcessStatus,
    SuspendedJob,
    Unmeshed,
    group,
)
from istio_aux.model.policy import Capability, QuitMode, RacePolicy, StartMode, State
from istio_aux.model.resources import Requests
from unit.rules.pods import held

import probe
from probe import Probe

NOW = datetime(2026, 11, 21, 19, 40, 12, tzinfo=UTC)


def shown(name: str, state: State, why: str, native: Capability) -> Injector:
    return Injector(
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
            shown("one", State.LIVE, "it injects", Capability.NATIVE),
            shown("two", State.REFUSED, "TLS", Capability.UNKNOWN),
        ),
        live=True,
        capability=Capability.NATIVE,
        capability_why="one: on request",
        holders=(f"1 pod is held by vault-agent since {NOW:%Y-%m-%d %H:%M}Z: 8 GPUs",),
        race="restart",
        unmeshed_total=612,
        unmeshed_unknown=3,
        suspended_jobs=("a/mnist",),
        applications=(ApplicationMesh("a", "app", **mesh),),  # pyright: ignore[reportArgumentType]  likewise
        lease_holder="istio-aux-0_1",
        certificate="5e1f",
        version="1.2.3",
    )
