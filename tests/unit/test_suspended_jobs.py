"""Jobs of the training operator are suspended until their pods are gone, and then resumed."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from istio_aux.kube.errors import UnreachableError
from unit.asynchronous import driven, until
from unit.store import refusal
from unit.training import Kubeflow, kubeflow


def patches(api: Kubeflow) -> int:
    return sum(request.startswith("PATCH") for request in api.requests)


def pod_lists(api: Kubeflow) -> int:
    return api.requests.count("GET /api/v1/namespaces/training/pods")


async def no_answer(request: web.Request) -> web.Response | None:
    """The request is cut off; its result is unknown."""
    if request.method == "PATCH" and request.transport:
        request.transport.abort()
    return None


@driven
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


@driven
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


@driven
async def test_a_job_is_suspended_once_for_all_its_pods() -> None:
    async with kubeflow() as world:
        world.api.ends = False
        process = world.process()
        for name in (*world.api.pods, *world.api.pods):
            assert await world.restart(process, name) == ""
        assert patches(world.api) == 1
        assert len(process.status()) == 1


@driven
async def test_a_job_is_not_suspended_while_a_disruption_budget_forbids_it() -> None:
    """The operator would delete them whatever it says."""
    async with kubeflow() as world:
        world.api.budget = True
        refused = await world.restart(world.process())
        assert refused == (
            "its TFJob is not suspended: mnist-worker-0: 429 TooManyRequests: Cannot evict pod"
        )
        assert not world.api.suspended


@driven
async def test_a_job_whose_pods_cannot_be_listed_is_not_suspended() -> None:
    """A PodDisruptionBudget may protect one of them. It is refused: no change was requested."""

    async def fail(request: web.Request) -> web.Response | None:
        listed = request.method == "GET" and request.path.endswith("/training/pods")
        return refusal(500, "InternalError", "etcd is away") if listed else None

    async with kubeflow() as world:
        world.api.always(fail)
        refused = await world.restart(world.process())
        why = "its pods are not known: 500 InternalError: etcd is away"
        assert refused == f"its TFJob is not suspended: {why}"
        assert not world.api.suspended


@driven
async def test_a_long_error_is_shortened() -> None:
    async def refuse(request: web.Request) -> web.Response | None:
        text = 'patch: Invalid value: "' + "x" * 5000 + '": unknown field "spec.runPolicy.suspend"'
        return refusal(422, "Invalid", text) if request.method == "PATCH" else None

    async with kubeflow() as world:
        world.api.faults.append(refuse)
        refused = await world.restart(world.process())
        assert refused.endswith('unknown field "spec.runPolicy.suspend"')
        assert len(refused) < 350


@driven
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


@driven
async def test_a_job_is_resumed_although_its_suspension_got_no_answer() -> None:
    async with kubeflow() as world:
        before = world.api.pods
        world.api.faults.append(no_answer)
        with pytest.raises(UnreachableError):
            await world.restart(world.process())
        world.api.faults.clear()
        await until(lambda: world.api.pods.keys() and world.api.pods != before, "new pods")
        await world.resumed()


@driven
async def test_a_job_that_is_gone_is_forgotten() -> None:
    async with kubeflow() as world:
        world.api.ends = False
        process = world.process()
        await world.restart(process)
        await world.api.remove("tfjobs", "training", "mnist")
        await until(lambda: not process.status(), "nothing is under way")


@driven
async def test_a_job_whose_operator_is_away_keeps_its_pods() -> None:
    """It has lost nothing, so it may be suspended again."""
    async with kubeflow() as world:
        before, world.api.operates = world.api.pods, False
        process = world.process(unnoticed=0.1)
        await world.restart(process)
        await world.resumed()
        assert world.api.pods == before
        await world.counted("failed")
        assert world.restarts("resumed") == 0
        assert await world.restart(process) == ""


@driven
async def test_a_refused_resumption_is_tried_again() -> None:
    """At the time that the API server names, where it does."""
    asked = list[float]()

    async def refuse(request: web.Request) -> web.Response | None:
        return refusal(403, "Forbidden", "not you") if request.method == "PATCH" else None

    async def throttle(request: web.Request) -> web.Response | None:
        if request.method != "PATCH":
            return None
        asked.append(asyncio.get_running_loop().time())
        return refusal(429, "TooManyRequests", "slow down", headers={"Retry-After": "1"})

    async with kubeflow() as world:
        process = world.process()
        await world.restart(process)
        world.api.faults += [*[refuse] * 5, throttle]
        await until(lambda: "not you" in process.status()[0].reason, "the reason is shown")
        await world.resumed()
        assert asyncio.get_running_loop().time() - asked[0] >= 1
