"""Pods that get a sidecar by us are freed, whatever the option `namespace-selector` says."""

from __future__ import annotations

from istio_aux.model.applications import Applications, parse
from unit.asynchronous import driven, until
from unit.quitting import cluster
from unit.rules.pods import RUNNING

WEB = {"app.kubernetes.io/name": "web"}


def asking(entry: str) -> Applications:
    found, problems = parse(entry)
    assert not problems
    return found


@driven
async def test_only_jobs_of_an_injected_application_are_freed_in_a_namespace_not_selected() -> None:
    async with cluster() as world:
        world.selection.ask(asking("shop/web"))
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
        world.selection.ask(asking("shop/web"))
        await world.ended("exited")
        world.selection.ask(Applications())
        await world.pod("late", namespace="shop", labels=WEB)
        await world.pod("train")
        await world.ended("exited", 2)
        assert world.told == ["early", "train"]


@driven
async def test_a_pod_that_lost_its_proxy_is_shown_too() -> None:
    async with cluster() as world:
        world.selection.ask(asking("shop/web"))
        dead = {"terminated": {"exitCode": 137, "finishedAt": "2026-11-21T08:16:30Z"}}
        await world.pod("web", RUNNING, dead, namespace="shop", labels=WEB)
        await until(world.controller.lost, "it is shown")
