"""Pods of training jobs that have no sidecar: their Job is suspended and resumed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from istio_aux.model.policy import RepairPolicy
from unit.asynchronous import driven, until
from unit.repairing import World, at_work
from unit.rules.training import document
from unit.rules.unmeshed import WITH_JOBS
from unit.store import refusal
from unit.training import FAST, Kubeflow


class Injected(Kubeflow):
    """The same, where all pods but the first two get a sidecar."""

    injects = True
    answered = True
    """Whether a patch of the Job is answered, instead of a timeout."""

    async def _patch(self, request: web.Request, job: dict[str, Any]) -> web.Response:
        answer = await super()._patch(request, job)
        if self.answered:
            return answer
        self.answered = True
        return refusal(504, "Timeout", "request did not complete within requested timeout")

    async def put(self, resource: str, body: dict[str, Any]) -> dict[str, Any]:
        if resource == "pods" and self.injects and self._made > 2:
            body["spec"]["containers"].append({"name": "istio-proxy"})
        return await super().put(resource, body)


@asynccontextmanager
async def training(
    policy: RepairPolicy = WITH_JOBS, *, injects: bool = True, answered: bool = True
) -> AsyncGenerator[World]:
    """A repair controller at work in a cluster with a TFJob of two pods."""
    async with Injected() as api:
        api.injects, api.answered = injects, answered
        await api.put("tfjobs", document("Running"))
        await api.operate()
        async with at_work(api, policy=policy, job_limits=FAST, namespace="training") as world:
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
async def test_the_next_leader_does_not_suspend_a_job_again_that_the_last_one_suspended() -> None:
    """It resumes the Job, and knows that its new pods are what came of the suspension."""
    async with Injected() as api:
        api.injects = False
        await api.put("tfjobs", document("Running"))
        await api.operate()
        api.operates = False
        more: dict[str, Any] = {"policy": WITH_JOBS, "job_limits": FAST, "namespace": "training"}
        async with at_work(api, **more) as world:
            await until(lambda: world.restarts("suspended") == 1, "it is suspended")
            left = world.repair.failed, world.repair.replaced
        api.operates = True
        await api.operate()
        async with at_work(api, leading=False, **more) as world:
            world.repair.recall(*left)
            world.repair.lead(True)
            await until(lambda: world.restarts("stopped") == 1, "it is given up")
            await until(lambda: not api.suspended, "it goes on")
            assert world.restarts("suspended") == 0


@driven
async def test_a_suspension_that_ended_in_a_server_error_is_awaited() -> None:
    """It may have happened, and nobody has refused it."""
    async with training(answered=False) as world:
        await until(lambda: world.restarts("resumed") == 1, "it is suspended, and resumed")
        await until(lambda: not world.unmeshed, "all are meshed")
        assert (world.restarts("failed"), world.restarts("refused")) == (1, 0)
