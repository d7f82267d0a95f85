"""The quit controller: who is freed, how, how often, what is told of it, and who leads."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web
from istio_aux.model.applications import Applications, parse
from istio_aux.model.policy import DeadProxy, Policy, QuitMode
from msgspec.structs import replace
from unit.apiserver import agent_quits, proxy_quits
from unit.asynchronous import until
from unit.quitting import ENDED, FAST, JOB, World, cluster
from unit.rules.pods import RUNNING, exited

EXEC = ("exec", ("pilot-agent", "request", "--debug-port=15020", "POST", "quitquitquit"))
ENVOY = ("exec", ("pilot-agent", "request", "POST", "quitquitquit"))
READ = "GET /api/v1/namespaces/training/pods/job"
WEB = {"app.kubernetes.io/name": "web"}


async def settled(world: World, pods: int = 1) -> None:
    """Wait until a pod that came later than so many others is known."""
    await world.pod("marker", main=RUNNING)
    await until(lambda: world.controller.watched == pods + 1, "all pods are known")


def tasks() -> list[str]:
    """The names of the controller's tasks."""
    names = [task.get_name() for task in asyncio.all_tasks()]
    return [name for name in names if name.startswith("quit ")]


async def test_a_finished_pod_is_read_and_freed_once_and_that_is_recorded() -> None:
    """T14, T15, T22: also if the proxy drains first. The watch shows its exit."""
    async with cluster(limits=replace(FAST, confirm=20.0)) as world:

        async def drain(socket: web.WebSocketResponse, namespace: str, pod: str) -> None:
            await proxy_quits(socket, namespace, pod)
            await socket.close()
            await world.finish(pod)

        world.api.on_exec = drain
        await world.pod("job")
        await world.ended("exited")
        await until(lambda: world.controller.watched == 0, "the pod is forgotten")
        assert world.api.execs == [("training", "job", "istio-proxy", EXEC[1])]
        assert world.api.requests.count(READ) == 1
        (event,) = await until(lambda: world.api.events, "the Event is there")
        assert (event["reason"], event["type"]) == ("ProxyQuit", "Normal")
        assert "istio-proxy exited with 0, 1 s after the payload" in event["note"]
        assert world.count("istio_aux_quit_attempts_total") == 1
        assert world.count("istio_aux_payload_exit_to_proxy_exit_seconds_count") == 1
        assert world.telemetry.quits_total == 1


async def test_a_proxy_that_does_not_exit_with_0_is_counted_apart() -> None:
    """T20."""
    async with cluster() as world:

        async def killed(socket: web.WebSocketResponse, namespace: str, pod: str) -> None:
            await proxy_quits(socket, namespace, pod)
            await world.pod(pod, proxy=exited(137))

        world.api.on_exec = killed
        await world.pod("job")
        await world.ended("exited-nonzero")
        await until(lambda: world.api.events, "the Event is there")
        assert world.api.events[0]["type"] == "Warning"


def told(world: World) -> list[tuple[str, object]]:
    """How proxies were told to exit, in order: a command, or a forwarded port and request line."""
    commands = iter(("exec", command) for _, _, _, command in world.api.execs)
    requests = iter(
        ("port-forward", (port, head.splitlines()[0])) for _, _, port, head in world.api.forwards
    )
    ways = [path.rsplit("/", 1)[1] for path in world.api.requests]
    every = {"exec": commands, "portforward": requests}
    return [next(every[way]) for way in ways if way in every]


async def test_attempts_climb_the_ladder_again_and_again() -> None:
    """T14, T15, T21, T23: no shell, the agent's port by name, and every way gets its turn."""
    ways = [EXEC, ("port-forward", (15020, "POST /quitquitquit HTTP/1.1")), ENVOY, EXEC]
    async with cluster() as world:
        world.api.on_exec, world.api.on_forward = proxy_quits, agent_quits
        await world.pod("job")
        await until(lambda: len(world.told) >= len(ways), "all of them were tried")
        await world.finish("job")
        await world.ended("exited")
    assert told(world)[: len(ways)] == ways


async def test_one_line_is_logged_for_a_decision_that_changes_and_none_for_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """By the process that leads."""
    caplog.set_level("INFO")

    def lines() -> list[dict[str, Any]]:
        return [vars(record) for record in caplog.records if hasattr(record, "pod")]

    async with cluster(leading=False) as world:
        for attempt in range(3):
            await world.pod("job", main=RUNNING, annotations={"touched": str(attempt)})
        await until(lambda: world.controller.watched == 1, "the pod is known")
        assert (world.told, lines()) == ([], [])
        for leading in (True, False, True):
            world.controller.lead(leading)
            assert [line["reason"] for line in lines()] == ["not finished: main (running)"]
        await world.pod("job")
        await world.ended("exited")
    assert [(line["event"], line.get("action"), line.get("outcome")) for line in lines()] == [
        ("decision", "wait", None),
        ("decision", "quit", None),
        ("quit", None, "exited"),
    ]


# Who is selected.


async def test_a_namespace_that_is_not_selected_is_left_alone_until_it_is() -> None:
    async with cluster() as world:
        await world.select("training", selected=False)
        await until(lambda: len(world.api.watches) == 2, "both watches are open")
        await world.pod("job")
        await world.pod("kept", others={"side": RUNNING})
        await world.select("other")
        await world.pod("marker", namespace="other")
        await world.ended("exited")
        assert (world.told, world.controller.blocked()) == (["marker"], [])
        assert READ not in world.api.requests
        await world.select("training")
        await world.ended("exited", 2)
        assert world.told == ["marker", "job"]
        await until(world.controller.blocked, "the other one is shown")


async def test_pods_of_an_application_that_asks_are_freed_as_long_as_it_asks() -> None:
    """In a namespace that is not selected."""
    applications, problems = parse("shop/web")
    assert not problems
    async with cluster() as world:
        await world.pod("early", namespace="shop", labels=WEB)
        await world.pod("other", namespace="shop", labels={"app.kubernetes.io/name": "db"})
        await until(lambda: world.controller.watched == 2, "the pods are seen")
        assert world.told == []
        world.controller.set_applications(applications)
        await world.ended("exited")
        world.controller.set_applications(Applications())
        await world.pod("late", namespace="shop", labels=WEB)
        await world.pod("train")
        await world.ended("exited", 2)
        assert world.told == ["early", "train"]


# Who acts.


@pytest.mark.parametrize("scope", [{"leading": False}, {"mode": QuitMode.OFF}], ids=str)
async def test_a_process_that_must_not_act_follows_the_pods(scope: dict[str, Any]) -> None:
    async with cluster(**scope) as world:
        await world.pod("job")
        await world.pod("torn", main=RUNNING, others={"side": exited(0)}, proxy=ENDED)
        await world.pod("kept", others={"side": RUNNING})
        await settled(world, 3)
        assert (world.told, world.api.events, tasks()) == ([], [], [])
        assert READ not in world.api.requests
        assert world.controller.stuck() == []
        assert [pod.name for pod in world.controller.lost()] == ["torn"]
        leads = world.controller._scope.leading
        assert world.count("istio_aux_lost_pods") == (1 if leads else 0)


async def test_a_process_that_takes_over_finds_the_work_at_once() -> None:
    """T26: also what finished while another one led."""
    async with cluster(leading=False) as world:
        await world.pod("job")
        await settled(world)
        world.controller.lead(True)
        await world.ended("exited")
        world.controller.lead(True)  # Once more changes nothing.
        await world.pod("next")
        await world.ended("exited", 2)
        assert world.told == ["job", "next"]


async def test_a_process_that_is_deposed_while_it_tells_the_proxy_sends_no_event() -> None:
    async with cluster(limits=replace(FAST, blocked_after=0.05)) as world:

        async def depose(socket: web.WebSocketResponse, namespace: str, pod: str) -> None:
            world.controller.lead(False)
            await proxy_quits(socket, namespace, pod)
            await world.exit(pod)

        world.api.on_exec = depose
        await world.pod("job")
        await world.ended("exited")
        world.controller.lead(True)
        await world.pod("marker", main=RUNNING, others={"side": exited(0)})
        await until(lambda: world.api.events, "what came later is told")
        assert world.reasons() == ["ProxyQuitBlocked"]


async def test_a_dry_run_tells_once_and_does_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with cluster(mode=QuitMode.DRY_RUN) as world:

        async def would_quit(pods: int) -> None:
            await until(lambda: world.count("istio_aux_would_quit_pods") == pods, "it is noticed")

        await world.pod("job")
        await until(lambda: world.api.events, "it is told")
        await world.pod("job", annotations={"touched": "once"})
        await settled(world)
        await would_quit(1)
        await world.pod("job", main=RUNNING)
        await would_quit(0)
        await world.pod("job")
        await until(lambda: world.api.requests.count(READ) == 2 and not tasks(), "it is over")
        for selected in (False, True):
            await world.select("training", selected=selected)
            await would_quit(int(selected))
        assert world.told == []
        assert world.reasons() == ["ProxyQuitDryRun"]
        assert world.controller.stuck() == []
    actions = [vars(record).get("action") for record in caplog.records if "job" in record.message]
    assert actions == ["would quit", "wait", "would quit"]


@pytest.mark.parametrize("what", ["finished", "torn"])
async def test_a_process_that_was_frozen_reads_the_clock_right_before_it_acts(what: str) -> None:
    """Its Lease has lapsed, and nobody has told it yet. `Lease.leads` does then."""

    def leads() -> bool:
        world.controller.lead(lasts)
        return lasts

    lasts = False
    policy, limits = Policy(dead_proxy=DeadProxy.DELETE), replace(FAST, lost_after=0.1)
    async with cluster(leads=leads, limits=limits, policy=policy) as world:
        torn = {"main": RUNNING, "proxy": ENDED, "owners": [JOB]}
        await world.pod("job", **(torn if what == "torn" else {}))
        await until(lambda: not (world.controller._scope.leading or tasks()), "it has asked")
        assert READ in world.api.requests
        assert world.told == []
        assert world.api.get("pods", "training", "job")
        lasts = True
        world.controller.lead(True)
        await until(
            lambda: world.told or not world.api.get("pods", "training", "job"), "it leads again"
        )
