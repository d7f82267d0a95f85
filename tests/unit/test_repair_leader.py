"""The repair controller as a follower, while it stops, and before all pods are listed."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web
from istio_aux.kube.clock import system_clock
from istio_aux.kube.errors import UnreachableError
from istio_aux.kube.objects import Key
from istio_aux.model.answers import State
from istio_aux.model.applications import parse
from istio_aux.model.election import Replaced
from istio_aux.model.moment import Moment
from istio_aux.model.names import SUSPENDED as MARK
from msgspec.structs import replace
from unit.asynchronous import until
from unit.repairing import (
    BARE,
    LIMITS,
    SIDECAR,
    Cluster,
    World,
    at_work,
    cluster,
    mesh,
)
from unit.rules.unmeshed import REPORT, STATEFUL, raw
from unit.training import FAST


async def test_a_follower_knows_all_pods_and_evicts_none() -> None:
    async with cluster(leading=False) as world:
        await world.pod("web")
        await world.found("web")
        assert world.count("istio_aux_unmeshed_pods") == 0
        assert (world.api.evictions, world.api.events) == ([], [])
        jobs = "GET /apis/batch/v1/jobs"
        assert jobs not in world.api.requests
        world.repair.lead(True)
        await until(lambda: jobs in world.api.requests, "Jobs that are suspended are searched")
        await world.found()
        world.repair.lead(True)  # Once more changes nothing.
        await world.pod("next", owner_uid="owner-2")
        await until(lambda: world.api.evictions == ["web", "next"], "it leads")


async def test_a_new_leader_reports_what_it_knew_already() -> None:
    async with cluster(policy=REPORT, leading=False) as world:
        await world.pod("web")
        await world.found("web")
        store = world.repair._store
        await until(lambda: not (store._outdated or store.changed), "all is decided")
        world.repair.lead(True)
        told = await until(lambda: world.events("NoSidecar"), "the owner is told")
        assert [name for name, _ in told] == ["web"]


async def test_nothing_happens_before_all_pods_are_known() -> None:
    """A pod that is not listed yet would count as the replacement of another."""
    listed = asyncio.Event()
    async with cluster(listed=listed) as world:
        world.repair.set_applications(parse("shop/web")[0])
        await world.pod("web", labels={"app.kubernetes.io/name": "web"})
        await world.found("web")
        (said,) = world.repair.applications()
        assert (said.meshed, said.meshed_reason) == (None, "pods are not listed yet")
        await world.pod("marker", SIDECAR, owner=None)
        await world.known(2)
        assert (world.api.evictions, world.repair.finished) == ([], False)
        listed.set()
        await until(lambda: world.api.evictions == ["web"], "it is evicted")
        await until(lambda: world.repair.finished, "all is decided")


async def test_repair_is_not_finished_before_it_has_decided_about_each_pod() -> None:
    listed = asyncio.Event()
    async with cluster(policy=REPORT, listed=listed) as world:
        await world.pod("web")
        await world.known(1)
        assert not world.repair.finished
        listed.set()
        await until(lambda: world.repair.finished, "all is decided")


async def test_the_next_leader_knows_what_the_last_one_evicted() -> None:
    """It reads that in the Lease, also before it has listed the pods."""
    async with Cluster() as api:
        async with at_work(api) as world:
            await evict_without_replacement(world)
            left = world.repair.failed, world.repair.replaced
        async with at_work(api, leading=False) as world:
            world.repair.recall(*left)
            world.repair.lead(True)
            await world.pod("marker", owner_uid="another")
            await until(lambda: "marker" in world.api.evictions, "others go on")
            assert "web-0" not in world.api.evictions
            left = world.repair.failed, world.repair.replaced
            assert left[1]["shop/owner-1"].pod == "web-1", "it is left to the one after, too"
        async with at_work(api, leading=False) as world:
            world.repair.recall(*left)
            world.repair.lead(True)
            api.injects = False
            await world.pod("web-1", owner=STATEFUL, uid="new", created="2026-11-24T08:00:00Z")
            await until(lambda: world.restarts("stopped") == 1, "it is no better")
            await until(lambda: not world.repair.replaced, "it is not under way any more")
            left = world.repair.failed, world.repair.replaced
        async with at_work(api, leading=False) as world:
            world.repair.recall(*left)
            world.repair.lead(True)
            await until(lambda: "no sidecar" in world.unmeshed.get("web-1", ""), "it is known")
            assert world.restarts("stopped") == 0, "who saw that has told it"
            assert api.evictions.count("web-1") == 1


async def test_what_did_not_help_is_known_of_a_controller_whose_pods_all_went_and_came() -> None:
    """A watch that began again shows both before the new leader looks at the controller."""
    listed = asyncio.Event()
    async with cluster(listed=listed) as world:
        world.repair.recall({"shop/owner-1": datetime.now(UTC)}, {})
        await world.pod("web")
        await world.known(1)
        await world.api.remove("pods", "shop", "web")
        await world.known(0)
        await world.pod("web", uid="again")
        await world.pod("marker", owner_uid="another")
        await world.known(2)
        listed.set()
        await until(lambda: "marker" in world.api.evictions, "others go on")
        await until(lambda: world.repair.finished, "all is decided")
        assert "web" not in world.api.evictions


async def test_what_was_under_way_is_forgotten_once_it_is_over() -> None:
    """Also where no pod of the controller is to be restarted any more, or there is no such."""
    limits = replace(LIMITS, unreplaced=1.0)
    async with Cluster() as api:
        async with at_work(api) as world:
            await evict_without_replacement(world)
            left = dict(world.repair.replaced)
        await api.put("pods", raw(SIDECAR, name="web-1", uid="new", owner=STATEFUL))
        await api.remove("pods", "shop", "web-0")
        async with at_work(api, leading=False, limits=limits) as world:
            await world.known(1)
            world.repair.recall({}, {**left, "shop/gone": Replaced("web-0", "old")})
            world.repair.lead(True)
            await until(lambda: "shop/owner-1" not in world.repair.replaced, "it is proven")
            await until(lambda: not world.repair.replaced, "nobody knows the other one")
            assert not world.repair._active


async def test_what_is_about_to_be_done_is_stored_before_it_is_done() -> None:
    """An eviction of which the next leader may know nothing is not sent."""
    seen: list[tuple[list[str], list[str]]] = []

    async def store() -> None:
        seen.append((list(world.repair.replaced), list(world.api.evictions)))
        if len(seen) == 1:
            raise UnreachableError("no answer")

    async with cluster(store=store) as world:
        await world.pod("web")
        await until(lambda: world.restarts("evicted") == 1, "it is evicted")
        assert seen == [(["shop/owner-1"], [])] * 2
        assert world.restarts("refused") == 0


async def test_nothing_is_stored_about_pods_that_were_not_read_again() -> None:
    """A new pod that a silent watch hides would be the result of a restart that never was.

    The Lease is also written every two seconds, whatever is under way.
    """
    stored: list[list[str]] = []

    async def pods_are_listed(request: web.Request) -> web.StreamResponse | None:
        if request.path.endswith("/shop/pods") and not world.api.evictions:
            stored.append(list(world.repair.replaced))
        return None

    async with cluster() as world:
        world.api.faults.append(pods_are_listed)
        await world.pod("web")
        await until(lambda: world.restarts("evicted") == 1, "it is evicted")
        assert stored == [[], ["shop/owner-1"]]


async def test_a_pod_that_comes_while_that_is_stored_is_no_replacement() -> None:
    """The next leader would take it for one."""

    async def store() -> None:
        if not world.repair._store.pods.get(Key("shop", "more", "more")):
            await world.pod("more", SIDECAR, uid="more")
            await world.known(2)

    async with cluster(store=store) as world:
        world.api.replaces = False
        await world.pod("web")
        await until(lambda: world.api.evictions, "it is evicted")
        (pod,) = world.repair.replaced.values()
        (owner,) = world.repair._active
        assert owner.rollout.replacing
        assert owner.rollout.replacing.known == {"old-web", "more"}
        assert pod.pod == "web"


async def test_a_process_that_was_frozen_looks_at_the_clock_right_before_it_evicts() -> None:
    """Its Lease has lapsed, and nobody has told it yet."""
    leads = False
    async with cluster(leads=lambda: leads) as world:
        await world.pod("web")
        await until(lambda: any(o.rollout.refusals > 1 for o in world.repair._active), "it tries")
        assert world.api.evictions == []
        assert world.restarts("refused") == 0
        leads = True
        await until(lambda: world.restarts("evicted") == 1, "it leads")


async def test_a_restart_does_not_rest_on_a_decision_that_is_out_of_date() -> None:
    """The injector is away right before the eviction is sent, and no pod was decided on again."""

    def leads() -> bool:
        if away:
            world.repair.set_injectors(mesh(State.NO_ENDPOINT))
        return True

    away = True
    async with cluster(leads=leads) as world:
        await world.pod("web")
        await until(lambda: "not live" in world.unmeshed.get("web", ""), "it is decided again")
        assert world.api.evictions == []
        away = False
        world.repair.set_injectors(mesh())
        await until(lambda: world.api.evictions == ["web"], "it is back")


async def test_a_process_that_does_not_lead_follows_what_it_began() -> None:
    """Else it would count for its next term, and be kept for ever."""
    async with cluster() as world:
        await evict_without_replacement(world)
        world.repair.lead(False)
        assert [*world.repair.replaced] == ["shop/owner-1"], "it may lead again"
        await world.pod("web-1", SIDECAR, owner=STATEFUL, uid="new")
        await until(lambda: not world.repair._active, "its end is seen")
        assert world.repair.replaced == {}


async def test_what_one_leader_forgot_to_say_is_not_forgotten() -> None:
    """Failures add up, what is replaced is a state, and an expired failure is dropped."""
    passed = 0.0

    def clock() -> Moment:
        now = system_clock()
        return Moment(now.monotonic + passed, now.wall)

    now = datetime.now(UTC).replace(microsecond=0)
    one, two = Replaced("web-0", "u-1"), Replaced("web-1", "u-2")
    async with cluster(leading=False, clock=clock) as world:
        world.repair.recall({"shop/a": now}, {"shop/x": one})
        passed = 3600.0
        world.repair.recall({"shop/b": now, "shop/a": now - timedelta(hours=1)}, {"shop/y": two})
        assert world.repair.failed == {"shop/a": now, "shop/b": now}
        assert world.repair.replaced == {"shop/y": two}
        passed = 86_000.0
        world.repair.recall({"shop/a": now}, {})
        passed = 86_500.0
        world.repair.recall({}, {})
        assert list(world.repair.failed) == ["shop/b"]
        world.repair.recall({f"shop/{n}": now + timedelta(seconds=n) for n in range(500)}, {})
        assert list(world.repair.failed) == [f"shop/{n}" for n in range(400, 500)]


@pytest.mark.parametrize(
    "left",
    [
        ({}, {"shop/owner-1": Replaced("web-0", "u-1")}),
        ({"shop/owner-1": datetime.now(UTC).replace(microsecond=0)}, {}),
    ],
    ids=("being replaced", "replaced in vain"),
)
async def test_a_suspension_that_arrives_after_the_next_leader_has_searched_is_found_soon(
    left: tuple[dict[str, datetime], dict[str, Replaced]],
) -> None:
    """The Lease says that a pod was to be replaced, so its Job may be suspended at any time."""
    limits = replace(FAST, search=600.0, first_search=0.02)
    async with cluster(leading=False, job_limits=limits) as world:
        await world.known(0)
        world.repair.recall(*left)
        world.repair.lead(True)
        jobs = "GET /apis/batch/v1/jobs"
        await until(lambda: jobs in world.api.requests, "it has searched")
        marked = {"name": "web", "namespace": "shop", "uid": "owner-1", "labels": {MARK: "sidecar"}}
        seen = {"conditions": [{"type": "Suspended", "status": "True"}]}
        late = {"metadata": marked, "spec": {"suspend": True}, "status": seen}
        await world.api.put("jobs", late)

        def suspended() -> bool:
            return (world.api.get("jobs", "shop", "web") or {})["spec"]["suspend"]

        await until(lambda: not suspended(), "it is resumed")


async def test_what_another_leader_began_since_is_not_overwritten() -> None:
    """A process that led before stores the Lease as it was left when it leads again."""
    now = datetime.now(UTC).replace(microsecond=0)
    async with cluster() as world:
        await evict_without_replacement(world)
        own = dict(world.repair.replaced)
        world.repair.lead(False)
        newer = {key: Replaced("web-0", "old-web-0") for key in own}
        world.repair.recall(dict.fromkeys(own, now), newer)
        assert (world.repair.replaced, own == newer) == (newer, False)
        assert list(world.repair.failed.values()) == [now]


async def test_what_a_leader_reads_in_the_lease_is_added_to_what_it_knows() -> None:
    """Another process has written it back, because the Lease was deleted."""
    failed = {"shop/owner-1": datetime.now(UTC).replace(microsecond=0)}
    known, read = {"shop/a": Replaced("a-0", "u-1")}, {"shop/b": Replaced("b-0", "u-2")}
    async with cluster(leading=False) as world:
        await world.pod("web")
        await world.found("web")
        world.repair.recall({}, known)
        world.repair.lead(True)
        world.repair.recall(failed, read)
        world.repair.recall({}, {"shop/a": Replaced("older", "u-0")})
        assert (world.repair.failed, world.repair.replaced) == (failed, known | read)
        await world.pod("next", owner_uid="owner-2")
        await until(lambda: world.api.evictions == ["next"], "other controllers go on")


async def evict_without_replacement(world: World) -> None:
    """A StatefulSet of two pods is without the second one."""
    world.api.replaces = False
    for name in ("web-0", "web-1"):
        await world.api.put("pods", raw(BARE, name=name, uid=f"old-{name}", owner=STATEFUL))
    await until(lambda: world.api.evictions == ["web-1"], "one is evicted")
    await until(lambda: world.repair.watched == 1, "it is gone")
    world.api.replaces = True


async def test_no_pod_of_a_stateful_set_is_evicted_while_the_name_of_another_is_not_back() -> None:
    """Whoever has deleted that pod."""
    async with cluster(leading=False) as world:
        for name in ("web-0", "web-1"):
            await world.pod(name, owner=STATEFUL)
        await world.known(2)
        await world.api.remove("pods", "shop", "web-1")
        await until(lambda: world.repair.watched == 1, "it is gone")
        world.repair.lead(True)
        await world.pod("other", owner_uid="owner-2")
        await until(lambda: world.api.evictions == ["other"], "other controllers go on")
        await until(lambda: world.repair.watched == 2, "its pod is replaced")
        assert world.api.evictions == ["other"]
        await world.pod("web-1", SIDECAR, uid="next", owner=STATEFUL)
        await until(lambda: world.api.evictions == ["other", "web-0"], "the name is back")
