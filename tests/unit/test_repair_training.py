"""Pods of training jobs that have no sidecar: their Job is suspended and resumed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from unit.asynchronous import driven, until
from unit.repairing import World, at_work
from unit.rules.training import document
from unit.rules.unmeshed import WITH_JOBS
from unit.store import refusal
from unit.training import FAST, Kubeflow


class Injected(Kubeflow):
    """The same, where all pods but the first two get a sidecar."""

    async def put(self, resource: str, body: dict[str, Any]) -> dict[str, Any]:
        if resource == "pods" and self._made > 2:
            body["spec"]["containers"].append({"name": "istio-proxy"})
        return await super().put(resource, body)


@asynccontextmanager
async def training() -> AsyncGenerator[World]:
    """A repair controller at work in a cluster with a TFJob of two pods."""
    async with Injected() as api:
        await api.put("tfjobs", document("Running"))
        await api.operate()
        more: dict[str, Any] = {"job_limits": FAST, "namespace": "training"}
        async with at_work(api, policy=WITH_JOBS, **more) as world:
            yield world


@driven
async def test_a_training_job_is_suspended_instead_of_evicting_its_pods() -> None:
    """T41: one restart is for all its pods."""
    async with training() as world:
        await until(lambda: world.restarts("resumed") == 1, "it is resumed")
        await until(lambda: not world.unmeshed, "all are meshed")
        assert (world.restarts("suspended"), world.restarts("evicted")) == (1, 0)
        told = await until(lambda: world.events("RestartedForSidecar"), "its owner is told")
        assert len(told) == 1
        await until(lambda: not world.repair.suspended(), "nothing is under way")


@driven
async def test_a_suspension_that_ended_in_a_server_error_is_awaited() -> None:
    """It may have happened, and nobody has refused it."""

    async def perform_and_fail(request: web.Request) -> web.Response | None:
        if request.method != "PATCH":
            return None
        await world.api._route(request)
        return refusal(504, "Timeout", "request did not complete within requested timeout")

    async with training() as world:
        world.api.faults.append(perform_and_fail)
        await until(lambda: world.restarts("resumed") == 1, "it is suspended, and resumed")
        await until(lambda: not world.unmeshed, "all are meshed")
        assert (world.restarts("failed"), world.restarts("refused")) == (1, 0)
