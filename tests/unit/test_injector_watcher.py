"""What the watcher says of injectors, as they come, break and go."""

from __future__ import annotations

import datetime
import logging

import pytest
from istio_aux.injector.probe import Rhythm
from istio_aux.injector.rules import Injector
from istio_aux.injector.watcher import Watcher
from istio_aux.model.answers import State
from istio_aux.model.election import Since
from istio_aux.model.policy import Capability
from istio_aux.telemetry import Telemetry
from unit.asynchronous import until
from unit.injecting import Cluster, chain, watching

NAME = "istio-sidecar-injector"
N, C = Capability.NATIVE, Capability.CLASSIC


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


async def test_an_injector_is_live_since_any_process_saw_it_live() -> None:
    """A process begins with what the last one left, and believes it only of the same state."""
    then = datetime.datetime(2026, 11, 20, 8, 0, tzinfo=datetime.UTC)

    def since(watcher: Watcher) -> datetime.datetime:
        (shown,) = watcher.shown()
        assert shown.since
        return shown.since

    async with Cluster() as api:
        await api.lead()
        async with watching(api) as watcher:
            watcher.recall({NAME: Since(State.LIVE, then)})
            assert watcher.since == {NAME: Since(State.LIVE, then)}, "it is left to the next one"
            await told(watcher, State.LIVE)
            assert since(watcher) == then
            left = watcher.since
            await api.publish(ready=False)
            await told(watcher, State.NO_ENDPOINT)
            await api.publish()
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


async def test_a_change_of_endpoints_or_of_a_configuration_is_asked_about_at_once() -> None:
    """A rolling update: the new one's slice comes, and it is live all the time."""
    states = list[State]()
    async with (
        Cluster() as api,
        watching(
            api, rhythm=Rhythm(live=3600.0, other=0.05),
            changed=lambda mesh: states.append(mesh.injectors[0].state),
        ) as watcher,
    ):  # fmt: skip
        await api.lead()
        await told(watcher, State.LIVE)
        states.clear()
        api.dry_run = chain("on request")
        await api.publish()
        await until(lambda: watcher.control_planes.native.capability is N, "the new one answers")
        api.dry_run = chain("never")
        await api.configure()
        await until(lambda: watcher.control_planes.native.capability is C, "it is asked again")
        assert set(states) == {State.LIVE}


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """First answers have all the time that they need on a busy machine."""
    monkeypatch.setattr("istio_aux.injector.watcher.SETTLE", 60.0)


@pytest.mark.usefixtures("patience")
async def test_what_happens_is_logged_counted_and_shown_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "istio_aux.injector")
    telemetry = Telemetry()
    async with (
        Cluster() as api,
        watching(api, telemetry) as watcher,
    ):
        await told(watcher, State.ABSENT)
        await api.lead()
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
