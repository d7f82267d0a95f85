"""Restart policies of single containers, which kubelets up to 1.34 ignore (KEP-5307)."""

from __future__ import annotations

from aiohttp import web
from unit.asynchronous import driven, until
from unit.quitting import World, cluster
from unit.rules.pods import RUNNING, exited
from unit.store import refusal

NODE = "/api/v1/nodes/node-1"


async def own_policy(world: World, name: str = "job", code: int = 1) -> None:
    """A pod whose kubelet starts ``main`` again, unless it obeys the policy of the container."""
    await world.pod(
        name, main=exited(code), restart="OnFailure", spec={"nodeName": "node-1"},
        details={"main": {"restartPolicy": "Never"}},
    )  # fmt: skip


def answer(world: World, response: web.Response | str) -> None:
    """Answer the next read of the node, with a version or as it is."""

    async def node(request: web.Request) -> web.Response | None:
        if request.path != NODE:
            return None
        if isinstance(response, web.Response):
            return response
        return web.json_response({"status": {"nodeInfo": {"kubeletVersion": response}}})

    world.api.faults.append(node)


def asked(world: World) -> int:
    return world.api.requests.count(f"GET {NODE}")


@driven
async def test_a_container_that_its_kubelet_does_not_restart_is_finished() -> None:
    """And the node is asked once for all its pods."""
    async with cluster() as world:
        answer(world, "v1.35.0")
        await own_policy(world)
        await world.ended("exited")
        await own_policy(world, "other")
        await world.ended("exited", 2)
        assert asked(world) == 1


@driven
async def test_a_container_that_its_kubelet_restarts_keeps_the_proxy() -> None:
    async with cluster() as world:
        answer(world, "v1.33.4")
        await own_policy(world)
        await world.ended("superseded")
        assert world.told == []
        await own_policy(world, code=0)
        await world.ended("exited")
        assert asked(world) == 1


@driven
async def test_a_kubelet_that_may_or_may_not_restart_a_container_keeps_the_proxy() -> None:
    """Version 1.34 has a gate for it. The pod is reported, as nobody else may end it."""
    async with cluster() as world:
        answer(world, "v1.34.4")
        await own_policy(world)
        (pod,) = await until(world.controller.blocked, "the pod is reported")
        await world.ended("superseded")
        assert world.told == []
        assert pod.by == ("main",)
        assert pod.reason == (
            "not finished: main (exited 1, may be restarted (container restartPolicy Never, "
            "which kubelets up to 1.34 ignore))"
        )


@driven
async def test_a_node_that_cannot_be_read_is_asked_again() -> None:
    """Until then the proxy stays, and an Event says why."""
    async with cluster() as world:
        answer(world, refusal(403, "Forbidden", "nodes: no access"))
        answer(world, "v1.36.0")
        await own_policy(world)
        await world.ended("exited")
        assert asked(world) == 2
        assert world.api.events[0]["reason"] == "ProxyQuitFailed"
        assert "nodes: no access" in world.api.events[0]["note"]


@driven
async def test_a_node_is_asked_about_no_other_pod() -> None:
    async with cluster() as world:
        await world.pod("job", spec={"nodeName": "node-1"})
        await world.pod("waits", main=RUNNING, details={"main": {"restartPolicy": "Never"}})
        await world.ended("exited")
        assert asked(world) == 0
