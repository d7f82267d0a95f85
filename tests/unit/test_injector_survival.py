"""What the watcher reads besides, how often it asks, and what it does when something goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from aiohttp import web
from istio_aux.injector.injection import InjectionPolicy
from istio_aux.injector.probe import Rhythm
from istio_aux.injector.rules import ControlPlanes
from istio_aux.injector.watcher import Namespaces
from istio_aux.kube.objects import Key
from istio_aux.model.answers import State
from istio_aux.model.pod import Metadata
from istio_aux.model.selectors import NamespaceSelectors
from istio_aux.model.webhooks import ControlPlane, Namespace
from istio_aux.telemetry import Telemetry
from unit.asynchronous import until
from unit.injecting import ENABLED, Cluster, chain, watching
from unit.store import refusal
from unit.test_injector_watcher import NAME, injector, told

OURS = ControlPlane("istio-system", "default")


async def test_the_injection_policy_is_read_again_and_again() -> None:
    """Nothing is known of one that is gone, but no error nor bad text makes it unknown."""
    rhythm = Rhythm(live=0.05, other=0.05, read=0.05)
    async with Cluster() as api, watching(api, rhythm=rhythm) as seen:
        await api.lead()
        await told(seen, State.LIVE)
        assert seen.control_planes.policies == {}

        def reads() -> int:
            return sum("/configmaps/" in request for request in api.requests)

        await api.put_policy("policy: disabled")
        await until(lambda: seen.control_planes.policies, "the policy is read")
        for broken in ("policy: [", "3", None):
            await api.put_policy(broken)
            # Two more: the one under way may have begun before the change.
            goal = reads() + 2
            await until(lambda goal=goal: reads() >= goal, "it is read again")
            assert seen.control_planes.policies == {OURS: InjectionPolicy(policy="disabled")}
        for code in (429, 500, 503):
            came = api.refuse("/configmaps/" + NAME, code)
            await until(lambda came=came: len(came) > 2, "it cannot be read")
            assert seen.control_planes.policies == {OURS: InjectionPolicy(policy="disabled")}
            api.faults.clear()

        await api.remove("configmaps", "istio-system", NAME)

        await until(lambda: not seen.control_planes.policies, "the policy is not known")


async def test_nothing_is_known_before_the_injection_policy_was_read() -> None:
    """Who waits for that, and then asks which pods have no sidecar, must not hear of none."""
    seen: list[ControlPlanes] = []
    read = asyncio.Event()

    async def wait(request: web.Request) -> None:
        if "/configmaps/" in request.path:
            await read.wait()

    async with Cluster() as api:
        await api.put_policy("policy: enabled")
        await api.lead(ready=False)
        api.faults.append(wait)
        async with watching(api, changed=seen.append) as watcher:
            await told(watcher, State.NO_ENDPOINT)
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
        await api.put("namespaces", {"metadata": {"name": "meshed", "labels": ENABLED}})
        await api.lead()
        await told(watcher, State.LIVE)


TERMINATED = "unable to create new content in namespace {} because it is being terminated"
REFUSALS = {
    "a-deleted": (403, TERMINATED.format("a-deleted")),
    "b-full": (403, "exceeded quota: gpus, requested: pods=1, used: pods=4, limited: pods=4"),
    "c-secured": (403, 'violates PodSecurity "restricted:latest": unrestricted capabilities'),
    "d-policy": (400, 'admission webhook "validate.kyverno.svc" denied the request: no'),
    "e-broken": (500, 'Internal error occurred: failed calling webhook "x.example.com": EOF'),
    "f-cel": (422, "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no"),
}
"""Namespaces that refuse every pod, and how an API server says so. """


GOING = {"0-going": (403, TERMINATED.format("0-going"))}


def refuses(pod: dict[str, Any]) -> web.Response | None:
    refused = (REFUSALS | GOING).get(pod["metadata"]["namespace"])
    return refusal(refused[0], "", refused[1]) if refused else None


async def test_namespaces_that_refuse_pods_hide_no_injector() -> None:
    """The next one is asked, and the one that answered is the first one from then on."""
    rhythm = Rhythm(live=0.05, other=0.05, read=0.05)
    async with Cluster() as api, watching(api, rhythm=rhythm) as watcher:
        api.dry_run = chain("never", refuses)
        for name in (*GOING, *REFUSALS, "team"):
            at = "2026-11-28T06:00:00Z" if name in GOING else None
            metadata = {"name": name, "labels": ENABLED, "deletionTimestamp": at}
            await api.put("namespaces", {"metadata": metadata})
        await api.publish()
        await api.configure()
        await told(watcher, State.LIVE)
        asked = [pod["metadata"]["namespace"] for pod in api.dry_runs]
        assert asked[:13:2] == [*REFUSALS, "team"], "each twice, also for a classic sidecar"
        await until(lambda: len(api.dry_runs) > len(asked) + 1, "it is asked again")
        assert {pod["metadata"]["namespace"] for pod in api.dry_runs[12:]} == {"team"}


def open_watches(api: Cluster) -> int:
    """How many there are at whose other end somebody listens."""
    return sum(request.transport is not None for request in api.watches)


async def test_what_is_not_there_any_more_is_not_followed_any_more() -> None:
    async with Cluster() as api, watching(api) as watcher:
        await told(watcher, State.ABSENT)
        before = await until(lambda: open_watches(api) == 2 and 2, "both watches are open")
        await api.lead()
        await told(watcher, State.LIVE)
        assert open_watches(api) == before + 1

        await api.remove("mutatingwebhookconfigurations", "", NAME)

        await told(watcher, State.ABSENT)
        await until(lambda: open_watches(api) == before, "the watch is over")


class Broken(NamespaceSelectors, frozen=True):
    """Selectors with a defect, for the time being."""

    def matches(self, labels: Mapping[str, str]) -> bool:  # noqa: ARG002  (it breaks before)
        raise ZeroDivisionError


async def test_an_unhandled_exception_is_told_and_counts_as_not_live(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is counted, and told with a traceback."""
    telemetry = Telemetry()
    async with Cluster() as api, watching(api, telemetry, selectors=Broken(())) as watcher:
        await api.lead()

        await until(lambda: watcher.control_planes.known, "it is known")
        assert "internal error: ZeroDivisionError" in injector(watcher).why
        assert not injector(watcher).live

    errors = [each for each in caplog.records if vars(each).get("event") == "internal-error"]
    assert errors[0].exc_info
    counted = f"istio_aux_internal_errors_total {len(errors)}.0"
    assert counted in telemetry.render().decode()


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
