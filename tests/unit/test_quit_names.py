"""T19: exec and port-forward name a pod by its name, and another pod may have got that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web
from istio_aux.kube import port_forward
from istio_aux.kube.client import Client
from istio_aux.kube.errors import LateError
from istio_aux.kube.exec import execute
from istio_aux.kube.objects import Key
from istio_aux.model.moment import Moment
from istio_aux.model.policy import Policy, QuitVia
from unit.apiserver import ApiServer
from unit.asynchronous import driven, until
from unit.quitting import World, cluster
from unit.rules.pods import RUNNING
from unit.store import text

POD = "/api/v1/namespaces/training/pods/job"


class Late:
    """The clock of a process that may be late."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> Moment:
        return Moment(asyncio.get_running_loop().time() + self.seconds, time.time())


async def replace(world: World) -> None:
    """Make a pod of the same name, whose payload runs."""
    await world.api.remove("pods", "training", "job")
    await world.pod("job", main=RUNNING)


@driven
async def test_a_pod_that_was_read_long_ago_is_read_again_before_an_exec() -> None:
    """The answer took a second and a half, and the pod was replaced on its way."""
    clock = Late()
    async with cluster(clock=clock) as world:

        async def slow(request: web.Request) -> web.StreamResponse | None:
            if request.path != POD:
                return None
            old = world.api.get("pods", "training", "job")
            await replace(world)
            clock.seconds += 1.5
            return web.json_response(old, dumps=text)

        world.api.faults.append(slow)
        await world.pod("job")
        await world.ended("gone")
        assert world.told == []


@driven
async def test_a_pod_whose_reads_are_all_slow_is_told_once_they_are_not() -> None:
    clock = Late()
    async with cluster(clock=clock) as world:
        reads = 0

        async def slow(request: web.Request) -> web.StreamResponse | None:
            nonlocal reads
            if request.path == POD and reads < 7:
                assert world.told == []
                reads += 1
                clock.seconds += 1.5
            return None

        world.api.faults.append(slow)
        await world.pod("job")
        await world.ended("exited")
        assert world.told == ["job"]
        assert world.controller.stuck() == [], "it is the API server that is slow"


@driven
async def test_a_request_reaches_no_pod_that_was_made_while_it_was_connected() -> None:
    async with cluster(policy=Policy(via=QuitVia.PORT_FORWARD)) as world:

        async def meanwhile(request: web.Request) -> web.StreamResponse | None:
            if request.path == f"{POD}/portforward":
                await replace(world)
            return None

        world.api.faults.append(meanwhile)
        await world.pod("job")
        await until(lambda: world.told, "the port is forwarded")
        await world.ended("gone")
        assert world.api.forwards == []


async def run_in(client: Client, pod: Key, not_after: float) -> None:
    result = await execute(client, pod, "istio-proxy", ["true"], 5, not_after=not_after)
    assert result.well


async def post_to(client: Client, pod: Key, not_after: float) -> None:
    answer = await port_forward.request(client, pod, 15020, "POST /", 5, not_after=not_after)
    assert answer.well


@pytest.mark.parametrize("verb", [run_in, post_to], ids=["exec", "port-forward"])
@driven
async def test_nothing_is_sent_once_its_time_is_over(
    verb: Callable[[Client, Key, float], Awaitable[None]],
) -> None:
    """It may have waited for its connection."""
    async with ApiServer() as api, Client(api.access()) as client:
        await api.put("pods", {"metadata": {"name": "job", "namespace": "training"}})
        now = asyncio.get_running_loop().time()
        pod = Key("training", "job", "u-1")
        before = len(api.requests)
        with pytest.raises(LateError, match="nothing was sent: its connection came"):
            await verb(client, pod, now)
        assert len(api.requests) == before
        await verb(client, pod, now + 100)
