"""What the watcher reads besides, how often it asks, and what it does when something goes wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from istio_aux.injector.injection import InjectionPolicy
from istio_aux.injector.probe import Rhythm
from istio_aux.injector.rules import ControlPlanes
from istio_aux.injector.watcher import Namespaces
from istio_aux.kube.objects import Key
from istio_aux.model.pod import Metadata
from istio_aux.model.policy import State
from istio_aux.model.webhooks import ControlPlane, Namespace
from istio_aux.telemetry import Telemetry
from lab import ports
from unit.asynchronous import until
from unit.injecting import ENABLED, Cluster, Istiod, chain, http, sidecar_for, silence, watching
from unit.store import refusal
from unit.test_injector_watcher import NAME, injector, told

OURS = ControlPlane("istio-system", "default")


async def test_the_injection_policy_is_read_again_and_again(tmp_path: Path) -> None:
    """Nothing is known of one that is gone, but no error nor bad text makes it unknown."""
    rhythm = Rhythm(live=0.05, other=0.05)
    async with Cluster() as api, Istiod(tmp_path) as istiod, watching(api, rhythm=rhythm) as seen:
        await api.lead_to(istiod)
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


async def test_the_injection_policy_of_a_new_istiod_is_read_at_once(tmp_path: Path) -> None:
    rhythm = Rhythm(live=3600.0, other=0.05)
    async with Cluster() as api, Istiod(tmp_path) as istiod, watching(api, rhythm=rhythm) as seen:
        await until(lambda: seen.control_planes.known, "there is no istiod")
        await api.put_policy("policy: enabled")
        await api.lead_to(istiod, ready=False)
        await until(lambda: seen.control_planes.policies, "the policy is read")


@pytest.mark.parametrize("endpoint", ["not ready", "none", "mute"])
async def test_a_process_that_starts_while_istiod_is_away_knows_whom_it_injects(
    endpoint: str, tmp_path: Path
) -> None:
    """Configurations, labels and the injection policy stay, so pods without a sidecar are found."""
    async with Cluster() as api, Istiod(tmp_path) as istiod:
        istiod.talk = silence
        await api.put_policy("policy: enabled")
        if endpoint != "none":
            await api.publish(istiod.port, ready=endpoint == "mute")
        await api.configure(bundle=istiod.bundle, timeoutSeconds=1)
        async with watching(api) as watcher:
            await until(lambda: watcher.control_planes.known, "what is there is known")
            found = watcher.control_planes
            assert (found.any_live, found.policies) == (False, {OURS: InjectionPolicy("enabled")})
            assert [hook.configuration for hook in found.hooks] == [NAME]


async def test_nothing_is_known_before_the_injection_policy_was_read(tmp_path: Path) -> None:
    """Who waits for that, and then asks which pods have no sidecar, must not hear of none."""
    seen: list[ControlPlanes] = []
    read = asyncio.Event()

    async def wait(request: web.Request) -> None:
        if "/configmaps/" in request.path:
            await read.wait()

    async with Cluster() as api, Istiod(tmp_path) as istiod:
        await api.put_policy("policy: enabled")
        await api.lead_to(istiod, ready=False)
        api.faults.append(wait)
        async with watching(api, changed=seen.append) as watcher:
            await told(watcher, State.NO_ENDPOINT)
            read.set()
            await until(lambda: watcher.control_planes.known, "it is known")
            assert [(mesh.known, bool(mesh.policies)) for mesh in seen] == [
                (False, False), (True, True),
            ]  # fmt: skip


async def test_the_injection_policy_of_an_istiod_that_is_away_is_read_again(
    tmp_path: Path,
) -> None:
    """Nobody may read it at first; then it changes."""
    rhythm = Rhythm(live=0.1, other=0.05)
    async with Cluster() as api, Istiod(tmp_path) as istiod, watching(api, rhythm=rhythm) as seen:
        await api.lead_to(istiod, ready=False)
        await told(seen, State.NO_ENDPOINT)
        assert seen.control_planes.policies == {}
        await api.put_policy("policy: enabled")
        await until(lambda: seen.control_planes.policies, "the policy is read")
        await api.put_policy("policy: disabled")
        changed = {OURS: InjectionPolicy(policy="disabled")}
        await until(lambda: seen.control_planes.policies == changed, "the change is read")


async def test_without_the_right_to_see_endpoints_a_dry_run_decides(tmp_path: Path) -> None:
    """What cannot be seen is no reason to call an injector dead."""
    async with Cluster() as api, Istiod(tmp_path) as istiod, watching(api) as watcher:
        api.refuse("/endpointslices", 403)
        api.dry_run = chain("never")
        await api.put("namespaces", {"metadata": {"name": "meshed", "labels": ENABLED}})
        await api.lead_to(istiod)
        await told(watcher, State.LIVE)
        assert istiod.heads == []


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


async def test_namespaces_that_refuse_pods_hide_no_injector(tmp_path: Path) -> None:
    """The next one is asked, and the one that answered is the first one from then on."""
    rhythm = Rhythm(live=0.05, other=0.05)
    async with Cluster() as api, watching(api, rhythm=rhythm) as watcher:
        api.dry_run = chain("never", refuses)
        for name in (*GOING, *REFUSALS, "team"):
            at = "2026-11-28T06:00:00Z" if name in GOING else None
            metadata = {"name": name, "labels": ENABLED, "deletionTimestamp": at}
            await api.put("namespaces", {"metadata": metadata})
        await api.publish(ports.reserve())
        await api.configure(bundle=Istiod(tmp_path).bundle)
        await told(watcher, State.LIVE)
        asked = [pod["metadata"]["namespace"] for pod in api.dry_runs]
        assert asked[:7] == [*REFUSALS, "team"]
        await until(lambda: len(api.dry_runs) > len(asked) + 1, "it is asked again")
        assert {pod["metadata"]["namespace"] for pod in api.dry_runs[7:]} == {"team"}


async def test_a_server_that_ends_its_connections_is_not_asked_more_often(tmp_path: Path) -> None:
    """That the connection ends is the sign of an istiod that ends, but it may be its way, too."""

    async def once(review: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(http(sidecar_for(review)))
        await writer.drain()
        writer.close()

    rhythm = Rhythm(live=30.0, other=0.2)
    async with Cluster() as api, Istiod(tmp_path) as istiod, watching(api, rhythm=rhythm) as seen:
        istiod.talk = once
        await api.lead_to(istiod)
        await told(seen, State.LIVE)
        begun = asyncio.get_running_loop().time()
        asked = len(istiod.heads)
        await until(lambda: len(istiod.heads) >= asked + 3, "it is asked three times more")

        assert asyncio.get_running_loop().time() - begun > 2 * rhythm.other
        assert injector(seen).state is State.LIVE


def open_watches(api: Cluster) -> int:
    """How many there are at whose other end somebody listens."""
    return sum(request.transport is not None for request in api.watches)


async def test_what_is_not_there_any_more_is_not_followed_any_more(tmp_path: Path) -> None:
    """Neither its endpoints nor its istiod, which loses its connection."""
    async with Cluster() as api, Istiod(tmp_path) as istiod, watching(api) as watcher:
        await told(watcher, State.ABSENT)
        before = await until(lambda: open_watches(api) == 2 and 2, "both watches are open")
        await api.lead_to(istiod)
        await told(watcher, State.LIVE)
        assert (open_watches(api), len(istiod.connections)) == (before + 1, 1)

        await api.remove("mutatingwebhookconfigurations", "", NAME)

        await told(watcher, State.ABSENT)
        await until(lambda: not istiod.connections, "the connection is closed")
        await until(lambda: open_watches(api) == before, "the watch is over")


async def test_an_unhandled_exception_affects_one_injector_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It counts as not live, is counted, and told with a traceback."""
    telemetry = Telemetry()
    async with Cluster() as api, Istiod(tmp_path) as istiod, watching(api, telemetry) as watcher:
        # No API server takes such a timeout.
        await api.publish(istiod.port, service="istiod-canary")
        await api.configure(
            "canary", bundle=istiod.bundle, service="istiod-canary", timeoutSeconds=10**400
        )
        await api.lead_to(istiod)

        await told(watcher, State.LIVE, NAME)
        await until(lambda: "internal error" in injector(watcher, "canary").why, "it is told")
        assert not injector(watcher, "canary").live
        assert watcher.control_planes.known

    errors = [each for each in caplog.records if vars(each).get("event") == "internal-error"]
    assert errors
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
