"""The quit controller that may not act: it does not lead, only rehearses, or is switched off."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from istio_aux.model.policy import DeadProxy, Policy, QuitMode
from msgspec.structs import replace
from unit.apiserver import proxy_quits
from unit.asynchronous import driven, until
from unit.podverbs import agent_quits
from unit.quitting import ENDED, FAST, World, cluster
from unit.rules.pods import RUNNING, exited

OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": "j-1", "controller": True}
POD = "GET /api/v1/namespaces/training/pods/job"


async def settled(world: World, pods: int = 1) -> None:
    """Wait until a pod that came later than so many others was looked at."""
    await world.pod("marker", main=RUNNING)
    await until(lambda: world.controller.watched == pods + 1, "all pods are known")


def tasks() -> list[str]:
    """The names of the controller's tasks."""
    names = [task.get_name() for task in asyncio.all_tasks()]
    return [name for name in names if name.startswith("quit ")]


@driven
async def test_who_does_not_lead_follows_and_leaves_the_acting_to_others() -> None:
    async with cluster(leading=False) as world:
        await world.pod("job")
        await world.pod("torn", main=RUNNING, others={"side": exited(0)}, proxy=ENDED)
        await settled(world, 2)
        assert (world.told, world.api.events, tasks()) == ([], [], [])
        assert POD not in world.api.requests
        assert world.controller.stuck() == []
        assert world.count("istio_aux_lost_pods") == 0
        assert [pod.name for pod in world.controller.lost()] == ["torn"]


@driven
async def test_who_takes_over_finds_the_work_at_once() -> None:
    """T26: also what finished while another one led."""
    async with cluster(leading=False) as world:
        await world.pod("job")
        await settled(world)
        world.controller.lead(True)
        await world.ended("exited")
        assert world.told == ["job"]
        world.controller.lead(True)  # Once more changes nothing.
        await world.pod("next")
        await world.ended("exited", 2)
        assert world.told == ["job", "next"]


@driven
async def test_who_leads_no_longer_waits_for_nothing() -> None:
    async with cluster(limits=replace(FAST, confirm=50.0, doubt=50.0)) as world:
        world.api.on_exec, world.api.on_forward = proxy_quits, agent_quits
        await world.pod("job")
        await until(lambda: world.told, "the first attempt is made")
        world.controller.lead(False)
        await world.ended("superseded")
        await settled(world)
        assert world.told == ["job"]
        assert (world.controller.stuck(), world.api.events) == ([], [])


@driven
async def test_who_is_deposed_while_it_tells_the_proxy_leaves_the_event_to_others() -> None:
    async with cluster(limits=replace(FAST, blocked_after=0.05)) as world:

        async def depose(socket: web.WebSocketResponse, namespace: str, pod: str) -> None:
            world.controller.lead(False)
            await proxy_quits(socket, namespace, pod)
            await world.exit(pod)

        world.api.on_exec = depose
        await world.pod("job")
        await world.ended("exited")
        world.controller.lead(True)
        await world.pod("marker", main=RUNNING, others={"side": exited(0)})
        await until(lambda: world.api.events, "what came later is told")
        assert world.reasons() == ["ProxyQuitBlocked"]


@driven
async def test_a_decision_is_logged_by_who_leads(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    def decisions() -> list[str]:
        records = [vars(record) for record in caplog.records]
        return [line["action"] for line in records if line.get("event") == "decision"]

    async with cluster(leading=False) as world:
        await world.pod("job", main=RUNNING)
        await until(lambda: world.controller.watched == 1, "the pod is known")
        assert decisions() == []
        world.controller.lead(True)
        assert decisions() == ["wait"]
        world.controller.lead(False)
        world.controller.lead(True)
        assert decisions() == ["wait"]


@driven
async def test_a_dry_run_tells_once_and_does_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with cluster(mode=QuitMode.DRY_RUN) as world:
        await world.pod("job")
        await until(lambda: world.api.events, "it is told")
        await world.pod("job", annotations={"touched": "once"})
        await settled(world)
        assert world.count("istio_aux_would_quit_pods") == 1
        await world.pod("job", main=RUNNING)
        await until(lambda: world.count("istio_aux_would_quit_pods") == 0, "that is noticed")
        await world.pod("job")
        await until(lambda: world.api.requests.count(POD) == 2 and not tasks(), "it is over")
        await world.select("training", selected=False)
        await until(lambda: world.count("istio_aux_would_quit_pods") == 0, "that is noticed")
        await world.select("training")
        await until(lambda: world.count("istio_aux_would_quit_pods") == 1, "that is noticed")
        assert world.told == []
        assert world.reasons() == ["ProxyQuitDryRun"]
        assert world.controller.stuck() == []
    actions = [vars(record).get("action") for record in caplog.records if "job" in record.message]
    assert actions == ["would quit", "wait", "would quit"]


@driven
async def test_what_is_switched_off_does_and_tells_nothing() -> None:
    async with cluster(mode=QuitMode.OFF) as world:
        await world.pod("job")
        await settled(world)
        assert (world.told, world.api.events, tasks()) == ([], [], [])
        assert POD not in world.api.requests


@pytest.mark.parametrize("what", ["finished", "torn"])
@driven
async def test_who_was_frozen_looks_at_the_clock_right_before_it_acts(what: str) -> None:
    """Its Lease has lapsed, and nobody has told it yet. `Lease.leads` does then."""

    def leads() -> bool:
        world.controller.lead(lasts)
        return lasts

    lasts = False
    limits = replace(FAST, lost_after=0.1)
    async with cluster(
        leads=leads, limits=limits, policy=Policy(dead_proxy=DeadProxy.DELETE)
    ) as world:
        if what == "finished":
            await world.pod("job")
        else:
            await world.pod("job", main=RUNNING, proxy=ENDED, owners=[OWNER])
        await until(lambda: not (world.controller._scope.leading or tasks()), "it has asked")
        assert POD in world.api.requests
        assert world.told == []
        assert world.api.get("pods", "training", "job")
        lasts = True
        world.controller.lead(True)
        await until(
            lambda: world.told or not world.api.get("pods", "training", "job"), "it leads again"
        )
