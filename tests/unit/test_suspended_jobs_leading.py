"""The leader resumes suspended Jobs, and a new leader finds them."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web
from istio_aux.repair.suspension import MARK
from unit.asynchronous import driven, until
from unit.store import refusal
from unit.training import Kubeflow, World, kubeflow

LONGEST = 2.0  # Seconds that a Job may be suspended.


def lists(api: Kubeflow) -> int:
    return api.requests.count("GET /apis/kubeflow.org/v1/tfjobs")


@pytest.mark.parametrize("allowed", [True, False])
@driven
async def test_the_next_leader_resumes_the_job(allowed: bool) -> None:
    """Also when the policy was changed meanwhile, so that nothing would be suspended now."""
    async with kubeflow() as world:
        await world.suspended()
        process = world.process(allowed=allowed)
        await until(lambda: world.gauge("istio_aux_suspended_jobs") == 1, "it is counted")
        await world.api.end()
        await world.resumed()
        assert world.api.job["status"]["conditions"][0]["type"] == "Running"
        await until(lambda: world.gauge("istio_aux_suspended_jobs") == 0, "it is not any more")
        assert not process.status()


@driven
async def test_a_job_is_not_suspended_again_whoever_leads() -> None:
    """Its new pods have no sidecar either: their work must not be lost, too."""
    async with kubeflow() as world:
        await world.suspended()
        await world.api.end()
        first = world.process()
        await world.resumed()
        for process in (first, world.process()):
            before = world.api.job
            refused = await world.restart(process)
            assert refused.startswith("its TFJob is not suspended: it was suspended for its sidec")
            assert world.api.job == before


@driven
async def test_a_job_that_somebody_else_resumed_is_not_suspended_again() -> None:
    """Its pods may be new ones."""
    async with kubeflow() as world:
        await world.suspended()
        await world.api.end()
        await world.api.change({"suspend": False})
        process = world.process()
        await until(lambda: not world.api.marked, "the mark is taken off")
        assert "is not suspended again within a day" in await world.restart(process)


@driven
async def test_a_process_that_lost_the_lead_meanwhile_does_not_suspend_a_job() -> None:
    async def usurp(request: web.Request) -> web.Response | None:
        if request.path.endswith("/eviction"):
            process.lead(False)
        return None

    async with kubeflow() as world:
        process = world.process()
        world.api.faults.append(usurp)
        refused = await world.restart(process)
        assert refused == "its TFJob is not suspended: this process does not lead any more"
        assert not world.api.suspended


@driven
async def test_a_leader_whose_lease_has_lapsed_writes_to_no_job_until_it_holds_it_again() -> None:
    """Nobody has told it yet that another process leads."""
    leads = True
    async with kubeflow() as world:
        world.api.ends = False
        process = world.process(leads=lambda: leads)
        await world.restart(process)
        leads = False
        await world.api.end()
        looks = world.api.requests.count("GET /api/v1/namespaces/training/pods") + 20
        await until(
            lambda: world.api.requests.count("GET /api/v1/namespaces/training/pods") > looks,
            "it is followed all the same",
        )
        assert world.api.suspended
        assert await world.restart(process) == "this process may not suspend it"
        leads = True
        await world.resumed()


@driven
async def test_a_process_that_stops_leaves_its_jobs_to_the_next_leader() -> None:
    async with kubeflow() as world:
        world.api.ends = False
        process = world.process()
        await world.restart(process)
        await process.stop(5)
        await world.api.end()
        assert world.api.suspended
        assert world.api.marked
        world.process()
        await world.resumed()


@driven
async def test_the_deadline_of_a_suspension_survives_a_change_of_leader() -> None:
    """Its pods do not go; the Job is resumed, and its owner is told.

    The next leader follows it for `SuspensionLimits.longest` before it trusts another's clock.
    """
    async with kubeflow() as world:
        await world.suspended()
        begun = datetime.now(UTC) - timedelta(seconds=3 * LONGEST)
        await world.api.change({}, annotations={MARK: f"{begun:%Y-%m-%dT%H:%M:%SZ} so"})
        process = world.process(longest=LONGEST)
        await world.resumed()
        await world.counted("failed")
        (event,) = await until(lambda: world.api.events, "an Event")
        assert (event["type"], event["reason"]) == ("Warning", "ResumedWithoutRestart")
        assert event["regarding"]["kind"] == "TFJob"
        assert event["regarding"]["name"] == "mnist"
        assert event["note"].startswith("TFJob mnist: it was suspended for too long, and 2 of its")
        await until(lambda: not process.status(), "nothing is under way")


@pytest.mark.parametrize("allowed", [True, False])
@driven
async def test_a_job_is_resumed_once_jobs_may_be_listed_again(allowed: bool) -> None:
    """Without `restart-jobs` the charm grants it as soon as it finds such a Job."""
    async with kubeflow() as world:
        await world.suspended()
        await world.api.end()
        await forbid(world)
        world.process(allowed=allowed, search=600 if allowed else 0.02)
        await world.resumed()


@driven
async def test_a_job_that_was_missed_is_found_by_a_later_search() -> None:
    """A request to suspend it that was given up for lost, and came late."""
    async with kubeflow() as world:
        process = world.process(search=0.02)
        await until(lambda: lists(world.api) > 1, "a search that finds nothing")
        assert not process.status()
        await world.suspended()
        await world.api.end()
        await world.resumed()


@driven
async def test_without_a_training_operator_nothing_is_listed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with kubeflow() as world:
        world.api.served = False
        world.process(search=0.02)
        await until(lambda: world.api.requests.count("GET /apis/kubeflow.org/v1") > 1, "a search")
        assert lists(world.api) == 0
        assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


async def forbid(world: World) -> None:
    """Nobody may list Jobs, for the time being."""

    async def refuse(request: web.Request) -> web.Response | None:
        return refusal(403, "Forbidden", "no") if request.path.endswith("/tfjobs") else None

    world.api.faults += [refuse] * 3


@driven
async def test_a_forbidden_list_of_jobs_is_not_logged_without_restart_jobs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with kubeflow() as world:
        await forbid(world)
        before = lists(world.api)
        world.process(allowed=False)
        await until(lambda: lists(world.api) > before, "the refused list")
        await asyncio.sleep(0.1)  # Nothing happens that could be awaited.
        assert lists(world.api) == before + 1
        assert not [r for r in caplog.records if r.levelno >= logging.WARNING]
