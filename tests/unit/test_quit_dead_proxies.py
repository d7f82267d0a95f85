"""Pods whose proxy is dead while their payload may run: shown, told, deleted if it is wanted."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web
from istio_aux.model.policy import DeadProxy, QuitPolicy
from msgspec.structs import replace
from unit.apiserver import ApiServer
from unit.asynchronous import until
from unit.quitting import ENDED, FAST, JOB, World, at_work, cluster
from unit.rules.pods import RUNNING

SOON = replace(FAST, lost_after=0.1)
DELETE = QuitPolicy(dead_proxy=DeadProxy.DELETE)
POD = "/api/v1/namespaces/training/pods/job"


async def torn(world: World, **more: Any) -> None:
    """A pod whose proxy gave up waiting, so that its payload runs without a network."""
    await world.pod("job", main=RUNNING, proxy=ENDED, owners=[JOB], **more)


def gone(world: World) -> bool:
    return world.api.get("pods", "training", "job") is None


async def test_a_dead_proxy_is_shown_at_once_and_recorded_once_it_is_confirmed() -> None:
    """istio#45627, scuttle#34."""
    async with cluster(limits=SOON) as world:
        await torn(world)
        (lost,) = await until(lambda: world.troubled("lost"), "it is known")
        assert lost.code == "IA0103"
        assert (lost.namespace, lost.name) == ("training", "job")
        assert lost.reason.startswith("istio-proxy exited 0")
        assert "main (running)" in lost.reason
        assert world.count("istio_aux_lost_pods") == 1
        assert world.api.events == []
        await until(lambda: world.api.events, "the Event is there")
        (event,) = world.api.events
        assert (event["reason"], event["type"]) == ("ProxyLost", "Warning")
        assert event["note"] == f"IA0103: {lost.reason}"
        assert world.count('istio_aux_dead_proxies_total{action="reported"}') == 1
        assert not gone(world)
        assert world.told == []


async def test_a_dead_proxy_is_recorded_once_whichever_process_leads() -> None:
    def told() -> list[str]:
        return sorted(event["regarding"]["name"] for event in api.events)

    async with ApiServer() as api:
        for process in ("first", "second"):
            async with at_work(api, limits=SOON) as world:
                await torn(world)
                await world.pod(process, main=RUNNING, proxy=ENDED, owners=[JOB])
                await until(lambda: process in told(), "what came later is told")  # noqa: B023 - at once
        assert told() == ["first", "job", "second"]


async def test_a_pod_with_a_dead_proxy_is_deleted_as_it_was_seen() -> None:
    """istio#15873: UID and resourceVersion are preconditions."""
    sent: list[dict[str, Any]] = []

    async def note(request: web.Request) -> None:
        if request.method == "DELETE":
            sent.append(await request.json())

    async with cluster(limits=SOON, policy=DELETE) as world:
        world.api.faults.append(note)
        await torn(world)
        stored = world.api.get("pods", "training", "job")
        assert stored
        await until(lambda: gone(world), "it is deleted")
        await until(lambda: len(world.api.events) == 2, "both Events are there")
    meta = stored["metadata"]
    wanted = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
    assert [options["preconditions"] for options in sent] == [wanted]
    assert world.reasons() == ["ProxyLost", "DeadProxyPodDeleted"]
    assert world.count('istio_aux_dead_proxies_total{action="deleted"}') == 1
    assert world.count('istio_aux_dead_proxies_total{action="delete-failed"}') == 0


@pytest.mark.parametrize(
    ("code", "reason", "shown"),
    [
        (403, "Forbidden", "not deleted: 403 Forbidden: no"),
        (504, "Timeout", "not known whether it was deleted: 504 Timeout: no"),
    ],
)
async def test_a_deletion_that_failed_is_shown_and_tried_again(
    code: int, reason: str, shown: str
) -> None:
    """After a server error it may have happened."""
    async with cluster(limits=SOON, policy=DELETE) as world:
        world.api.refuse(f"DELETE {POD}", code, reason, "no")
        await torn(world)
        failed = 'istio_aux_dead_proxies_total{action="delete-failed"}'
        await until(lambda: world.count(failed) >= 2, "it is tried again")
        (lost,) = world.troubled("lost")
        assert lost.reason.endswith(f"; {shown}")
        assert world.troubled("stuck") == []
        world.api.faults.clear()
        await until(lambda: gone(world), "it is deleted")


async def test_a_deletion_that_is_throttled_is_tried_again_when_the_api_server_says() -> None:
    async with cluster(limits=SOON, policy=DELETE) as world:
        came = world.api.refuse(f"DELETE {POD}", 429, "TooManyRequests", times=1, after=1)
        await torn(world)
        await until(lambda: gone(world), "it is deleted")
        assert came[1] - came[0] >= 1
