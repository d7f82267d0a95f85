"""The quit controller when things go wrong, and when others are faster."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from istio_aux.kube.clock import system_clock
from istio_aux.model.moment import Moment
from istio_aux.model.resources import Requests
from istio_aux.quit.state import QuitLimits
from unit.apiserver import proxy_quits
from unit.asynchronous import driven, until
from unit.podverbs import agent_quits
from unit.quitting import cluster, freeing, nobody_listens


@driven
async def test_a_success_that_the_status_does_not_show_is_none() -> None:
    """T16: a 404 counts as success for pilot-agent, and the proxy runs on."""
    async with cluster() as world:
        world.api.on_exec, world.api.on_forward = proxy_quits, agent_quits
        gpus = {"main": {"resources": {"requests": {"nvidia.com/gpu": "8"}}}}
        await world.pod("job", details=gpus)
        await until(lambda: len(world.told) >= 3, "it is told again")
        (stuck,) = await until(world.controller.stuck, "it is called stuck")
        assert (stuck.namespace, stuck.name) == ("training", "job")
        assert f"{stuck.since:%d %H:%M:%S}" == "21 08:16:29", "its payload's end, whoever leads"
        assert stuck.requests == Requests(gpus=8)
        assert "exec: exit code 0: OK, but istio-proxy still runs" in stuck.reason
        assert world.count("istio_aux_stuck_pods") == 1
        world.api.on_exec = freeing(world)
        await world.ended("exited")
        await until(lambda: not world.controller.stuck(), "it is not called stuck any more")
        assert world.count("istio_aux_stuck_pods") == 0


@pytest.mark.parametrize("how", ["closed", "137", "reset"])
@driven
async def test_an_exec_that_its_own_success_ends_is_judged_by_the_status(how: str) -> None:
    """T17."""
    async with cluster() as world:

        async def die(socket: web.WebSocketResponse, _namespace: str, pod: str) -> None:
            if how == "137":
                cause = b'{"reason":"ExitCode","message":"137"}'
                await socket.send_bytes(
                    b'\x03{"status":"Failure","details":{"causes":[' + cause + b"]}}"
                )
            elif how == "closed":
                await socket.close()
            else:
                world.api.abort_exec(pod)
            await world.finish(pod)

        world.api.on_exec = die
        await world.pod("job")
        await world.ended("exited")
        assert world.told == ["job"]


@driven
async def test_a_failed_attempt_is_made_again_until_it_succeeds() -> None:
    """T23: the agent may not be up yet."""
    async with cluster() as world:

        async def too_early(socket: web.WebSocketResponse, namespace: str, pod: str) -> None:
            if len(world.told) < 6:
                await socket.send_bytes(b'\x03{"status":"Failure","message":"container not found"}')
            else:
                await freeing(world)(socket, namespace, pod)

        world.api.on_exec, world.api.on_forward = too_early, nobody_listens
        await world.pod("job")
        await world.ended("exited")
        assert world.told == ["job"] * 6
        await until(lambda: "ProxyQuit" in world.reasons(), "the end is told")
        # Of five failures the 1st, the 2nd and the 4th.
        assert world.reasons().count("ProxyQuitFailed") == 3


@driven
async def test_hung_execs_delay_no_other_pod() -> None:
    """T18: more pods of a node, or of a namespace, hang than may be tried at once."""
    async with cluster(limits=QuitLimits(deadline=50, at_once=4)) as world:
        await world.select("other")

        async def hang(socket: web.WebSocketResponse, namespace: str, pod: str) -> None:
            if pod.startswith("hung"):
                await asyncio.sleep(50)
            await freeing(world)(socket, namespace, pod)

        world.api.on_exec = hang
        for number in range(5):
            await world.pod(f"hung-{number}", spec={"nodeName": "hung"})
        await until(lambda: world.told, "the first hangs")
        await world.pod("neighbour", namespace="other", spec={"nodeName": "hung"})
        await world.ended("exited")
        for number in range(5):
            await world.pod(f"hung-{number}", namespace="other", spec={"nodeName": "hung"})
        await world.select("third")
        await world.pod("healthy", namespace="third", spec={"nodeName": "healthy"})
        await world.ended("exited", 2)


@driven
async def test_no_pod_is_lost_when_the_api_server_restarts_in_between() -> None:
    async with cluster() as world:
        world.api.on_exec, world.api.on_forward = proxy_quits, agent_quits
        await world.pod("job")
        await until(lambda: world.told, "the first attempt is made")
        await world.api.stop()
        world.api.on_exec, world.api.on_forward = freeing(world), freeing(world, agent_quits)
        await asyncio.sleep(0.3)  # Three times the longest wait: some attempts meet nobody.
        assert world.controller.watched == 1
        await world.api.start()
        await world.ended("exited")


@driven
async def test_a_pod_that_cannot_be_read_is_called_stuck_with_the_reason() -> None:
    async with cluster() as world:
        world.refuse("/pods/job", 403, "Forbidden", "pods is forbidden")
        await world.pod("job")
        (stuck,) = await until(world.controller.stuck, "it is called stuck")
        assert (stuck.attempts, stuck.reason) == (0, "403 Forbidden: pods is forbidden")
        world.api.faults.clear()
        await world.ended("exited")


@driven
async def test_a_pod_that_makes_the_controller_fail_does_not_stop_other_pods(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tripped = 0

    def clock() -> Moment:
        nonlocal tripped
        task = asyncio.current_task()
        if task is not None and task.get_name() == "quit training/bad" and tripped < 2:
            tripped += 1
            raise ZeroDivisionError("a bug")
        return system_clock()

    async with cluster(clock=clock) as world:
        await world.pod("bad")
        await world.pod("good")
        await world.ended("exited", 2)
        assert world.count("istio_aux_internal_errors_total") == 2
        assert sorted(world.told) == ["bad", "good"]
    assert [record.exc_info is not None for record in caplog.records].count(True) == 2


@driven
async def test_retries_that_hang_keep_no_first_attempt_waiting() -> None:
    limits = QuitLimits(deadline=50, doubt=0.01, first_retry=0.01, at_once=1, retries_at_once=1)
    async with cluster(limits=limits) as world:

        async def fail_then_hang(socket: web.WebSocketResponse, namespace: str, pod: str) -> None:
            if pod == "healthy":
                await freeing(world)(socket, namespace, pod)
            elif world.told.count(pod) > 1:
                await asyncio.sleep(50)
            else:
                await socket.send_bytes(b'\x03{"status":"Failure","message":"too early"}')

        world.api.on_exec = world.api.on_forward = fail_then_hang
        await world.pod("hung")
        await until(lambda: world.told == ["hung", "hung"], "the retry hangs")
        await world.pod("healthy")
        await world.ended("exited")


@pytest.mark.parametrize("request_", ["job", "job/exec", "job/portforward"])
@driven
async def test_an_api_server_that_asks_for_patience_gets_it(request_: str) -> None:
    """T28: the same request comes again, as nothing was sent and nothing has failed."""
    async with cluster() as world:
        came = world.refuse(f"/pods/{request_}", 429, "TooManyRequests", after=1)

        async def fail(socket: web.WebSocketResponse, _namespace: str, _pod: str) -> None:
            await socket.send_bytes(b'\x03{"status":"Failure","message":"container not found"}')

        if request_ == "job/portforward":
            world.api.on_exec = fail
        await world.pod("job")
        await world.ended("exited")
        assert came[1] - came[0] >= 1
        asked = [path.rsplit("/", 1)[1] for path in world.api.requests if "/pods/job/" in path]
        assert (
            asked
            == {
                "job": ["exec"],
                "job/exec": ["exec"] * 2,
                "job/portforward": ["exec", "portforward", "portforward"],
            }[request_]
        )
        assert not world.controller.stuck()


@driven
async def test_an_api_server_that_is_slow_has_no_more_requests_at_once_than_a_fast_one() -> None:
    """However long they take: as long as one lasts, it counts."""
    async with cluster(limits=QuitLimits(at_once=4)) as world:
        asked, go_on = list[str](), asyncio.Event()

        async def slow(request: web.Request) -> web.Response | None:
            if request.method == "GET" and "/pods/" in request.path:
                asked.append(request.path)
                await go_on.wait()
            return None

        world.api.faults.append(slow)
        for number in range(12):
            namespace, node = f"team-{number}", f"node-{number}"
            await world.select(namespace)
            await world.pod("job", namespace=namespace, spec={"nodeName": node})
        await until(lambda: len(asked) == 4, "as many as there may be")
        await asyncio.sleep(2.5)  # Nothing is to happen: time alone gives no slot back.
        assert len(asked) == 4
        go_on.set()
        await world.ended("exited", 12)
