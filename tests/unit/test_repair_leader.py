"""The repair controller as a follower, while it stops, and before all pods are listed."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from istio_aux.kube.errors import UnreachableError
from istio_aux.model.answers import State
from istio_aux.model.applications import parse
from istio_aux.model.election import Replaced
from unit.asynchronous import Late, until
from unit.repairing import BARE, SIDECAR, Cluster, World, at_work, cluster, mesh
from unit.rules.unmeshed import STATEFUL, raw


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


async def test_nothing_happens_before_all_pods_are_known() -> None:
    """A pod that is not listed yet would count as the replacement of another."""
    listed = asyncio.Event()
    async with cluster(listed=listed) as world:
        world.repair.store.set_applications(parse("shop/web")[0])
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
        world.api.remove("pods", "shop", "web")
        await world.known(0)
        await world.pod("web", uid="again")
        await world.pod("marker", owner_uid="another")
        await world.known(2)
        listed.set()
        await until(lambda: "marker" in world.api.evictions, "others go on")
        await until(lambda: world.repair.finished, "all is decided")
        assert "web" not in world.api.evictions


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
            world.repair.store.set_injectors(mesh(State.NO_ENDPOINT))
        return True

    away = True
    async with cluster(leads=leads) as world:
        await world.pod("web")
        await until(lambda: "not live" in world.unmeshed.get("web", ""), "it is decided again")
        assert world.api.evictions == []
        away = False
        world.repair.store.set_injectors(mesh())
        await until(lambda: world.api.evictions == ["web"], "it is back")


async def test_what_one_leader_forgot_to_say_is_not_forgotten() -> None:
    """Failures add up, what is replaced is a state, and an expired failure is dropped."""
    clock, now = Late(), datetime.now(UTC).replace(microsecond=0)
    one, two = Replaced("web-0", "u-1"), Replaced("web-1", "u-2")
    async with cluster(leading=False, clock=clock) as world:
        world.repair.recall({"shop/a": now}, {"shop/x": one})
        clock.seconds = 3600.0
        world.repair.recall({"shop/b": now, "shop/a": now - timedelta(hours=1)}, {"shop/y": two})
        assert world.repair.failed == {"shop/a": now, "shop/b": now}
        assert world.repair.replaced == {"shop/y": two}
        world.repair.recall({}, {"shop/x": one}, lost=True)
        assert world.repair.replaced == {"shop/x": one, "shop/y": two}
        world.repair.recall({}, {"shop/y": two})
        clock.seconds = 86_000.0
        world.repair.recall({"shop/a": now}, {})
        clock.seconds = 86_500.0
        world.repair.recall({}, {})
        assert list(world.repair.failed) == ["shop/b"]
        world.repair.recall({f"shop/{n}": now + timedelta(seconds=n) for n in range(500)}, {})
        assert list(world.repair.failed) == [f"shop/{n}" for n in range(400, 500)]


async def evict_without_replacement(world: World) -> None:
    """A StatefulSet of two pods is without the second one."""
    world.api.replaces = False
    for name in ("web-0", "web-1"):
        world.api.put("pods", raw(BARE, name=name, uid=f"old-{name}", owner=STATEFUL))
    await until(lambda: world.api.evictions == ["web-1"], "one is evicted")
    await until(lambda: len(world.repair.store.pods) == 1, "it is gone")
    world.api.replaces = True
