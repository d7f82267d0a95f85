"""The quit controller: who is freed, how often, and what is told of it."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from istio_aux.kube.objects import Key
from istio_aux.model.pod import Metadata
from istio_aux.model.policy import Policy
from istio_aux.model.selectors import Selector
from istio_aux.model.webhooks import Namespace
from istio_aux.quit.controller import Selection
from istio_aux.quit.state import QuitLimits, QuitScope
from unit.apiserver import ApiServer, proxy_quits
from unit.asynchronous import driven, until
from unit.podverbs import agent_quits
from unit.quitting import at_work, cluster, freeing
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
async def test_there_is_a_bound_on_what_runs_at_once() -> None:
    """A namespace has a quarter of it."""
    at_once = 0
    most = 0
    async with cluster(limits=QuitLimits(at_once=12)) as world:

        async def slow(socket: web.WebSocketResponse, namespace: str, pod: str) -> None:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await until(lambda: most >= 3, "three run at once")
            await asyncio.sleep(0.05)  # For a fourth.
            at_once -= 1
            await freeing(world)(socket, namespace, pod)

        world.api.on_exec = slow
        await asyncio.gather(*(world.pod(f"job-{number}") for number in range(12)))
        await world.ended("exited", 12)
        assert most == 3
        assert sorted(world.told) == sorted(f"job-{number}" for number in range(12))


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
async def test_a_grace_period_begins_when_the_payload_is_first_seen_to_be_finished() -> None:
    """Not when the node says, whose clock is behind."""
    async with cluster(policy=Policy(grace=0.5)) as world:
        await world.pod("job", main=RUNNING)
        await until(lambda: world.controller.watched, "the pod is known")
        begun = asyncio.get_running_loop().time()
        await world.pod("job", main=exited(0, at="2026-11-21T08:16:29Z"))
        await world.ended("exited")
        assert asyncio.get_running_loop().time() >= begun + 0.5
        assert world.told == ["job"]


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


def test_a_new_namespace_of_an_old_name_outlives_the_old_one() -> None:
    """A list tells of the new one first, and then that the old one has vanished."""
    selection = Selection(QuitScope(), Selector(), lambda _name: None)
    for uid in ("old", "new"):
        selection.apply(Namespace(metadata=Metadata(name="training", uid=uid)))
    selection.delete(Key("", "training", "old"), None)
    assert "training" in selection
    selection.delete(Key("", "training", "new"), None)
    assert "training" not in selection
