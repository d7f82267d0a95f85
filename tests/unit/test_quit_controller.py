"""The quit controller: who is freed, how often, and what is told of it."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from istio_aux.model.applications import Applications, parse
from istio_aux.quit.state import QuitLimits
from unit.apiserver import ApiServer, proxy_quits
from unit.asynchronous import driven, until
from unit.podverbs import agent_quits
from unit.quitting import at_work, cluster
from unit.rules.pods import RUNNING, document, exited


@driven
async def test_a_finished_pod_is_freed_once_and_that_is_recorded() -> None:
    """T14, T15, T22."""
    async with cluster() as world:
        await world.pod("job")
        await world.ended("exited")
        await until(lambda: world.controller.watched == 0, "the pod is forgotten")
        command = ("pilot-agent", "request", "--debug-port=15020", "POST", "quitquitquit")
        assert world.api.execs == [("training", "job", "istio-proxy", command)]
        await until(lambda: world.api.events, "the Event is there")
        (event,) = world.api.events
        assert (event["reason"], event["type"]) == ("ProxyQuit", "Normal")
        assert "istio-proxy exited with 0, 1 s after the payload" in event["note"]
        assert world.count("istio_aux_quit_attempts_total") == 1
        assert world.count("istio_aux_payload_exit_to_proxy_exit_seconds_count") == 1
        assert world.telemetry.quits_total == 1


@driven
async def test_a_pod_that_finished_before_the_start_is_found() -> None:
    """T26, T38."""
    async with ApiServer() as api:
        body = document({"istio-proxy": RUNNING, "main": exited(0)})
        await api.put("pods", body)
        async with at_work(api) as world:
            await world.ended("exited")
            assert world.told == [body["metadata"]["name"]]


@driven
async def test_a_namespace_that_is_not_selected_is_left_alone_until_it_is() -> None:
    async with cluster() as world:
        await world.select("training", selected=False)
        await until(lambda: len(world.api.watches) == 2, "both watches are open")
        await world.pod("job")
        await world.select("other")
        await world.pod("marker", namespace="other")
        await world.ended("exited")
        assert world.told == ["marker"]
        assert "GET /api/v1/namespaces/training/pods/job" not in world.api.requests
        await world.select("training")
        await world.ended("exited", 2)
        assert world.told == ["marker", "job"]


@driven
async def test_a_namespace_that_is_deselected_is_left_alone_at_once() -> None:
    async def stubborn(socket: web.WebSocketResponse, namespace: str, pod: str) -> None:
        await proxy_quits(socket, namespace, pod)

    async with cluster() as world:
        world.api.on_exec, world.api.on_forward = stubborn, agent_quits
        await world.pod("job")
        await until(lambda: world.told, "the first attempt is made")
        await world.select("training", selected=False)
        await world.ended("superseded")
        before = len(world.told)
        await asyncio.sleep(0.5)  # Five times the longest wait between two attempts.
        assert len(world.told) == before
        assert world.controller.watched == 1
        assert world.controller.stuck() == []


@driven
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


@driven
async def test_one_line_is_logged_for_a_decision_that_changes_and_none_for_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    async with cluster() as world:
        for attempt in range(3):
            await world.pod("job", main=RUNNING, annotations={"touched": str(attempt)})
        await until(lambda: world.controller.watched == 1, "the pod is known")
        assert world.told == []
        await world.pod("job")
        await world.ended("exited")
    lines = [vars(record) for record in caplog.records if hasattr(record, "pod")]
    assert [(line["event"], line.get("action"), line.get("outcome")) for line in lines] == [
        ("decision", "wait", None),
        ("decision", "quit", None),
        ("quit", None, "exited"),
    ]
    assert lines[0]["reason"] == "not finished: main (running)"


@driven
async def test_stopping_drops_what_hangs_and_starts_nothing_more() -> None:
    async with cluster(limits=QuitLimits(deadline=60)) as world:

        async def hang(_socket: web.WebSocketResponse, *_: str) -> None:
            await asyncio.sleep(60)

        world.api.on_exec = hang
        await world.pod("job")
        await until(lambda: world.told, "the attempt is made")
        began = asyncio.get_running_loop().time()
        await world.controller.stop(0.2)
        assert asyncio.get_running_loop().time() - began < 5
        await world.pod("late")
        await asyncio.sleep(0.1)  # Nothing is to happen.
        assert world.told == ["job"]


WEB = {"app.kubernetes.io/name": "web"}


def asking(entry: str) -> Applications:
    found, problems = parse(entry)
    assert not problems
    return found


@driven
async def test_only_jobs_of_an_injected_application_are_freed_in_a_namespace_not_selected() -> None:
    async with cluster() as world:
        world.controller.set_applications(asking("shop/web"))
        await world.pod("other", namespace="shop", labels={"app.kubernetes.io/name": "db"})
        await world.pod("nobody", namespace="shop")
        await world.pod("web", namespace="shop", labels=WEB)
        await world.ended("exited")
        assert world.told == ["web"]


@driven
async def test_who_asks_later_is_freed_then_and_who_does_not_ask_any_more_is_not() -> None:
    async with cluster() as world:
        await world.pod("early", namespace="shop", labels=WEB)
        await until(lambda: world.controller.watched == 1, "the pod is seen")
        assert world.told == []
        world.controller.set_applications(asking("shop/web"))
        await world.ended("exited")
        world.controller.set_applications(Applications())
        await world.pod("late", namespace="shop", labels=WEB)
        await world.pod("train")
        await world.ended("exited", 2)
        assert world.told == ["early", "train"]


@driven
async def test_a_pod_that_lost_its_proxy_is_shown_too() -> None:
    async with cluster() as world:
        world.controller.set_applications(asking("shop/web"))
        dead = {"terminated": {"exitCode": 137, "finishedAt": "2026-11-21T08:16:30Z"}}
        await world.pod("web", RUNNING, dead, namespace="shop", labels=WEB)
        await until(world.controller.lost, "it is shown")
