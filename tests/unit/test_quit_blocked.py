"""Pods that a container keeps from completing, and pods whose proxy is dead."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web
from istio_aux.model.answers import group
from istio_aux.model.policy import DeadProxy, Policy
from istio_aux.quit.rules import KATIB_FIX
from msgspec.structs import replace
from unit.asynchronous import until
from unit.quitting import ENDED, FAST, JOB, World, cluster
from unit.rules.pods import RUNNING

SOON = replace(FAST, blocked_after=0.2, lost_after=0.1)


async def kept(world: World, name: str = "job") -> None:
    """A pod whose database proxy nobody ends."""
    await world.pod(name, others={"cloud-sql-proxy": RUNNING})


async def test_a_blocked_pod_says_by_whom_at_once_and_tells_its_owner_later_and_once() -> None:
    """T13, T22: a pod that is blocked again, or seen again, gets no second Event."""
    async with cluster(limits=SOON) as world:
        await kept(world)
        (blocked,) = await until(world.controller.blocked, "it is known")
        assert (blocked.namespace, blocked.name) == ("training", "job")
        assert blocked.by == ("cloud-sql-proxy",)
        assert world.count("istio_aux_blocked_pods") == 1
        assert world.api.events == []
        await until(lambda: world.api.events, "the Event is there")
        (event,) = world.api.events
        assert (event["reason"], event["type"]) == ("ProxyQuitBlocked", "Normal")
        assert "cloud-sql-proxy" in event["note"]
        assert "istio-aux.io/ignore-containers" in event["note"]
        await world.pod("job", main=RUNNING, others={"cloud-sql-proxy": RUNNING})
        await until(lambda: world.controller.blocked() == [], "it is not blocked any more")
        await kept(world)
        await until(world.controller.blocked, "it is blocked again")
        world.controller.lead(False)
        world.controller.lead(True)
        await kept(world, "marker")
        await until(lambda: len(world.api.events) == 2, "what came later is told")
        assert world.api.events[-1]["regarding"]["name"] == "marker"
        assert world.told == []


async def test_a_pod_that_an_annotation_blocks_names_it_and_is_not_told_of_containers() -> None:
    async with cluster(limits=SOON) as world:
        await world.pod("job", annotations={"istio-aux.io/quit-grace": "soon"})
        (blocked,) = await until(world.controller.blocked, "it is known")
        assert blocked.by == ("annotation istio-aux.io/quit-grace",)
        (event,) = await until(lambda: world.api.events, "the Event")
        assert event["note"].startswith("istio-proxy is kept by annotation istio-aux.io/quit-grace")
        assert "ignore-containers" not in event["note"]


IGNORING = Policy(ignore_containers=frozenset({"vault-agent"}))


async def test_a_pod_that_a_container_holds_without_its_proxy_is_named_and_tells_its_owner() -> (
    None
):
    """`ignore-containers` frees the proxy. Somebody has to say what holds the pod then."""
    async with cluster(limits=SOON, policy=IGNORING) as world:
        await world.pod("job", proxy=ENDED, others={"vault-agent": RUNNING})
        (held,) = await until(world.controller.blocked, "it is known")
        assert held.by == ("vault-agent",)
        assert "held by vault-agent (running; ignored: option ignore-containers)" in held.reason
        (event,) = await until(lambda: world.api.events, "the Event")
        assert (event["reason"], event["type"]) == ("PodHeld", "Normal")
        assert event["note"].startswith("the pod is kept by vault-agent: ")
        await world.pod("job", proxy=ENDED, others={"vault-agent": ENDED})
        await until(lambda: world.controller.blocked() == [], "it is held no more")


async def test_of_pods_with_a_native_proxy_only_those_that_are_held_are_followed() -> None:
    async with cluster(limits=SOON) as world:
        for name, main in (("runs", RUNNING), ("hangs", ENDED)):
            await world.pod(name, main, others={"collector": RUNNING}, native=True)
        (held,) = await until(world.controller.blocked, "it is known")
        assert (held.name, held.by) == ("hangs", ("collector",))
        assert world.controller.watched == 1


KATIB = {
    "spec": {"shareProcessNamespace": True},
    "details": {"main": {"args": ["train && echo completed > /var/log/katib/$$$$.pid"]}},
}


async def test_a_trial_whose_collector_waits_for_the_proxy_tells_its_owner_what_to_set() -> None:
    """katib#1638: to ignore the collector, as other blocked pods are told, would lose metrics."""
    collector = "metrics-logger-and-collector"
    async with cluster(limits=SOON) as world:
        for native in (False, True):
            name = f"native-{native}".lower()
            await world.pod(name, others={collector: RUNNING}, native=native, **KATIB)
        await until(lambda: len(world.api.events) == 2, "both Events")
        notes = {event["reason"]: event["note"] for event in world.api.events}
        assert notes.keys() == {"ProxyQuitBlocked", "PodHeld"}
        for note in notes.values():
            assert note.endswith(KATIB_FIX)
            assert "ignore-containers" not in note
        (holder,) = group(world.controller.blocked())
        assert (holder.by, holder.pods, holder.fix) == ((collector,), 2, KATIB_FIX)
        assert world.told == []


# Pods whose proxy is dead while their payload may run.

DELETE = Policy(dead_proxy=DeadProxy.DELETE)
POD = "/api/v1/namespaces/training/pods/job"


async def torn(world: World, **more: Any) -> None:
    """A pod whose proxy gave up waiting, so that its payload runs without a network."""
    await world.pod("job", main=RUNNING, proxy=ENDED, owners=[JOB], **more)


def gone(world: World) -> bool:
    return world.api.get("pods", "training", "job") is None


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


async def test_a_pod_with_a_dead_proxy_is_deleted_as_it_was_seen() -> None:
    """T41: UID and resourceVersion are preconditions."""
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


async def test_a_pod_that_changed_before_its_deletion_is_read_and_decided_on_again() -> None:
    """T19, T41."""
    async with cluster(limits=SOON, policy=DELETE) as world:

        async def finishes(request: web.Request) -> None:
            if request.method == "DELETE":
                await world.pod("job", main=ENDED, proxy=ENDED, owners=[JOB])

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
async def test_a_deletion_that_failed_is_shown_and_tried_again(
    code: int, reason: str, shown: str
) -> None:
    """T23: after a server error it may have happened."""
    async with cluster(limits=SOON, policy=DELETE) as world:
        world.api.refuse(f"DELETE {POD}", code, reason, "no")
        await torn(world)
        failed = 'istio_aux_dead_proxies_total{action="delete-failed"}'
        await until(lambda: world.count(failed) >= 2, "it is tried again")
        (lost,) = world.controller.lost()
        assert lost.reason.endswith(f"; {shown}")
        assert world.controller.stuck() == []
        world.api.faults.clear()
        await until(lambda: gone(world), "it is deleted")
