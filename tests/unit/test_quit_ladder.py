"""The quit controller and the ways to tell a proxy to exit: which, in which order, how often."""

from __future__ import annotations

import asyncio

from aiohttp import web
from istio_aux.model.policy import Policy, QuitVia
from msgspec.structs import replace
from unit.apiserver import proxy_quits
from unit.asynchronous import driven, until
from unit.podverbs import agent_quits
from unit.quitting import FAST, World, cluster, nobody_listens

EXEC = ("exec", ("pilot-agent", "request", "--debug-port=15020", "POST", "quitquitquit"))
ENVOY = ("exec", ("pilot-agent", "request", "POST", "quitquitquit"))


def told(world: World) -> list[tuple[str, object]]:
    """How proxies were told to exit, in order: a command, or a forwarded port and request line."""
    commands = iter(("exec", command) for _, _, _, command in world.api.execs)
    requests = iter(
        ("port-forward", (port, head.splitlines()[0])) for _, _, port, head in world.api.forwards
    )
    ways = [path.rsplit("/", 1)[1] for path in world.api.requests]
    every = {"exec": commands, "portforward": requests}
    return [next(every[way]) for way in ways if way in every]


def forward(port: int) -> tuple[str, object]:
    return ("port-forward", (port, "POST /quitquitquit HTTP/1.1"))


@driven
async def test_attempts_climb_the_ladder_again_and_again() -> None:
    """T14, T15, T21, T23: no shell, the agent's port by name, and every way gets its turn."""
    ways = [EXEC, forward(15020), ENVOY, EXEC]
    async with cluster() as world:
        world.api.on_exec, world.api.on_forward = proxy_quits, agent_quits
        await world.pod("job")
        await until(lambda: len(world.told) >= len(ways), "all of them were tried")
        await world.finish("job")
        await world.ended("exited")
    assert told(world)[: len(ways)] == ways


@driven
async def test_a_custom_status_port_is_quit_at_the_first_attempt() -> None:
    """T21: pilot-agent's own client refuses such a port, so the port is forwarded."""
    async with cluster() as world:
        await world.pod("job", annotations={"status.sidecar.istio.io/port": "18020"})
        await world.ended("exited")
        assert told(world) == [forward(18020)]
        assert world.count('istio_aux_quits_total{outcome="exited",rung="port-forward"}') == 1
        assert world.count('istio_aux_quit_attempts_total{rung="port-forward"}') == 1
        assert world.count("istio_aux_quit_attempts_total") == 1


@driven
async def test_a_way_that_is_forbidden_is_named_and_the_next_is_taken() -> None:
    """T23, T24: a role without pods/exec still frees pods, and says what it lacks."""
    async with cluster() as world:
        denied = 'pods "job" is forbidden: User "me" cannot create resource "pods/exec"'
        world.refuse("/exec", 403, "Forbidden", denied)
        world.api.on_forward = nobody_listens
        await world.pod("job")
        (stuck,) = await until(world.controller.stuck, "it is called stuck")
        assert f"exec: no exit code: 403 Forbidden: {denied}" in stuck.reason
        assert "port-forward: no answer: connection refused" in stuck.reason
        world.api.on_forward = agent_quits
        await until(lambda: len(world.api.forwards) > 2, "the port is forwarded again")
        await world.finish("job")
        await world.ended("exited")
        assert world.api.execs == []


@driven
async def test_a_port_that_may_not_be_forwarded_is_not_waited_for() -> None:
    """Nothing was sent, so nothing can come of it: the next attempt need not wait for a doubt."""
    async with cluster(limits=replace(FAST, doubt=600.0)) as world:
        world.refuse("/portforward", 403, "Forbidden", "not allowed")
        await world.pod("job", annotations={"status.sidecar.istio.io/port": "18020"})
        await until(lambda: world.api.execs, "the next way is tried")


@driven
async def test_an_exit_that_the_watch_shows_is_not_read_again() -> None:
    """T22: a quit costs one read and one connection, also if Istio <=1.25 drains for seconds."""
    async with cluster(limits=replace(FAST, confirm=20.0)) as world:

        async def free(socket: web.WebSocketResponse, namespace: str, pod: str) -> None:
            await proxy_quits(socket, namespace, pod)
            await socket.close()
            await asyncio.sleep(0.3)
            await world.exit(pod)

        world.api.on_exec = free
        await world.pod("job")
        await world.ended("exited")
        assert world.told == ["job"]
        assert world.api.requests.count("GET /api/v1/namespaces/training/pods/job") == 1


@driven
async def test_a_stuck_pod_names_the_option_that_keeps_the_right_way_from_it() -> None:
    """Envoy's admin is not where it usually is, and the port may not be forwarded."""

    async def nobody(socket: web.WebSocketResponse, _namespace: str, _pod: str) -> None:
        await socket.send_bytes(b'\x03{"metadata":{},"status":"Failure","reason":"InternalError"}')

    async with cluster(policy=Policy(via=QuitVia.EXEC)) as world:
        world.api.on_exec = nobody
        await world.pod("job", annotations={"status.sidecar.istio.io/port": "18020"})
        (stuck,) = await until(world.controller.stuck, "it is called stuck")
        assert stuck.reason.endswith("; quit-via is exec, which cannot reach status port 18020")
        assert {way for way, _ in told(world)} == {"exec"}
