"""What the repair controller makes of evictions that are refused, late, lost or for another pod."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from aiohttp import web
from istio_aux.core.policy import RepairPolicy
from istio_aux.core.rollout import RolloutLimits
from msgspec.structs import replace
from unit.asynchronous import driven, until
from unit.core.unmeshed import JOB, WITH_JOBS
from unit.repairing import EVICTED_JOB, LIMITS, SIDECAR, World, cluster
from unit.store import refusal

BUDGET = "Cannot evict pod as it would violate the pod's disruption budget."
SEVERAL = "This pod has more than one PodDisruptionBudget"
ENDING = "because it is being terminated"


def budget(**headers: str) -> web.Response:
    return refusal(429, "TooManyRequests", BUDGET, headers=headers)


@pytest.mark.parametrize(
    ("code", "reason", "message"),
    [
        (429, "TooManyRequests", BUDGET),
        (500, "", SEVERAL),
        (403, "Forbidden", ENDING),
    ],
)
@driven
async def test_a_refused_eviction_is_shown_and_tried_again(
    code: int, reason: str, message: str
) -> None:
    """A PodDisruptionBudget, several of them, a namespace that ends, a missing right."""
    async with cluster() as world:
        world.api.answers = [refusal(code, reason, message) for _ in range(3)]
        await world.pod("web")
        await until(lambda: message in world.unmeshed.get("web", ""), "the refusal is shown")
        await until(lambda: world.restarts("evicted") == 1, "it is evicted in the end")
        assert world.restarts("refused") == 3
        told = await until(lambda: world.events("NoSidecar"), "the owner is told")
        assert len(told) == 1
        answer = f"{code} {reason}".rstrip()
        assert told[0][1].endswith(f"; not restarted yet: {answer}: {message}")


@driven
async def test_the_peace_that_the_api_server_asks_for_is_kept() -> None:
    """Retry-After; another controller's pods do not wait for it."""
    async with cluster() as world:
        world.api.answers = [budget(**{"Retry-After": "280"})]
        await world.pod("web")
        await until(lambda: world.restarts("refused") == 1, "it is refused")
        for name in ("a", "b"):
            await world.pod(name, owner_uid=f"owner-{name}")
        await until(lambda: world.restarts("evicted") == 2, "the others are evicted")
        assert world.api.evictions == ["web", "a", "b"]
        followed = {owner.reference.uid: owner for owner in world.repair._active}
        waiting = followed["owner-1"]
        assert waiting.rollout.retry_at > asyncio.get_running_loop().time() + 200


@driven
async def test_a_pod_that_changed_in_the_meantime_is_looked_at_again() -> None:
    """409: the watch brings the newer one, and that is decided on."""
    async with cluster() as world:
        world.api.answers = [
            refusal(409, "Conflict", "Precondition failed: ResourceVersion"),
            refusal(404, "NotFound", 'pods "web" not found'),
        ]
        await world.pod("web")
        await until(lambda: world.restarts("evicted") == 1, "it is evicted")
        assert world.api.evictions == ["web"] * 3
        assert world.restarts("refused") == 0
        assert world.events("NoSidecar") == []


async def cut(request: web.Request) -> web.StreamResponse | None:
    """No answer comes, and nothing happens."""
    if not request.path.endswith("/eviction"):
        return None
    assert request.transport
    request.transport.abort()
    return refusal(503)


@driven
async def test_an_eviction_that_nobody_answered_is_tried_again_if_it_did_not_happen() -> None:
    async with cluster(limits=replace(LIMITS, doubt=0.3)) as world:
        world.api.faults.append(cut)
        await world.pod("web")
        await until(lambda: world.restarts("failed") == 1, "nobody answers")
        await until(lambda: world.restarts("evicted") == 1, "it is evicted")
        assert world.api.evictions == ["web"]


@driven
async def test_an_eviction_that_nobody_answered_is_not_repeated_at_once() -> None:
    """The API server may still be at work on it."""
    async with cluster(limits=replace(LIMITS, doubt=10)) as world:
        world.api.faults.append(cut)
        await world.pod("web")
        await until(lambda: world.restarts("failed") == 1, "nobody answers")
        await world.pod("other", owner_uid="owner-2")
        await until(lambda: world.api.evictions == ["other"], "another one's pod is evicted")
        assert world.unmeshed["web"].endswith(
            "web was evicted, and no replacement is Ready with a sidecar yet"
        )
        asked = [path for path in world.api.requests if path.endswith("/web/eviction")]
        assert len(asked) == 1


@driven
async def test_an_eviction_that_nobody_answered_is_awaited_if_it_happened() -> None:
    async with cluster() as world:

        async def evict_and_cut(request: web.Request) -> web.StreamResponse | None:
            if not request.path.endswith("/eviction"):
                return None
            found = world.api.get("pods", "shop", "web")
            assert found
            assert request.transport
            await world.api.remove("pods", "shop", "web")
            await world.api.replacement(found)
            request.transport.abort()
            return refusal(503)

        world.api.faults.append(evict_and_cut)
        await world.pod("web")
        await world.found()
        assert world.api.evictions == []


@pytest.mark.parametrize(
    ("code", "reason", "message"),
    [
        (504, "Timeout", "request did not complete within requested timeout"),
        (503, "ServiceUnavailable", "the server is shutting down"),
        (500, "InternalError", "etcdserver: request timed out"),
        (502, "", "an answer of a proxy in between"),
    ],
)
@driven
async def test_an_eviction_that_ended_in_a_server_error_is_awaited(
    code: int, reason: str, message: str
) -> None:
    """It may have happened: the next pod waits until the first one's replacement is Ready."""
    async with cluster(limits=replace(LIMITS, doubt=20)) as world:

        async def evict_and_fail(request: web.Request) -> web.StreamResponse | None:
            if not request.path.endswith("/first/eviction"):
                return None
            await world.api.remove("pods", "shop", "first")
            return refusal(code, reason, message)

        world.api.faults.append(evict_and_fail)
        await world.pod("first")
        await world.pod("second")
        await until(lambda: world.api.get("pods", "shop", "first") is None, "the first goes")
        await world.pod("marker", owner_uid="owner-2")
        await until(lambda: "marker" in world.api.evictions, "other controllers go on")
        assert world.api.evictions == ["marker"]
        assert (world.restarts("failed"), world.restarts("refused")) == (1, 0)
        await world.pod("replacement", SIDECAR)
        await until(lambda: world.api.evictions == ["marker", "second"], "the second is next")


@pytest.mark.parametrize(
    "job",
    [
        None,
        {"metadata": {"uid": "another"}},
        {"metadata": {"uid": "owner-1", "deletionTimestamp": "2026-11-21T08:17:00Z"}},
        *(
            {
                "metadata": {"uid": "owner-1"},
                "status": {"conditions": [{"type": condition, "status": "True"}]},
            }
            for condition in ("Complete", "Failed", "SuccessCriteriaMet", "FailureTarget")
        ),
    ],
)
@driven
async def test_no_pod_of_a_job_that_is_over_is_evicted(job: dict[str, object] | None) -> None:
    """Nobody would make a new one."""
    async with cluster(policy=WITH_JOBS) as world:
        if job:
            world.api.jobs["web"] = job
        await world.pod("train", owner=JOB, restart="Never")
        await until(lambda: "its Job is finished" in world.unmeshed.get("train", ""), "so")
        assert world.api.evictions == []


@driven
async def test_a_job_that_works_is_asked_before_each_of_its_pods_is_evicted() -> None:
    async with cluster(policy=WITH_JOBS) as world:
        world.api.jobs["web"] = {
            **EVICTED_JOB,
            "status": {"conditions": [{"type": "Complete", "status": "False"}]},
        }
        await refuse_job(world)
        for name in ("a", "b"):
            await world.pod(name, owner=JOB, restart="Never")
        await until(lambda: len(world.api.evictions) == 2, "both are evicted")
        asked = [path for path in world.api.requests if "/jobs/" in path]
        assert asked == ["GET /apis/batch/v1/namespaces/shop/jobs/web"] * 3
        assert world.restarts("refused") == 1


@pytest.mark.parametrize(
    ("owner", "failed", "because"),
    [("JobSet", 0, "is part of JobSet a"), ("SparkJob", 6, "6 failures of backoffLimit 6")],
)
@driven
async def test_no_pod_is_evicted_whose_job_would_suffer(
    owner: str, failed: int, because: str
) -> None:
    async with cluster(policy=WITH_JOBS) as world:
        (reference,) = EVICTED_JOB["metadata"]["ownerReferences"]
        reference = {**reference, "kind": owner, "apiVersion": "jobset.x-k8s.io/v1alpha2"}
        metadata = {**EVICTED_JOB["metadata"], "ownerReferences": [reference]}
        status = {"failed": failed}
        world.api.jobs["web"] = {**EVICTED_JOB, "metadata": metadata, "status": status}
        await world.pod("train", owner=JOB, restart="Never")
        await until(lambda: world.api.evictions or because in world.unmeshed.get("train", ""), "so")
        assert world.api.evictions == []
        assert world.restarts("suspended") == 0


async def refuse_job(world: World) -> None:
    """The next question about a Job is refused."""

    async def refuse(request: web.Request) -> web.StreamResponse | None:
        return refusal(403, "Forbidden", "no right") if "/jobs/" in request.path else None

    world.api.faults.append(refuse)


@driven
async def test_replacements_that_never_come_do_not_keep_others_waiting() -> None:
    """No node has room for them, for example; what became of it is told."""
    async with cluster(limits=replace(LIMITS, patience=1.0, doubt=0.8)) as world:
        world.api.replaces = False
        for number in range(4):
            await world.pod(f"web-{number}", owner_uid=f"owner-{number}")
        await until(lambda: world.restarts("stopped") == 4, "all are given up")
        assert len(world.api.evictions) == 4


@driven
async def test_a_controller_that_is_gone_is_forgotten() -> None:
    """A Deployment's new revision, for example: its old ReplicaSet has no pods any more."""
    limits: RolloutLimits = replace(LIMITS, patience=0.1, doubt=0.05)
    async with cluster(limits=limits) as world:
        world.api.replaces = False
        await world.pod("web")
        await until(lambda: world.repair.watched == 0 and world.api.evictions, "it is gone")
        await until(lambda: not world.repair._store._owners, "its controller is forgotten")
        assert not world.repair._active


@driven
async def test_an_error_that_nobody_foresaw_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster(policy=RepairPolicy()) as world:
        await world.pod("web")
        await world.found("web")
        await world.relabel("shop", cast("dict[str, str]", "no labels"))
        await until(lambda: world.count("istio_aux_internal_errors_total") == 1, "it is counted")
        assert "Traceback" in caplog.text
        await world.relabel("shop", {})
        await world.found()


@driven
async def test_the_peace_that_is_asked_for_when_a_job_is_read_is_kept() -> None:
    reads = list[float]()

    async def throttle(request: web.Request) -> web.Response | None:
        if "/jobs/" not in request.path:
            return None
        reads.append(asyncio.get_running_loop().time())
        return refusal(429, "TooManyRequests", "slow down", headers={"Retry-After": "1"})

    async def look(request: web.Request) -> None:
        if "/jobs/" in request.path:
            reads.append(asyncio.get_running_loop().time())

    async with cluster(policy=WITH_JOBS) as world:
        world.api.faults += [throttle, look]
        await world.pod("job", owner=JOB, restart="Never")
        await until(lambda: len(reads) >= 2, "it is read again")
        assert reads[1] - reads[0] >= 1
