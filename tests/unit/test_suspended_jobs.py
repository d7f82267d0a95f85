"""Jobs of the training operator are suspended until their pods are gone, and then resumed."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web
from istio_aux.kube.errors import UnreachableError
from istio_aux.repair.suspension import MARK
from unit.asynchronous import until
from unit.training import Kubeflow, kubeflow

PATCH = "PATCH /apis/kubeflow.org/v1/namespaces/training/tfjobs/mnist"


def patches(api: Kubeflow) -> int:
    return api.requests.count(PATCH)


def pod_lists(api: Kubeflow) -> int:
    return api.requests.count("GET /api/v1/namespaces/training/pods")


async def no_answer(request: web.Request) -> web.Response | None:
    """The request is cut off; its result is unknown."""
    if request.method == "PATCH" and request.transport:
        request.transport.abort()
    return None


async def test_all_pods_of_a_job_are_replaced_and_it_does_not_fail() -> None:
    async with kubeflow() as world:
        before = world.api.pods
        assert await world.restart(world.process()) == ""
        await world.resumed()
        assert world.api.pods.keys() == before.keys()
        assert not set(world.api.pods.values()) & set(before.values())
        assert world.api.job["status"]["conditions"][0]["type"] == "Running"
        await world.counted("resumed")
        assert (world.restarts("suspended"), world.restarts("failed")) == (1, 0)


async def test_a_job_stays_suspended_until_its_pods_are_gone_and_an_event_says_so() -> None:
    async with kubeflow() as world:
        world.api.ends = False
        process = world.process(late=0.05)
        await world.restart(process)
        event = (await until(lambda: world.api.events, "an Event"))[0]
        assert event["reason"] == "StillSuspended"
        assert event["regarding"]["name"].startswith("mnist-worker-")
        assert event["note"] == (
            "TFJob mnist stays suspended until its pods are gone, so that it does not fail:"
            " 2 of its pods are still there: mnist-worker-0, mnist-worker-1"
        )
        [shown] = process.status()
        assert (shown.namespace, shown.kind, shown.name) == ("training", "TFJob", "mnist")
        assert shown.reason.startswith("2 of its pods are still there")
        looks = pod_lists(world.api) + 5
        await until(lambda: pod_lists(world.api) > looks, "more looks")
        await world.api.end()
        await world.resumed()
        await until(lambda: not process.status(), "nothing is under way")
        assert len(world.api.events) == 1


async def test_a_job_is_suspended_once_for_all_its_pods() -> None:
    async with kubeflow() as world:
        world.api.ends = False
        process = world.process()
        for name in (*world.api.pods, *world.api.pods):
            assert await world.restart(process, name) == ""
        assert patches(world.api) == 1
        assert len(process.status()) == 1


async def test_a_job_is_not_suspended_while_a_disruption_budget_forbids_it() -> None:
    """The operator would delete them whatever it says."""
    async with kubeflow() as world:
        world.api.budget = True
        refused = await world.restart(world.process())
        assert refused == (
            "its TFJob is not suspended: mnist-worker-0: 429 TooManyRequests: Cannot evict pod"
        )
        assert not world.api.suspended


async def test_a_job_whose_pods_cannot_be_listed_is_not_suspended() -> None:
    """A PodDisruptionBudget may protect one of them. It is refused: no change was requested."""
    async with kubeflow() as world:
        world.api.refuse("/training/pods", 500, "InternalError", "etcd is away")
        refused = await world.restart(world.process())
        why = "its pods are not known: 500 InternalError: etcd is away"
        assert refused == f"its TFJob is not suspended: {why}"
        assert not world.api.suspended


async def test_a_long_error_is_shortened() -> None:
    text = 'patch: Invalid value: "' + "x" * 5000 + '": unknown field "spec.runPolicy.suspend"'
    async with kubeflow() as world:
        world.api.refuse(PATCH, 422, "Invalid", text)
        refused = await world.restart(world.process())
        assert refused.endswith('unknown field "spec.runPolicy.suspend"')
        assert len(refused) < 350


async def test_a_job_that_changed_since_it_was_read_is_not_suspended() -> None:
    async def meddle(request: web.Request) -> web.Response | None:
        if request.method == "PATCH":
            world.api.faults.clear()
            await world.api.change({"suspend": True})
        return None

    async with kubeflow() as world:
        world.api.faults.append(meddle)
        process = world.process()
        assert "409" in await world.restart(process)
        refused = await world.restart(process)
        assert refused == "its TFJob is not suspended: somebody else has suspended it"
        assert patches(world.api) == 1
        assert not world.api.marked


async def test_a_job_is_resumed_although_its_suspension_got_no_answer() -> None:
    async with kubeflow() as world:
        before = world.api.pods
        world.api.faults.append(no_answer)
        with pytest.raises(UnreachableError):
            await world.restart(world.process())
        world.api.faults.clear()
        await until(lambda: world.api.pods.keys() and world.api.pods != before, "new pods")
        await world.resumed()


async def test_a_refused_resumption_is_tried_again() -> None:
    """At the time that the API server names, where it does."""
    async with kubeflow() as world:
        process = world.process()
        await world.restart(process)
        world.api.refuse(PATCH, 403, "Forbidden", "not you", times=5)
        came = world.api.refuse(PATCH, 429, "TooManyRequests", "slow down", times=1, after=1)
        await until(lambda: "not you" in process.status()[0].reason, "the reason is shown")
        await world.resumed()
        assert came[1] - came[0] >= 1


# The leader resumes suspended Jobs, and a new leader finds them.

LONGEST = 2.0  # Seconds that a Job may be suspended.


def lists(api: Kubeflow) -> int:
    return api.requests.count("GET /apis/kubeflow.org/v1/tfjobs")


@pytest.mark.parametrize("allowed", [True, False])
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


async def test_a_leader_whose_lease_has_lapsed_writes_to_no_job_until_it_holds_it_again() -> None:
    """Nobody has told it yet that another process leads."""
    leads = True
    async with kubeflow() as world:
        world.api.ends = False
        process = world.process(leads=lambda: leads)
        await world.restart(process)
        leads = False
        await world.api.end()
        looks = pod_lists(world.api) + 20
        await until(lambda: pod_lists(world.api) > looks, "it is followed all the same")
        assert world.api.suspended
        assert await world.restart(process) == "this process may not suspend it"
        leads = True
        await world.resumed()


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
async def test_a_job_is_resumed_once_jobs_may_be_listed_again(
    allowed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Without `restart-jobs` the charm grants it as soon as it finds such a Job.

    Until then it is no warning, and the list is tried again by the next search.
    """
    async with kubeflow() as world:
        await world.suspended()
        await world.api.end()
        refused = world.api.refuse("/v1/tfjobs", 403, "Forbidden", "no", times=3)
        world.process(allowed=allowed, search=600 if allowed else 0.02)
        await world.resumed()
        assert len(refused) > 3
        warned = [r for r in caplog.records if "403" in r.getMessage()]
        assert bool(warned) is allowed


async def test_a_job_that_was_missed_is_found_by_a_later_search() -> None:
    """A request to suspend it that was given up for lost, and came late."""
    async with kubeflow() as world:
        process = world.process(search=0.02)
        await until(lambda: lists(world.api) > 1, "a search that finds nothing")
        assert not process.status()
        await world.suspended()
        await world.api.end()
        await world.resumed()


async def test_without_a_training_operator_nothing_is_listed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with kubeflow() as world:
        world.api.served = False
        world.process(search=0.02)
        await until(lambda: world.api.requests.count("GET /apis/kubeflow.org/v1") > 1, "a search")
        assert lists(world.api) == 0
        assert not [r for r in caplog.records if r.levelno >= logging.WARNING]
