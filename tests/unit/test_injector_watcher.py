"""What the watcher says of injectors, as they come, break and go."""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from istio_aux.injector import probe
from istio_aux.injector.probe import Rhythm, check_native
from istio_aux.injector.probe_rules import Question
from istio_aux.injector.rules import ControlPlanes, Injector
from istio_aux.injector.watcher import Watcher
from istio_aux.kube.client import Client
from istio_aux.kube.errors import ApiError
from istio_aux.model.election import Since
from istio_aux.model.policy import Capability, State
from istio_aux.telemetry import Telemetry
from lab.istio import World
from unit.asynchronous import until
from unit.injecting import (
    ENABLED,
    QUICK,
    Cluster,
    Istiod,
    chain,
    encoded,
    http,
    saying,
    sidecar_for,
    silence,
    watching,
)
from unit.store import refusal

NAME = "istio-sidecar-injector"


def injector(watcher: Watcher, name: str | None = None) -> Injector:
    """What is said of one; of the only one if no name is given."""
    found = [
        each for each in watcher.control_planes.injectors if name in {None, each.configuration}
    ]
    assert len(found) == 1, watcher.control_planes.injectors
    return found[0]


async def told(watcher: Watcher, state: State, name: str | None = None) -> Injector:
    """Wait until an injector is said to be in a state; returns all that is said of it."""
    await until(
        lambda: watcher.control_planes.injectors and injector(watcher, name).state is state,
        f"{name or 'the injector'} is {state}",
    )
    return injector(watcher, name)


async def test_an_injector_is_live_since_any_process_saw_it_live(tmp_path: Path) -> None:
    """A process begins with what the last one left, and believes it only of the same state."""
    then = datetime.datetime(2026, 11, 20, 8, 0, tzinfo=datetime.UTC)

    def since(watcher: Watcher) -> datetime.datetime:
        (shown,) = watcher.shown()
        assert shown.since
        return shown.since

    async with Cluster() as api, Istiod(tmp_path) as istiod:
        await api.lead_to(istiod)
        async with watching(api) as watcher:
            watcher.recall({NAME: Since(State.LIVE, then)})
            assert watcher.since == {NAME: Since(State.LIVE, then)}, "it is left to the next one"
            await told(watcher, State.LIVE)
            assert since(watcher) == then
            left = watcher.since
            await api.publish(istiod.port, ready=False)
            await told(watcher, State.NO_ENDPOINT)
            await api.publish(istiod.port)
            await told(watcher, State.LIVE)
            assert since(watcher) > then, "what it sees itself counts"
            watcher.recall({NAME: Since(State.REFUSED, then), "other": Since(State.LIVE, then)})
            assert since(watcher) > then
            watcher.recall(left)
            assert since(watcher) == then, "all units say what the leader says"
        async with watching(api) as watcher:
            watcher.recall({NAME: Since(State.REFUSED, then)})
            await told(watcher, State.LIVE)
            assert since(watcher) > then


async def test_an_injector_is_live_as_long_as_it_answers_within_its_webhooks_timeout(
    tmp_path: Path,
) -> None:
    """Under load it takes seconds, and each pod gets its sidecar all the same."""
    states: list[State] = []
    pause = 0.0

    async def slow(review: bytes, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(pause)
        writer.write(http(sidecar_for(review)))

    async with (
        Cluster() as api,
        Istiod(tmp_path) as istiod,
        watching(
            api, rhythm=Rhythm(live=0.1, other=0.1),
            changed=lambda mesh: states.append(mesh.injectors[0].state),
        ) as watcher,
    ):  # fmt: skip
        istiod.talk = slow
        await api.lead_to(istiod)
        await told(watcher, State.LIVE)
        states.clear()
        pause = 2.5
        asked = len(istiod.heads)
        await until(lambda: len(istiod.heads) > asked + 1, "a slow answer has come")
        assert set(states) <= {State.LIVE}

        await api.configure(bundle=istiod.bundle, timeoutSeconds=1)

        found = await told(watcher, State.REFUSED)
        assert "no complete answer within 1 s" in found.why


async def test_an_istiod_that_moves_is_live_all_the_time(tmp_path: Path) -> None:
    """A rolling update: the new one's slice comes, the old one's goes, then the old one ends."""
    states: list[State] = []
    async with (
        Cluster() as api,
        Istiod(tmp_path / "old") as old,
        Istiod(tmp_path / "new") as new,
        watching(api, changed=lambda mesh: states.append(mesh.injectors[0].state)) as watcher,
    ):
        await api.put("namespaces", {"metadata": {"name": "meshed", "labels": ENABLED}})
        both = [each.authority.pair.certificate.read_bytes() for each in (old, new)]
        bundle = encoded(*both)
        await api.configure(bundle=bundle)
        await api.publish(old.port)
        await told(watcher, State.LIVE)
        states.clear()
        new.native = "on request"
        api.dry_run = chain("on request")

        await api.publish(new.port)

        await until(
            lambda: watcher.control_planes.native.capability is Capability.NATIVE,
            "the new one answers",
        )
        assert set(states) == {State.LIVE}


async def test_an_answer_counts_no_more_once_its_endpoint_is_gone(
    tmp_path: Path,
) -> None:
    """Its successor has proven nothing yet, and here never will."""
    async with Cluster() as api, Istiod(tmp_path) as istiod, watching(api) as watcher:
        await api.lead_to(istiod, timeoutSeconds=3600)
        await told(watcher, State.LIVE)
        async with Istiod(tmp_path, authority=istiod.authority) as mute:
            mute.talk = silence
            await api.publish(mute.port)

            await told(watcher, State.NOT_PROBED)
            assert watcher.control_planes.live(NAME) is None
            assert watcher.control_planes.native.capability is Capability.UNKNOWN


async def test_a_new_endpoint_does_not_wait_for_the_answer_of_an_old_one(
    tmp_path: Path,
) -> None:
    async with Cluster() as api, Istiod(tmp_path) as mute, watching(api) as watcher:
        mute.talk = silence
        await api.lead_to(mute, timeoutSeconds=3600)
        await until(lambda: mute.heads, "it is asked")
        async with Istiod(tmp_path, authority=mute.authority) as istiod:
            await api.publish(istiod.port)

            await told(watcher, State.LIVE)
            await until(lambda: not mute.connections, "the other one is left alone")


async def test_control_planes_are_reported_one_by_one(tmp_path: Path) -> None:
    """One that says nothing keeps the other from nothing but being the whole truth."""
    async with (
        Cluster() as api,
        Istiod(tmp_path) as istiod,
        Istiod(tmp_path / "mute", "istiod-canary.istio-system.svc") as canary,
        watching(api) as watcher,
    ):
        canary.talk = silence
        await api.publish(istiod.port)
        await api.publish(canary.port, service="istiod-canary")
        more: dict[str, Any] = {"revision": "canary", "service": "istiod-canary"}
        await api.configure("canary", bundle=canary.bundle, **more)
        await api.configure(bundle=istiod.bundle)

        await told(watcher, State.LIVE, NAME)
        found = await told(watcher, State.NOT_PROBED, "canary")
        live = [watcher.control_planes.live(name) for name in (NAME, "canary")]
        assert (found.revision, live) == ("canary", [True, None])
        canary.talk = saying(http(b"", "500 Oops"))
        for writer in canary.connections:
            writer.transport.abort()
        await told(watcher, State.REFUSED, "canary")
        assert watcher.control_planes.live("canary") is False
        await until(lambda: watcher.control_planes.known, "it is known")
        canary.talk = silence
        renewed = encoded(canary.authority.pair.certificate.read_bytes(), b"# renewed")
        await api.configure("canary", bundle=renewed, **more)
        await told(watcher, State.NOT_PROBED, "canary")
        assert watcher.control_planes.known, "what was known once stays known"


async def test_nothing_is_known_before_everybody_was_asked_once(tmp_path: Path) -> None:
    async with Cluster() as api, Istiod(tmp_path) as istiod:
        istiod.talk = silence
        await api.lead_to(istiod, timeoutSeconds=2)
        seen: list[tuple[bool, State]] = []

        def note(mesh: ControlPlanes) -> None:
            seen.append((mesh.known, mesh.injectors[0].state))

        async with watching(api, changed=note) as watcher:
            await until(lambda: watcher.control_planes.injectors, "something is told")
            assert watcher.shown() == []
            await until(lambda: watcher.control_planes.known, "it is known")

        assert seen == [(False, State.NOT_PROBED), (True, State.REFUSED)]


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """First answers have all the time that they need on a busy machine."""
    monkeypatch.setattr("istio_aux.injector.watcher.SETTLE", 60.0)


@pytest.mark.usefixtures("patience")
async def test_what_happens_is_logged_counted_and_shown_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "istio_aux.injector")
    telemetry = Telemetry()
    async with (
        Cluster() as api,
        Istiod(tmp_path) as istiod,
        watching(api, telemetry) as watcher,
    ):
        await told(watcher, State.ABSENT)
        await api.lead_to(istiod)
        await told(watcher, State.LIVE)
        [first] = watcher.shown()

    lines = [vars(each) for each in caplog.records if vars(each).get("event") == "injector"]
    assert [(line["levelname"], line["configuration"], line["state"]) for line in lines] == [
        ("INFO", "", "absent"),
        ("INFO", NAME, "live"),
    ]
    facts = {"revision": "default", "why": "it injects", "native": "classic"}
    assert facts.items() <= lines[1].items()
    assert (first.configuration, first.state, first.revision) == (NAME, "live", "default")
    assert 'istio_aux_injectors{state="absent"} 0.0' in telemetry.render().decode()


# Whether sidecars can be native on request, found out through the whole chain of webhooks.

N, C, U = Capability.NATIVE, Capability.CLASSIC, Capability.UNKNOWN
ON_REQUEST: World = "on request"
Later = Callable[[dict[str, Any]], web.Response | None]


def drops(pod: dict[str, Any]) -> web.Response | None:
    """A webhook after Istio's that knows init containers only as they were before 1.28."""
    for container in pod["spec"].get("initContainers", []):
        container.pop("restartPolicy", None)
    return None


def drops_and_is_refused(pod: dict[str, Any]) -> web.Response | None:
    """The same, as the API server then takes it: such a container may have no probes and hooks."""
    if not is_native(pod):
        return None
    why = "spec.initContainers[1].startupProbe: Forbidden: may not be set for init containers"
    return refusal(422, "Invalid", f'Pod "istio-aux-probe-" is invalid: {why}')


def denies(pod: dict[str, Any]) -> web.Response | None:
    """A policy that refuses native sidecars."""
    return refusal(403, "Forbidden", "denied by policy: no sidecars") if is_native(pod) else None


def forbidden(_pod: dict[str, Any]) -> web.Response:
    """The account may create no pods, as on Kubernetes before 1.30."""
    return refusal(403, "Forbidden", 'pods is forbidden: cannot create resource "pods"')


def is_native(pod: dict[str, Any]) -> bool:
    return "istio-proxy" in {c["name"] for c in pod["spec"].get("initContainers", [])}


def asked_in(*namespaces: str) -> list[Question]:
    return [Question(name, {}, selected=True) for name in namespaces]


@pytest.mark.parametrize(
    ("world", "later", "capability", "why"),
    [
        ("default", (), N, "native on request"),
        ("on request", (), N, "native on request"),
        ("never", (), C, "Istio makes no native sidecars"),
        ("default", (drops,), C, "a webhook after Istio's removes restartPolicy"),
        ("on request", (drops_and_is_refused,), C, "startupProbe: Forbidden"),
        ("on request", (denies,), C, "denied by policy: no sidecars"),
        ("on request", (forbidden,), U, "cannot create resource"),
    ],
)
async def test_the_whole_chain_of_webhooks_decides(
    world: World, later: tuple[Later, ...], capability: Capability, why: str
) -> None:
    async with Cluster() as api, Client(api.access()) as client:
        api.dry_run = chain(world, *later)

        found = await check_native(client, asked_in("team"))

    assert found.capability is capability
    assert why in found.why


@pytest.mark.parametrize(
    ("version", "kubelets", "capability"),
    [
        ("v1.32.2", ["v1.20.0"], N),
        ("v1.31.4", ["v1.31.4", "v1.28.2"], C),
    ],
)
async def test_below_1_32_the_nodes_are_looked_at(
    version: str, kubelets: list[str], capability: Capability
) -> None:
    async with Cluster() as api, Client(api.access()) as client:
        api.version, api.kubelets = version, kubelets
        api.dry_run = chain(ON_REQUEST)

        assert (await check_native(client, asked_in("team"))).capability is capability

        assert ("GET /api/v1/nodes" in api.requests) is (version < "v1.32")
        api.refuse("/nodes", 403, "Forbidden", "nodes is forbidden")
        refused = await check_native(client, asked_in("team"))
        assert ("nodes is forbidden" in refused.why) is (refused.capability is U)
        assert (refused.capability is U) is (version < "v1.32")


async def test_a_namespace_that_refuses_any_pod_shows_nothing_and_the_next_one_is_asked() -> None:
    def quota(pod: dict[str, Any]) -> web.Response | None:
        full = pod["metadata"]["namespace"] == "full"
        return refusal(403, "Forbidden", "exceeded quota: pods") if full else None

    async with Cluster() as api, Client(api.access()) as client:
        api.dry_run = chain(ON_REQUEST, quota)

        assert (await check_native(client, asked_in("full", "team"))).capability is N
        only = await check_native(client, asked_in("full"))
        none = await check_native(client, [])

    assert only.capability is none.capability is U
    assert "namespaces refuse the pod: full: 403 Forbidden: exceeded quota" in only.why
    assert "there is no namespace" in none.why


async def test_a_second_dry_run_that_fails_by_the_api_servers_fault_decides_nothing() -> None:
    def fails(pod: dict[str, Any]) -> web.Response | None:
        return None if is_native(pod) else refusal(500, "InternalError", "etcd is away")

    async with Cluster() as api, Client(api.access()) as client:
        api.dry_run = chain(ON_REQUEST, denies, fails)
        with pytest.raises(ApiError, match="etcd is away"):
            await check_native(client, asked_in("team"))


async def live(api: Cluster, istiod: Istiod) -> None:
    """Let there be an Istio that makes native sidecars on request, and a namespace for it."""
    istiod.native = ON_REQUEST
    await api.put("namespaces", {"metadata": {"name": "meshed", "labels": ENABLED}})
    await api.lead_to(istiod)


@pytest.mark.usefixtures("patience")
async def test_a_webhook_that_comes_and_goes_is_noticed(tmp_path: Path) -> None:
    """By the watch of all configurations; nobody would ask again within this test."""
    other = {"metadata": {"name": "old-defaulter"}, "webhooks": [{"name": "x.example.com"}]}
    seen: list[tuple[bool | None, Capability]] = []
    async with (
        Cluster() as api,
        Istiod(tmp_path) as istiod,
        watching(
            api,
            changed=lambda mesh: seen.append((mesh.any_live, mesh.native.capability)),
            rhythm=Rhythm(live=3600.0, other=0.05),
        ) as watcher,
    ):
        api.dry_run = chain(ON_REQUEST)
        await live(api, istiod)
        await until(lambda: watcher.control_planes.native.capability is N, "it is native")
        assert (True, U) not in seen, "that it injects and what it makes are told together"
        seen.clear()

        api.dry_run = chain(ON_REQUEST, drops)
        await api.put("mutatingwebhookconfigurations", other)
        await until(lambda: watcher.control_planes.native.capability is C, "it is classic")
        assert watcher.control_planes.any_live is True
        api.dry_run = chain(ON_REQUEST)
        await api.remove("mutatingwebhookconfigurations", "", "old-defaulter")
        await until(lambda: watcher.control_planes.native.capability is N, "it is native again")

        assert {capability for _, capability in seen} == {C, N}


@pytest.mark.parametrize("code", [401, 408, 429, 503, 504])
async def test_an_api_server_that_gives_no_answer_changes_nothing_for_a_while(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(pod: dict[str, Any]) -> web.Response | None:
        return refusal(code, "", "later") if is_native(pod) else None

    async with Cluster() as api, Istiod(tmp_path) as istiod:
        often = type(QUICK)(live=0.05, other=0.05)
        async with watching(api, rhythm=often) as watcher:
            api.dry_run = chain(ON_REQUEST)
            await live(api, istiod)
            await until(lambda: watcher.control_planes.native.capability is N, "it is native")

            api.dry_run = chain(ON_REQUEST, busy)
            before = len(api.dry_runs)
            await until(lambda: len(api.dry_runs) > before + 3, "it was asked again")
            assert watcher.control_planes.native.capability is N

            monkeypatch.setattr(probe, "KEPT", 0.0)
            await until(
                lambda: watcher.control_planes.native.capability is U, "it is not known any more"
            )
            assert f"{code}: later" in watcher.control_planes.native.why


async def test_an_injector_that_refuses_is_asked_until_it_injects_and_begins_anew(
    tmp_path: Path,
) -> None:
    """What its sidecars were before says nothing of now: it may be another version."""
    async with (
        Cluster() as api,
        Istiod(tmp_path) as istiod,
        watching(api, rhythm=Rhythm(live=3600.0, other=0.05)) as watcher,
    ):
        injects, api.dry_run = istiod.talk, chain(ON_REQUEST)
        await live(api, istiod)
        await until(lambda: watcher.control_planes.native.capability is N, "it is native")
        istiod.talk = saying(http(b"{}"))
        for connection in istiod.connections:
            connection.transport.abort()
        await told(watcher, State.REFUSED)

        api.dry_run = lambda _pod: refusal(429, "", "later")
        istiod.talk = injects

        await told(watcher, State.LIVE)
        await until(lambda: "later" in watcher.control_planes.native.why, "it is asked about them")
        assert watcher.control_planes.native.capability is U


async def test_what_sidecars_can_be_is_logged_when_it_changes_and_is_known(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not when there is no injector any more."""
    caplog.set_level(logging.INFO, "istio_aux.injector")
    async with Cluster() as api, Istiod(tmp_path) as istiod, watching(api) as watcher:
        api.dry_run = chain(ON_REQUEST)
        await live(api, istiod)
        await until(lambda: watcher.control_planes.native.capability is N, "it is native")
        await api.remove("mutatingwebhookconfigurations", "", NAME)
        await until(lambda: watcher.control_planes.native.capability is U, "it is not known")
    lines = [vars(each) for each in caplog.records if vars(each).get("event") == "capability"]
    shown = ["start: native: istio-sidecar-injector: sidecars are native on request"]
    assert [line["message"] for line in lines] == shown
