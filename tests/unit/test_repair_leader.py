"""The repair controller as a follower, while it stops, and before all pods are listed."""

from __future__ import annotations

import asyncio

from aiohttp import web
from istio_aux.core.applications import parse
from unit.asynchronous import driven, until
from unit.core.unmeshed import JOB, REPORT, WITH_JOBS
from unit.repairing import EVICTED_JOB, SIDECAR, cluster, mesh
from unit.store import refusal


@driven
async def test_a_follower_knows_all_pods_and_evicts_none() -> None:
    async with cluster(leading=False) as world:
        await world.pod("web")
        await world.found("web")
        assert world.count("istio_aux_unmeshed_pods") == 0
        assert (world.api.evictions, world.api.events) == ([], [])
        world.repair.lead(True)
        await world.found()
        world.repair.lead(True)  # Once more changes nothing.
        await world.pod("next", owner_uid="owner-2")
        await until(lambda: world.api.evictions == ["web", "next"], "it leads")


@driven
async def test_a_new_leader_reports_what_it_knew_already() -> None:
    async with cluster(policy=REPORT, leading=False) as world:
        await world.pod("web")
        await world.found("web")
        store = world.repair._store
        await until(lambda: not (store._doubted or store.changed), "all is decided")
        world.repair.lead(True)
        told = await until(lambda: world.events("NoSidecar"), "the owner is told")
        assert [name for name, _ in told] == ["web"]


@driven
async def test_nothing_happens_before_all_pods_are_known() -> None:
    """A pod that is not listed yet would count as the replacement of another."""
    listed = asyncio.Event()
    async with cluster(listed=listed) as world:
        world.repair.ask(parse("shop/web")[0])
        await world.pod("web", labels={"app.kubernetes.io/name": "web"})
        await world.found("web")
        (said,) = world.repair.applications()
        assert (said.meshed, said.meshed_reason) == (None, "pods are not listed yet")
        await world.pod("marker", SIDECAR, owner=None)
        await world.known(2)
        assert world.api.evictions == []
        listed.set()
        await until(lambda: world.api.evictions == ["web"], "it is evicted")


@driven
async def test_a_former_leader_starts_nothing() -> None:
    """Also if the Lease is lost while a Job is being read."""
    async with cluster(policy=WITH_JOBS) as world:
        asked, answer = asyncio.Event(), asyncio.Event()

        async def slow(request: web.Request) -> web.StreamResponse | None:
            if "/jobs/" not in request.path:
                return None
            asked.set()
            await answer.wait()
            return web.json_response({"metadata": {"uid": "owner-1"}})

        world.api.faults.append(slow)
        await world.pod("train", owner=JOB, restart="Never")
        await asked.wait()
        world.repair.lead(False)
        answer.set()
        await until(lambda: not restarts(), "the task is over")
        assert world.api.evictions == []
        world.api.jobs["web"] = EVICTED_JOB
        world.repair.lead(True)
        await until(lambda: world.api.evictions == ["train"], "it leads again")


@driven
async def test_a_leader_again_waits_for_its_earlier_tasks() -> None:
    async with cluster(policy=WITH_JOBS) as world:
        asked, answer = asyncio.Event(), asyncio.Event()

        async def slow(request: web.Request) -> web.StreamResponse | None:
            if "/jobs/" not in request.path or asked.is_set():
                return None
            asked.set()
            await answer.wait()
            return refusal(503)

        world.api.jobs["web"] = EVICTED_JOB
        world.api.faults.append(slow)
        await world.pod("train", owner=JOB, restart="Never")
        await asked.wait()
        world.repair.lead(False)
        world.repair.lead(True)
        await world.pod("other", owner_uid="owner-2")
        await until(lambda: world.restarts("evicted") == 1, "another one's pod is evicted")
        assert world.api.evictions == ["other"]
        answer.set()
        await until(lambda: "train" in world.api.evictions, "it goes on")


@driven
async def test_a_stopping_process_starts_nothing() -> None:
    async with cluster(known=mesh(known=False)) as world:
        await world.pod("web")
        await until(lambda: world.repair.watched == 1, "it is seen")
        await world.repair.stop(0)
        world.repair.look(mesh())
        await world.found("web")
        await world.pod("marker", SIDECAR, owner=None)
        await world.known(2)
        assert world.api.evictions == []


def restarts() -> list[str]:
    """Which pods are being restarted."""
    names = [task.get_name() for task in asyncio.all_tasks()]
    return [name for name in names if name.startswith("restart ")]
