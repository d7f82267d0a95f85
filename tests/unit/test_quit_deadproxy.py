"""Pods whose proxy is dead while their payload may run: reported, and deleted if so decided."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web
from istio_aux.model.policy import DeadProxy, Policy, QuitMode
from msgspec.structs import replace
from unit.apiserver import ApiServer
from unit.asynchronous import driven, until
from unit.quitting import ENDED, FAST, World, at_work, cluster
from unit.rules.pods import RUNNING, exited, waiting

DELETE = Policy(dead_proxy=DeadProxy.DELETE)
JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "j-1", "controller": True}
SOON = replace(FAST, lost_after=0.1)
POD = "/api/v1/namespaces/training/pods/job"


async def torn(world: World, **more: Any) -> None:
    """A pod whose proxy gave up waiting, so that its payload runs without a network."""
    await world.pod("job", main=RUNNING, proxy=ENDED, owners=[JOB], **more)


def gone(world: World) -> bool:
    return world.api.get("pods", "training", "job") is None


@driven
async def test_a_dead_proxy_is_shown_at_once_and_recorded_once_it_is_confirmed() -> None:
    """T30, T39."""
    async with cluster(limits=SOON) as world:
        await torn(world)
        (lost,) = await until(world.controller.lost, "it is known")
        assert (lost.namespace, lost.name) == ("training", "job")
        assert lost.reason.startswith("istio-proxy exited 0")
        assert "main (running)" in lost.reason
        assert world.count("istio_aux_lost_pods") == 1
        assert world.api.events == []
        await until(lambda: world.api.events, "the Event is there")
        (event,) = world.api.events
        assert (event["reason"], event["type"]) == ("ProxyLost", "Warning")
        assert event["note"] == lost.reason
        assert world.count('istio_aux_dead_proxies_total{action="reported"}') == 1
        assert not gone(world)
        assert world.told == []


@driven
async def test_a_dead_proxy_is_recorded_once_whatever_else_changes() -> None:
    """T22."""
    async with cluster(limits=SOON) as world:
        await torn(world, others={"side": RUNNING})
        await until(lambda: world.api.events, "the Event is there")
        await torn(world, others={"side": exited(0)})
        await torn(world, others={"side": waiting("CrashLoopBackOff")})
        await until(lambda: "side" in world.controller.lost()[0].reason, "that is noticed")
        world.controller.lead(False)
        world.controller.lead(True)
        reads = world.api.requests.count(f"GET {POD}")
        await torn(world, conditions=[{"type": "AllContainersRestarting", "status": "True"}])
        await until(lambda: world.controller.lost() == [], "it is not lost any more")
        await torn(world)
        await until(lambda: world.api.requests.count(f"GET {POD}") > reads, "it is looked at")
        await world.pod("marker")
        await world.ended("exited")
        assert world.reasons().count("ProxyLost") == 1
        assert world.count('istio_aux_dead_proxies_total{action="reported"}') == 1


@driven
async def test_a_dead_proxy_is_recorded_once_whichever_process_leads() -> None:
    async with ApiServer() as api:
        for process in ("first", "second"):
            async with at_work(api, limits=SOON) as world:
                await torn(world)
                await world.pod(process, main=RUNNING, proxy=ENDED, owners=[JOB])
                await until(lambda: process in about(api), "what came later is told")  # noqa: B023
        assert about(api) == ["first", "job", "second"]


def about(api: ApiServer) -> list[str]:
    """Pods with Events, sorted."""
    return sorted(event["regarding"]["name"] for event in api.events)


@driven
async def test_a_pod_with_a_dead_proxy_is_deleted_as_it_was_seen() -> None:
    """T41: UID and resourceVersion are preconditions."""
    asked: list[dict[str, Any]] = []

    async def look(request: web.Request) -> web.StreamResponse | None:
        if request.method == "DELETE":
            asked.append(await request.json())
        return None

    async with cluster(limits=SOON, policy=DELETE) as world:
        world.api.faults.append(look)
        await torn(world)
        stored = world.api.get("pods", "training", "job")
        assert stored
        await until(lambda: gone(world), "it is deleted")
        await until(lambda: len(world.api.events) == 2, "both Events are there")
    meta = stored["metadata"]
    wanted = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
    assert [options["preconditions"] for options in asked] == [wanted]
    assert world.reasons() == ["ProxyLost", "DeadProxyPodDeleted"]
    assert world.count('istio_aux_dead_proxies_total{action="deleted"}') == 1
    assert world.count('istio_aux_dead_proxies_total{action="delete-failed"}') == 0


@driven
async def test_a_pod_that_changed_before_its_deletion_is_read_and_decided_on_again() -> None:
    """T19, T41."""
    async with cluster(limits=SOON, policy=DELETE) as world:

        async def finishes(request: web.Request) -> web.StreamResponse | None:
            if request.method == "DELETE":
                await world.pod("job", main=ENDED, proxy=ENDED, owners=[JOB])
                return None
            return None

        world.api.faults.append(finishes)
        await torn(world)
        await until(lambda: f"DELETE {POD}" in world.api.requests, "it is tried")
        await until(lambda: world.controller.lost() == [], "it is over")
        await world.pod("marker")
        await world.ended("exited")
        assert not gone(world)
        assert world.api.requests.count(f"DELETE {POD}") == 1
        assert world.count('istio_aux_dead_proxies_total{action="delete-failed"}') == 0


@pytest.mark.parametrize(
    ("code", "reason", "shown"),
    [
        (403, "Forbidden", "not deleted: 403 Forbidden: no"),
        (504, "Timeout", "not known whether it was deleted: 504 Timeout: no"),
    ],
)
@driven
async def test_a_deletion_that_failed_is_shown_and_tried_again(
    code: int, reason: str, shown: str
) -> None:
    """T23: after a server error it may have happened."""
    async with cluster(limits=SOON, policy=DELETE) as world:
        world.refuse(f"DELETE {POD}", code, reason, "no")
        await torn(world)
        failed = 'istio_aux_dead_proxies_total{action="delete-failed"}'
        await until(lambda: world.count(failed) >= 2, "it is tried again")
        (lost,) = world.controller.lost()
        assert lost.reason.endswith(f"; {shown}")
        assert world.controller.stuck() == []
        world.api.faults.clear()
        await until(lambda: gone(world), "it is deleted")


@driven
async def test_a_deletion_that_is_throttled_is_tried_again_when_the_api_server_says() -> None:
    async with cluster(limits=SOON, policy=DELETE) as world:
        came = world.refuse(f"DELETE {POD}", 429, "TooManyRequests", after=1)
        await torn(world)
        await until(lambda: gone(world), "it is deleted")
        assert came[1] - came[0] >= 1


@pytest.mark.parametrize("why", ["dry-run", "no controller", "another namespace"])
@driven
async def test_no_pod_is_deleted_that_must_not_be(why: str) -> None:
    mode = QuitMode.DRY_RUN if why == "dry-run" else QuitMode.ON
    owners = [] if why == "no controller" else [JOB]
    namespace = "elsewhere" if why == "another namespace" else "training"
    async with cluster(limits=SOON, policy=DELETE, mode=mode) as world:
        await world.pod("job", main=RUNNING, proxy=ENDED, owners=owners, namespace=namespace)
        await until(lambda: world.controller.watched == 1, "it is known")
        await world.pod("marker", main=RUNNING, proxy=ENDED)
        await until(
            lambda: [e for e in world.api.events if e["regarding"]["name"] == "marker"],
            "what came later is told",
        )
        assert not [line for line in world.api.requests if line.startswith("DELETE")]
        assert (len(world.api.events) == 1) is (why == "another namespace")
