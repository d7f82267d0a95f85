"""What the watcher says of injectors, as they come, break and go."""

from __future__ import annotations

import asyncio
import datetime
import logging
from pathlib import Path
from typing import Any

import pytest
from istio_aux.injector.probe import Rhythm
from istio_aux.injector.rules import ControlPlanes, Injector
from istio_aux.injector.watcher import Watcher
from istio_aux.model.election import Since
from istio_aux.model.policy import Capability, State
from istio_aux.telemetry import Telemetry
from unit.asynchronous import until
from unit.injecting import (
    ENABLED,
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
        await api.configure(bundle=istiod.bundle)
        await api.publish(istiod.port)
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
        await api.publish(istiod.port)
        await api.configure(bundle=istiod.bundle)
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
        await api.configure(bundle=istiod.bundle, timeoutSeconds=3600)
        await api.publish(istiod.port)
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
        await api.configure(bundle=mute.bundle, timeoutSeconds=3600)
        await api.publish(mute.port)
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
        await api.publish(istiod.port)
        await api.configure(bundle=istiod.bundle, timeoutSeconds=2)
        seen: list[tuple[bool, State]] = []

        def note(mesh: ControlPlanes) -> None:
            seen.append((mesh.known, mesh.injectors[0].state))

        async with watching(api, changed=note) as watcher:
            await until(lambda: watcher.control_planes.injectors, "something is told")
            assert watcher.shown() == []
            await until(lambda: watcher.control_planes.known, "it is known")

        assert seen == [(False, State.NOT_PROBED), (True, State.REFUSED)]


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
        await api.publish(istiod.port)
        await api.configure(bundle=istiod.bundle)
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
