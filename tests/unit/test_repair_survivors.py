"""What `tox -e mutants` could break in the repair controller without a test that failed."""

from __future__ import annotations

import asyncio

from unit.asynchronous import driven, until
from unit.repairing import cluster
from unit.rules.unmeshed import REPORT
from unit.store import refusal


@driven
async def test_a_process_that_begins_to_lead_looks_for_jobs_that_are_suspended() -> None:
    """An earlier leader may have left some; whoever follows leaves them alone."""
    async with cluster(leading=False) as world:
        await world.pod("web")
        await world.known(1)
        jobs = "GET /apis/batch/v1/jobs"
        assert jobs not in world.api.requests
        world.repair.lead(True)
        await until(lambda: jobs in world.api.requests, "they are listed")


@driven
async def test_repair_is_not_finished_before_it_has_decided_about_each_pod() -> None:
    listed = asyncio.Event()
    async with cluster(policy=REPORT, listed=listed) as world:
        await world.pod("web")
        await world.known(1)
        assert not world.repair.finished
        listed.set()
        await until(lambda: world.repair.finished, "all is decided")


@driven
async def test_repair_is_not_finished_while_a_pod_may_not_be_disrupted() -> None:
    budget = refusal(429, "TooManyRequests", "Cannot evict pod", headers={"Retry-After": "280"})
    async with cluster() as world:
        world.api.answers = [budget]
        await world.pod("web")
        await until(lambda: world.restarts("refused") == 1, "it is refused")
        await until(lambda: not world.repair._tasks, "the request is over")
        assert not world.repair.finished


@driven
async def test_repair_is_finished_where_a_restart_did_not_help() -> None:
    async with cluster() as world:
        world.api.injects = False
        await world.pod("web")
        await until(lambda: world.restarts("stopped") == 1, "its controller is given up")
        await until(lambda: world.repair.finished, "nothing is left to do")
        assert world.api.evictions == ["web"]
