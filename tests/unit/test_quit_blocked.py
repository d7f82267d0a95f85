"""Pods that one container keeps from completing although another one is finished."""

from __future__ import annotations

from istio_aux.model.answers import group
from istio_aux.model.policy import Policy
from istio_aux.model.resources import Requests
from istio_aux.quit.rules import KATIB_FIX
from msgspec.structs import replace
from unit.asynchronous import driven, until
from unit.quitting import ENDED, FAST, World, cluster
from unit.rules.pods import RUNNING

SOON = replace(FAST, blocked_after=0.2)


async def kept(world: World, name: str = "job") -> None:
    """A pod whose database proxy nobody ends."""
    await world.pod(name, others={"cloud-sql-proxy": RUNNING})


@driven
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


@driven
async def test_a_pod_that_is_blocked_for_a_moment_gets_no_event() -> None:
    """T6: two containers that end a little apart are nothing to worry about."""
    async with cluster(limits=replace(FAST, blocked_after=1.0)) as world:
        await kept(world)
        await until(world.controller.blocked, "it is known")
        await world.pod("job", others={"cloud-sql-proxy": ENDED})
        await world.ended("exited")
        assert world.controller.blocked() == []
        await kept(world, "marker")
        await until(lambda: len(world.api.events) == 2, "what was blocked later is told")
        assert world.reasons() == ["ProxyQuit", "ProxyQuitBlocked"]
        assert world.api.events[-1]["regarding"]["name"] == "marker"


@driven
async def test_a_blocked_pod_of_a_namespace_that_is_not_selected_is_not_reported() -> None:
    async with cluster(limits=SOON) as world:
        await world.select("training", selected=False)
        await until(lambda: world.controller.selected == [], "that is noticed")
        await kept(world)
        await until(lambda: world.controller.watched == 1, "it is known")
        assert world.controller.blocked() == []
        await world.select("training")
        await until(world.controller.blocked, "that is noticed")
        await until(lambda: world.api.events, "the Event is there")


@driven
async def test_a_pod_that_an_annotation_blocks_names_it_and_is_not_told_of_containers() -> None:
    async with cluster(limits=SOON) as world:
        await world.pod("job", annotations={"istio-aux.io/quit-grace": "soon"})
        (blocked,) = await until(world.controller.blocked, "it is known")
        assert blocked.by == ("annotation istio-aux.io/quit-grace",)
        (event,) = await until(lambda: world.api.events, "the Event")
        assert event["note"].startswith("istio-proxy is kept by annotation istio-aux.io/quit-grace")
        assert "ignore-containers" not in event["note"]


IGNORING = Policy(ignore_containers=frozenset({"vault-agent"}))


@driven
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


@driven
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


@driven
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


@driven
async def test_held_pods_say_since_when_and_what_they_request() -> None:
    gpus = {"main": {"resources": {"requests": {"nvidia.com/gpu": "8"}}}}
    async with cluster(limits=SOON) as world:
        for name in ("a", "b"):
            await world.pod(name, others={"vault-agent": RUNNING}, details=gpus)
        (holder,) = await until(
            lambda: [one for one in group(world.controller.blocked()) if one.pods == 2],
            "both are held",
        )
        assert holder.requests == Requests(gpus=16)
        text = "2 pods are held by vault-agent since 2026-11-21 08:16Z: 16 GPUs"
        assert holder.text == text
        await world.pod("a", others={"vault-agent": ENDED}, details=gpus)
        await until(lambda: len(world.controller.blocked()) == 1, "one is left")
