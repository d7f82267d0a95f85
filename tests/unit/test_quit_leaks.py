"""What quits leave behind in the process: nothing, however they end."""

from __future__ import annotations

import asyncio
import gc

from aiohttp import web
from aiohttp.client_ws import ClientWebSocketResponse
from istio_aux.kube.exec import Channels
from istio_aux.model.policy import DeadProxy, Policy
from istio_aux.quit.state import PodState, Task
from msgspec.structs import replace
from unit.asynchronous import descriptors, driven, until
from unit.quitting import ENDED, FAST, World, cluster, freeing
from unit.rules.pods import RUNNING

AT_ONCE = 20

POOL = 2 * AT_ONCE
"""Descriptors that reads at once may leave open for the next: both ends are in this process."""


def objects() -> list[str]:
    """The types of all living objects that a quit makes."""
    gc.collect()
    kinds = (PodState, Task, Channels, ClientWebSocketResponse)
    return sorted(type(thing).__name__ for thing in gc.get_objects() if isinstance(thing, kinds))


async def quits(world: World, number: int, prefix: str) -> None:
    before = world.count("istio_aux_quits_total")
    names = [f"{prefix}-{index}" for index in range(number)]
    for start in range(0, number, AT_ONCE):
        await asyncio.gather(*(world.pod(name) for name in names[start : start + AT_ONCE]))
        done = before + min(number, start + AT_ONCE)
        await until(lambda done=done: world.count("istio_aux_quits_total") >= done, "all are freed")
        for name in names[start : start + AT_ONCE]:
            await world.api.remove("pods", "training", name)
    await until(lambda: world.controller.watched == 0, "all are forgotten")


@driven
async def test_many_quits_leave_neither_descriptors_nor_objects() -> None:
    """T25."""
    async with cluster() as world:
        await quits(world, AT_ONCE, "warm")
        before = descriptors()
        await quits(world, 200, "job")
        await until(lambda: objects() == [], "nothing of them is left")
        await until(lambda: descriptors() <= before + POOL, "every connection is closed")


@driven
async def test_attempts_that_hang_leave_nothing_once_their_pod_is_gone() -> None:
    """T18, T25: a WebSocket that was given up is closed."""
    async with cluster(limits=replace(FAST, deadline=0.2)) as world:

        async def hang(socket: web.WebSocketResponse, *_: str) -> None:
            await socket.receive()

        await quits(world, AT_ONCE, "warm")
        before = descriptors()
        world.api.on_exec = world.api.on_forward = hang
        names = [f"hung-{index}" for index in range(AT_ONCE)]
        await asyncio.gather(*(world.pod(name) for name in names))
        await until(lambda: len(world.told) >= 4 * AT_ONCE, "all were tried more than once")
        for name in names:
            await world.api.remove("pods", "training", name)
        # Looking for objects stops the loop for long, so it comes when the loop has little to do.
        await until(lambda: world.controller.watched == 0, "all are forgotten")
        await until(lambda: objects() == [], "nothing of them is left")
        await until(lambda: descriptors() <= before + POOL, "every connection is closed")


@driven
async def test_an_attempt_that_is_dropped_at_the_end_closes_its_connection() -> None:
    """T25: on SIGTERM whatever hangs is cancelled."""
    # A namespace has a quarter of the slots.
    async with cluster(limits=replace(FAST, deadline=60.0, at_once=4 * AT_ONCE)) as world:
        closed: list[object] = []

        async def hang(socket: web.WebSocketResponse, *_: str) -> None:
            closed.append(await socket.receive())

        world.api.on_exec = hang
        await asyncio.gather(*(world.pod(f"hung-{index}") for index in range(AT_ONCE)))
        await until(lambda: len(world.told) == AT_ONCE, "all of them hang")
        await world.controller.stop(0)
        await until(lambda: len(closed) == AT_ONCE, "every connection is closed")


@driven
async def test_dead_and_blocked_pods_leave_nothing_once_they_are_gone() -> None:
    """T25."""
    policy = Policy(dead_proxy=DeadProxy.DELETE)
    async with cluster(limits=replace(FAST, lost_after=30.0), policy=policy) as world:
        world.api.on_exec = freeing(world)
        for index in range(AT_ONCE):
            await world.pod(f"dead-{index}", main=RUNNING, proxy=ENDED)
            await world.pod(f"blocked-{index}", others={"side": RUNNING})
        await until(lambda: world.controller.watched == 2 * AT_ONCE, "all are known")
        for index in range(AT_ONCE):
            await world.api.remove("pods", "training", f"dead-{index}")
            await world.api.remove("pods", "training", f"blocked-{index}")
        await until(lambda: objects() == [], "nothing of them is left")
