"""How the repair controller handles evictions that are refused, late, lost or for another pod."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from aiohttp import web
from istio_aux.kube.client import Client
from istio_aux.kube.errors import ApiError, LateError
from istio_aux.kube.events import Events
from istio_aux.model import pod as pods
from istio_aux.model.policy import RepairPolicy
from istio_aux.repair.controller import RepairController
from istio_aux.repair.store import NotRestartedError
from istio_aux.telemetry import Telemetry
from msgspec.structs import replace
from unit.apiserver import ApiServer, refusal
from unit.asynchronous import until
from unit.leading import Led
from unit.repairing import LIMITS, SIDECAR, cluster
from unit.rules.unmeshed import RESTART, STATEFUL, raw

BUDGET = "Cannot evict pod as it would violate the pod's disruption budget."
SEVERAL = "This pod has more than one PodDisruptionBudget"
ENDING = "because it is being terminated"


@pytest.mark.parametrize(
    ("code", "reason", "message"),
    [
        (429, "TooManyRequests", BUDGET),
        (500, "", SEVERAL),
        (403, "Forbidden", ENDING),
    ],
)
async def test_a_refused_eviction_is_shown_and_tried_again(
    code: int, reason: str, message: str
) -> None:
    """A PodDisruptionBudget, several of them, a namespace that ends, a missing right."""
    async with cluster() as world:
        world.api.answers = [ApiError(code, message, reason=reason) for _ in range(3)]
        await world.pod("web")
        await until(lambda: message in world.unmeshed.get("web", ""), "the refusal is shown")
        await until(lambda: world.restarts("evicted") == 1, "it is evicted in the end")
        assert world.restarts("refused") == 3
        told = await until(lambda: world.events("NoSidecar"), "the owner is told")
        assert len(told) == 1
        answer = f"{code} {reason}".rstrip()
        assert told[0][1].endswith(f"; not restarted yet: {answer}: {message}")


async def test_retry_after_is_honoured() -> None:
    async with cluster() as world:
        world.api.refuse("/eviction", 429, "TooManyRequests", BUDGET, times=1, after=280)
        await world.pod("web")
        await until(lambda: world.restarts("refused") == 1, "it is refused")
        for name in ("a", "b"):
            await world.pod(name, owner_uid=f"owner-{name}")
        await until(lambda: world.restarts("evicted") == 2, "the others are evicted")
        assert world.api.evictions == ["a", "b"]
        (waiting,) = [o for o in world.repair._active if o.reference.uid == "owner-1"]
        assert waiting.rollout.retry_at > asyncio.get_running_loop().time() + 200
        assert not world.repair.finished


async def test_a_pod_that_changed_meanwhile_is_decided_on_again() -> None:
    """409: the watch brings the newer version."""
    async with cluster() as world:
        world.api.answers = [
            ApiError(409, "Precondition failed: ResourceVersion", reason="Conflict"),
            ApiError(404, 'pods "web" not found', reason="NotFound"),
        ]
        await world.pod("web")
        await until(lambda: world.restarts("evicted") == 1, "it is evicted")
        assert world.api.evictions == ["web"] * 3
        assert world.restarts("refused") == 0
        assert world.events("NoSidecar") == []


def cut(request: web.Request) -> web.Response:
    """No answer comes."""
    assert request.transport
    request.transport.abort()
    return refusal(503)


@pytest.mark.parametrize(
    ("code", "reason", "message"),
    [
        (504, "Timeout", "request did not complete within requested timeout"),
        (500, "InternalError", "etcdserver: request timed out"),
        (0, "", "the connection ends"),
    ],
)
async def test_an_eviction_that_was_performed_despite_an_error_is_awaited(
    code: int, reason: str, message: str
) -> None:
    """The next pod waits until the first one's replacement is Ready."""
    async with cluster(limits=replace(LIMITS, unconfirmed=20)) as world:

        async def evict_and_fail(request: web.Request) -> web.StreamResponse | None:
            if not request.path.endswith("/first/eviction"):
                return None
            world.api.remove("pods", "shop", "first")
            return refusal(code, reason, message) if code else cut(request)

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


async def test_a_controller_that_is_gone_is_forgotten() -> None:
    """A Deployment's new revision, for example: its old ReplicaSet has no pods any more."""
    limits = replace(LIMITS, patience=0.1, unconfirmed=0.05)
    async with cluster(limits=limits) as world:
        world.api.replaces = False
        await world.pod("web")
        await until(lambda: len(world.repair.store.pods) == 0 and world.api.evictions, "it is gone")
        repair = world.repair
        await until(
            lambda: not (repair.store.owners or repair._active), "its controller is forgotten"
        )


async def test_an_unhandled_exception_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster(policy=RepairPolicy()) as world:
        await world.pod("web")
        await world.found("web")
        await world.relabel("shop", cast("dict[str, str]", "no labels"))
        await until(lambda: world.count("istio_aux_internal_errors_total"), "it is counted")
        assert "Traceback" in caplog.text
        await world.relabel("shop", {})
        await world.found()


# The pods of a controller, right before one of them is restarted, beside those that are stored.

LABELS = {"app": "web"}
USUAL: dict[str, Any] = {"owner": STATEFUL, "labels": LABELS}


async def compared(**changes: dict[str, Any] | None) -> str:
    """Why the pods of a StatefulSet are not those that are stored: web-0 and web-1.

    Meanwhile pods became like ``changes``; None: they are gone.
    """
    stored = {f"web_{n}": {**USUAL, "uid": f"old-web-{n}"} for n in (0, 1)}
    async with ApiServer() as api, Client(api.access()) as client:
        repair = RepairController(
            client, {}, Telemetry(), Events(client, "me"), policy=RESTART, leadership=Led()
        )
        for name, fields in stored.items():
            repair.store.apply(pods.convert(raw(name=name.replace("_", "-"), **fields)))
        for name, fields in (stored | changes).items():
            if fields is not None:
                usual = stored.get(name, {**USUAL, "uid": name})
                body = raw(name=name.replace("_", "-"), **{**usual, **fields})
                del body["metadata"]["resourceVersion"]
                api.put("pods", body)
        (owner,) = repair.store.owners.values()
        why = ""
        try:
            await repair._compare(owner, {**LABELS, "controller-revision-hash": "1"})
        except NotRestartedError as error:
            why = f"{error}; changed: {error.changed}"
        return why.removesuffix("; changed: True")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"another": {"owner_uid": "another"}}, ""),
        ({"web_1": {"labels": {"another": "label"}}}, ""),
        ({"web_1": {"labels": LABELS | {"controller-revision-hash": "2"}}}, ""),
        ({"web_1": {"deleting": True}}, "web-1 of its controller is being deleted"),
        ({"web_2": {}}, "its controller has made web-2"),
        ({"web_1": {"uid": "new"}}, "its controller has made web-1"),
        ({"web_1": None}, "web-1 of its controller is gone"),
        ({"web_1": {"phase": "Succeeded"}}, "web-1 of its controller has finished"),
    ],
    ids=str,
)
async def test_what_the_watch_has_not_shown_yet_holds_a_restart(
    changes: dict[str, Any], why: str
) -> None:
    assert await compared(**changes) == why


async def test_a_deletion_that_the_watch_shows_during_the_last_list_holds_a_restart() -> None:
    async with cluster() as world:
        lists = "GET /api/v1/namespaces/shop/pods"

        async def delete_another(request: web.Request) -> web.Response | None:
            if not request.path.endswith("/shop/pods") or world.api.requests.count(lists) < 2:
                return None
            answer = await world.api._route(request)
            await world.pod("meshed", SIDECAR, deleting=True)
            pods = world.repair.store.pods.values()
            await until(lambda: any(pod.deleting for pod in pods), "the watch has shown it")
            return cast("web.Response", answer)

        world.api.faults.append(delete_another)
        await world.pod("meshed", SIDECAR, ready=True)
        await world.pod("web")
        await until(lambda: "is being deleted" in str(world.unmeshed), "it waits for that")
        assert world.api.evictions == []


async def test_no_restart_rests_on_an_answer_that_came_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("istio_aux.kube.actions.FRESH", 0.0)
    with pytest.raises(LateError):
        await compared()
