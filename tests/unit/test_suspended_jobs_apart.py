"""What goes wrong with one suspended Job, or with one request, keeps no other one waiting."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from aiohttp import web
from istio_aux.repair.suspended_jobs import SuspendedJobs
from istio_aux.repair.suspension import MARK
from unit.apiserver import Fault
from unit.asynchronous import until
from unit.rules.training import pod_document
from unit.store import merged, refusal
from unit.training import Kubeflow, kubeflow

PODS = "GET /api/v1/namespaces/training/pods"


def looked(api: Kubeflow, name: str) -> int:
    """How often a Job was read."""
    return sum(r.startswith("GET") and r.endswith(f"/tfjobs/{name}") for r in api.requests)


def reason(process: SuspendedJobs) -> str:
    """What the one suspended Job waits for; empty if there is none."""
    return next((job.reason for job in process.status()), "")


async def fail_to_list_pods(request: web.Request) -> web.Response | None:
    listed = request.method == "GET" and request.path.endswith("/training/pods")
    return refusal(500, "InternalError", "etcd is away") if listed else None


async def test_a_kind_that_cannot_be_listed_hides_no_other_kind() -> None:
    async with kubeflow() as world:
        await world.suspended()
        await world.api.end()
        world.api.refuse("/batch/v1/jobs", 500, "InternalError", "etcd is away")
        world.process()
        await world.resumed()


async def hang(request: web.Request) -> web.Response | None:
    if request.method == "GET" and request.path.endswith("/training/pods"):
        await asyncio.sleep(3600)
    return None


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (fail_to_list_pods, "500 InternalError: etcd is away"),
        (hang, "no list of pods within 1 s"),
    ],
)
async def test_a_job_is_resumed_at_its_deadline_although_its_pods_cannot_be_listed(
    fault: Fault, why: str
) -> None:
    async with kubeflow() as world:
        world.api.ends = False
        process = world.process(longest=3.0, answer=1.0)
        await world.restart(process)
        world.api.always(fault)
        await until(lambda: why in reason(process), "the reason is shown")
        await world.resumed()
        await world.counted("failed")
        (event,) = await until(lambda: world.api.events, "an Event")
        assert event["note"] == (
            "TFJob mnist: it was suspended for too long, and it is not known whether its pods are"
            f" gone: {why}"
        )


async def test_a_grace_period_that_was_seen_counts_while_pods_cannot_be_listed() -> None:
    """A Job that is resumed while its pods go may fail."""
    async with kubeflow() as world:
        await world.suspended()
        end = datetime.now(UTC) + timedelta(hours=1)
        for name, uid in world.api.pods.items():
            going = merged(
                pod_document(name, uid=uid),
                {"metadata": {"deletionTimestamp": f"{end:%Y-%m-%dT%H:%M:%SZ}"}},
            )
            await world.api.put("pods", going)
        process = world.process(longest=0.0)
        await until(lambda: "still there" in reason(process), "its pods are known")
        world.api.always(fail_to_list_pods)
        await until(lambda: "etcd is away" in reason(process), "they are not known any more")
        looks = looked(world.api, "mnist") + 3
        await until(lambda: looked(world.api, "mnist") > looks, "it is followed")
        assert world.api.suspended


async def test_a_job_waits_for_a_pod_that_cannot_be_read_until_its_deadline() -> None:
    """It may be one of its own."""
    async with kubeflow() as world:
        await world.suspended()
        await world.api.end()
        strange = {**pod_document("strange"), "spec": {"containers": "none"}}
        await world.api.put("pods", strange)
        # Its annotation says the time in seconds.
        process = world.process(longest=3.0)
        await until(lambda: "training/strange" in reason(process), "the pod is named")
        assert world.api.suspended
        await world.resumed()


async def test_a_job_whose_answer_is_slow_delays_no_other() -> None:
    held = list[web.Request]()

    async def hang(request: web.Request) -> web.Response | None:
        if request.path.endswith("/tfjobs/slow"):
            held.append(request)
            await asyncio.sleep(3600)
        return None

    async with kubeflow() as world:
        await world.suspended()
        await world.api.end()
        await world.another("slow")
        world.api.always(hang)
        world.process()
        await until(lambda: held, "it is asked for")
        await world.resumed()
        [request] = held
        assert request.transport, "its answer is still awaited"


async def test_many_suspended_jobs_are_asked_for_a_few_at_a_time() -> None:
    """And the one Job of another namespace is among the first."""
    under_way, most = Counter[str](), Counter[str]()

    async def count(request: web.Request) -> web.Response | None:
        match request.path.strip("/").split("/"):
            case ["apis", _, _, "namespaces", namespace, "tfjobs", _]:
                under_way[namespace] += 1
                most[namespace] = max(most[namespace], under_way[namespace])
                most["all"] = max(most["all"], under_way.total())
                await asyncio.sleep(0.01)
                under_way[namespace] -= 1
        return None

    async with kubeflow() as world:
        await world.suspended()
        for number in range(60):
            for namespace in ("a", "b", "c", "d", "e", "f"):
                await world.another(f"{namespace}-{number}", namespace)
        world.api.always(count)
        world.process(interval=0.5)
        await until(lambda: looked(world.api, "f-59"), "all of them were looked at")
        assert most["all"] <= 8
        assert most["a"] == 2
        first = [r for r in world.api.requests if "/tfjobs/" in r and r.startswith("GET")]
        place = next(n for n, r in enumerate(first) if r.endswith("/training/tfjobs/mnist"))
        assert place < 60, "it does not wait for 360 others"


async def test_of_too_many_marked_jobs_the_first_are_followed_and_then_the_others() -> None:
    """Anybody may mark Jobs: they must not fill the memory."""
    async with kubeflow() as world:
        for name in "abcdef":
            await world.another(name)
        await world.another("z", "elsewhere")
        process = world.process(adopted=2, search=0.02, settle=0.5)
        await until(lambda: len(process.status()) >= 3, "Jobs of both namespaces are found")
        assert {job.name for job in process.status()} == {"a", "b", "z"}

        def left() -> list[str]:
            jobs = [world.api.get("tfjobs", "other", name) or {} for name in "abcdef"]
            return [job["metadata"]["name"] for job in jobs if job["spec"]["runPolicy"]["suspend"]]

        await until(lambda: not left(), "all are resumed")


async def test_a_job_that_waits_is_looked_at_less_and_less_often() -> None:
    """Each time after a tenth of the time that it has waited."""
    times = list[float]()

    async def note(request: web.Request) -> web.Response | None:
        if request.method == "GET" and request.path.endswith("/tfjobs/mnist"):
            times.append(asyncio.get_running_loop().time())
        return None

    async with kubeflow() as world:
        await world.suspended()
        world.api.always(note)
        world.process()
        await until(lambda: times and times[-1] - times[0] > 1, "it waits for a second")
        for before, after in pairwise(times):
            # Less the time from the request to the decision.
            assert after - before >= (before - times[0]) / 10


async def test_a_later_change_of_its_annotation_moves_no_deadline() -> None:
    """Anybody may write it."""
    async with kubeflow() as world:
        world.api.ends = False
        process = world.process()
        await world.restart(process)
        [before] = process.status()
        await world.api.change({}, annotations={MARK: "2020-01-01T00:00:00Z so"})
        looks = world.api.requests.count(PODS) + 3
        await until(lambda: world.api.requests.count(PODS) > looks, "it is followed")
        assert world.api.suspended
        assert process.status()[0].since == before.since
