"""What the watcher says of injectors, as they come, break and go."""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Mapping
from typing import Any

import pytest
from aiohttp import web
from istio_aux.injector.injection import InjectionPolicy
from istio_aux.injector.probe import Rhythm
from istio_aux.injector.rules import ControlPlanes, Injector
from istio_aux.injector.watcher import Namespaces, Watcher, read_policy
from istio_aux.kube.client import Client
from istio_aux.kube.objects import Key
from istio_aux.model.answers import Liveness
from istio_aux.model.election import Since
from istio_aux.model.pod import Metadata
from istio_aux.model.policy import Capability
from istio_aux.model.selectors import NamespaceSelectors
from istio_aux.model.webhooks import Namespace
from istio_aux.telemetry import Telemetry
from unit.apiserver import refusal
from unit.istiod import Cluster, chain, watching
from unit.process import until
from unit.rules.pods import ENABLED, ORIGINAL, OURS

N, C = Capability.NATIVE, Capability.CLASSIC


def injector(watcher: Watcher, name: str | None = None) -> Injector:
    """What is said of one; of the only one if no name is given."""
    found = [
        each for each in watcher.control_planes.injectors if name in {None, each.configuration}
    ]
    assert len(found) == 1, watcher.control_planes.injectors
    return found[0]


async def told(watcher: Watcher, state: Liveness, name: str | None = None) -> Injector:
    """Wait until a probe, or what is read, shows a state; returns all that is said of it."""
    await until(
        lambda: (
            watcher.control_planes.injectors
            and injector(watcher, name).state is state
            and injector(watcher, name).why != "it has not been probed yet"
        ),
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
        api.lead()
        async with watching(api) as watcher:
            watcher.recall({ORIGINAL: Since(Liveness.LIVE, then)})
            assert watcher.since == {ORIGINAL: Since(Liveness.LIVE, then)}, (
                "it is left to the next one"
            )
            await told(watcher, Liveness.LIVE)
            assert since(watcher) == then
            left = watcher.since
            api.publish(ready=False)
            await told(watcher, Liveness.NO_ENDPOINT)
            api.publish()
            await told(watcher, Liveness.LIVE)
            assert since(watcher) > then, "what it sees itself counts"
            watcher.recall(
                {ORIGINAL: Since(Liveness.REFUSED, then), "other": Since(Liveness.LIVE, then)}
            )
            assert since(watcher) > then
            watcher.recall(left)
            assert since(watcher) == then, "all units say what the leader says"
        async with watching(api) as watcher:
            watcher.recall({ORIGINAL: Since(Liveness.REFUSED, then)})
            await told(watcher, Liveness.LIVE)
            assert since(watcher) > then


async def test_a_change_of_endpoints_or_of_a_configuration_is_asked_about_at_once() -> None:
    """A rolling update: the new one's slice comes, and it is live all the time."""
    states = list[Liveness]()
    async with (
        Cluster() as api,
        watching(
            api, rhythm=Rhythm(live=3600.0, other=0.05),
            changed=lambda mesh: states.append(mesh.injectors[0].state),
        ) as watcher,
    ):  # fmt: skip
        api.lead()
        await told(watcher, Liveness.LIVE)
        states.clear()
        api.dry_run = chain("on request")
        api.publish()
        await until(lambda: watcher.control_planes.native.capability is N, "the new one answers")
        api.dry_run = chain("never")
        api.configure()
        await until(lambda: watcher.control_planes.native.capability is C, "it is asked again")
        assert set(states) == {Liveness.LIVE}


async def test_what_happens_is_logged_counted_and_shown_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # First answers have all the time that they need on a busy machine.
    monkeypatch.setattr("istio_aux.injector.watcher.SETTLE", 60.0)
    caplog.set_level(logging.INFO, "istio_aux.injector")
    telemetry = Telemetry()
    async with (
        Cluster() as api,
        watching(api, telemetry) as watcher,
    ):
        await told(watcher, Liveness.ABSENT)
        api.lead()
        await told(watcher, Liveness.LIVE)
        [first] = watcher.shown()

    lines = [vars(each) for each in caplog.records if vars(each).get("event") == "injector"]
    assert [(line["levelname"], line["configuration"], line["state"]) for line in lines] == [
        ("INFO", "", "absent"),
        ("INFO", ORIGINAL, "live"),
    ]
    facts = {"revision": "default", "why": "it injects", "native": "classic"}
    assert facts.items() <= lines[1].items()
    assert (first.configuration, first.state, first.revision) == (ORIGINAL, "live", "default")
    assert 'istio_aux_injectors{state="absent"} 0.0' in telemetry.render().decode()


# What it reads besides, and what it does when something goes wrong.


DISABLED = InjectionPolicy(policy="disabled")


async def test_the_injection_policy_is_read_again_and_again_also_when_it_is_gone() -> None:
    rhythm = Rhythm(live=0.05, other=0.05, read=0.05)
    async with Cluster() as api, watching(api, rhythm=rhythm) as seen:
        api.lead()
        await told(seen, Liveness.LIVE)
        api.put_policy("policy: disabled")
        await until(lambda: seen.control_planes.policies == {OURS: DISABLED}, "it is read")
        api.remove("configmaps", "istio-system", ORIGINAL)
        await until(lambda: not seen.control_planes.policies, "it is not known")


@pytest.mark.parametrize("broken", [429, 500, 503, "policy: [", "3", None])
async def test_no_error_nor_bad_text_makes_an_injection_policy_unknown(
    broken: int | str | None,
) -> None:
    async with Cluster() as api, Client(api.access()) as client:
        if isinstance(broken, int):
            api.refuse("/configmaps/" + ORIGINAL, broken)
        else:
            api.put_policy(broken)
        assert await read_policy(client, OURS, DISABLED) == DISABLED


async def test_nothing_is_known_before_the_injection_policy_was_read() -> None:
    """Who waits for that, and then asks which pods have no sidecar, must not hear of none."""
    seen: list[ControlPlanes] = []
    read = asyncio.Event()

    async with Cluster() as api:
        api.put_policy("policy: enabled")
        api.lead(ready=False)
        api.before("/configmaps/" + ORIGINAL, read.wait)
        async with watching(api, changed=seen.append) as watcher:
            await told(watcher, Liveness.NO_ENDPOINT)
            read.set()
            await until(lambda: watcher.control_planes.known, "it is known")
            assert [(mesh.known, bool(mesh.policies)) for mesh in seen] == [
                (False, False), (True, True),
            ]  # fmt: skip


async def test_without_the_right_to_see_endpoints_a_dry_run_decides() -> None:
    """What cannot be seen is no reason to call an injector dead."""
    async with Cluster() as api, watching(api) as watcher:
        api.refuse("/endpointslices", 403)
        api.dry_run = chain("never")
        api.put("namespaces", {"metadata": {"name": "meshed", "labels": ENABLED}})
        api.lead()
        await told(watcher, Liveness.LIVE)


REFUSALS = {
    "a-deleted": (
        403,
        "unable to create new content in namespace a-deleted because it is being terminated",
    ),
    "b-full": (403, "exceeded quota: gpus, requested: pods=1, used: pods=4, limited: pods=4"),
    "c-secured": (403, 'violates PodSecurity "restricted:latest": unrestricted capabilities'),
    "d-policy": (400, 'admission webhook "validate.kyverno.svc" denied the request: no'),
    "e-broken": (500, 'Internal error occurred: failed calling webhook "x.example.com": EOF'),
    "f-cel": (422, "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no"),
    # A patch of another webhook that does not apply.
    "g-unnamed": (500, "Internal error occurred: doc is missing path: /spec/x"),
}
"""Namespaces that refuse every pod, and how an API server says so. """


def refuses(pod: dict[str, Any]) -> web.Response | None:
    refused = REFUSALS.get(pod["metadata"]["namespace"])
    return refusal(refused[0], "", refused[1]) if refused else None


async def test_namespaces_that_refuse_pods_hide_no_injector() -> None:
    """The next one is asked, and the one that answered is the first one from then on."""
    rhythm = Rhythm(live=0.05, other=0.05, read=0.05)
    async with Cluster() as api, watching(api, rhythm=rhythm) as watcher:
        api.dry_run = chain("never", refuses)
        for name in (*REFUSALS, "team"):
            api.put("namespaces", {"metadata": {"name": name, "labels": ENABLED}})
        api.publish()
        api.configure()
        await told(watcher, Liveness.LIVE)
        asked = [pod["metadata"]["namespace"] for pod in api.dry_runs]
        assert [*dict.fromkeys(asked)] == [*REFUSALS, "team"]
        assert asked.count("b-full") == 3, "also for a native and for a classic sidecar"
        await until(lambda: len(api.dry_runs) > len(asked) + 1, "it is asked again")
        assert {pod["metadata"]["namespace"] for pod in api.dry_runs[len(asked) :]} == {"team"}


def open_watches(api: Cluster) -> int:
    """How many there are at whose other end somebody listens."""
    return sum(request.transport is not None for request in api.watches)


async def test_what_is_not_there_any_more_is_not_followed_any_more() -> None:
    async with Cluster() as api, watching(api) as watcher:
        await told(watcher, Liveness.ABSENT)
        before = await until(lambda: open_watches(api) == 2 and 2, "both watches are open")
        api.lead()
        await told(watcher, Liveness.LIVE)
        await until(lambda: open_watches(api) == before + 1, "its endpoints are watched")

        api.remove("mutatingwebhookconfigurations", "", ORIGINAL)

        await told(watcher, Liveness.ABSENT)
        await until(lambda: open_watches(api) == before, "the watch is over")


class Broken(NamespaceSelectors, frozen=True):
    """Selectors with a defect, for the time being."""

    def matches(self, labels: Mapping[str, str]) -> bool:  # noqa: ARG002  (it breaks before)
        raise ZeroDivisionError


async def test_an_unhandled_exception_is_told_and_counts_as_not_live(
    caplog: pytest.LogCaptureFixture,
) -> None:
    telemetry = Telemetry()
    async with Cluster() as api, watching(api, telemetry, selectors=Broken(())) as watcher:
        api.lead()

        await until(lambda: watcher.control_planes.known, "it is known")
        assert "internal error: ZeroDivisionError" in injector(watcher).why
        assert not injector(watcher).live

    errors = [each for each in caplog.records if vars(each).get("event") == "internal-error"]
    assert errors[0].exc_info
    assert f"istio_aux_internal_errors_total {len(errors)}.0" in telemetry.render().decode()


def namespace(uid: str = "1", **labels: str) -> Namespace:
    return Namespace(metadata=Metadata(name="a", uid=uid, labels=labels or None))


def test_each_change_of_a_namespaces_labels_is_reported_once() -> None:
    """The end of an old namespace does not take a new one of its name."""
    reported = list[str]()
    namespaces = Namespaces(reported.append)
    for labels in ({"mesh": "yes"}, {"mesh": "yes"}, {"mesh": "no"}, {}):
        namespaces.apply(namespace(**labels))
        assert dict(namespaces) == {"a": labels}
    namespaces.delete(Key("", "a", "1"), None)
    assert reported == ["a"] * 4
    assert (len(namespaces), namespaces.get("a")) == (0, None)
    for uid in ("1", "2"):
        namespaces.apply(namespace(uid))
    for key in (Key("", "a", "1"), Key("", "z", "9")):
        namespaces.delete(key, None)
    assert list(namespaces) == ["a"]
