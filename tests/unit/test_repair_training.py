"""Pods of training jobs that missed their sidecar: their job is suspended, and made to go on."""

from __future__ import annotations

from typing import Any, cast

import pytest
from aiohttp import web
from istio_aux.core.pod import Pod
from istio_aux.core.policy import RepairPolicy
from istio_aux.core.rollout import RolloutLimits
from istio_aux.kube.actions import NOT_TERMINAL
from istio_aux.kube.backoff import Backoff
from istio_aux.kube.client import Client
from istio_aux.kube.events import Events
from istio_aux.kube.watch import Watch
from istio_aux.recorder import RepairRecorder
from istio_aux.repair.controller import RepairController
from istio_aux.repair.suspended_jobs import SuspendedJobs
from istio_aux.telemetry import Telemetry
from msgspec.structs import replace
from unit.asynchronous import background, driven, until
from unit.core.mesh import ENABLED
from unit.core.training import document
from unit.core.unmeshed import RESTART, WITH_JOBS
from unit.repairing import LIMITS, World, mesh
from unit.store import refusal
from unit.training import FAST, Kubeflow


class Injected(Kubeflow):
    """The same, where all pods but the first two get a sidecar."""

    injects = True
    answered = True
    """Whether who changes a Job is told so, instead of a timeout."""

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


def run(
    test: Any,
    policy: RepairPolicy,
    *,
    injects: bool,
    answered: bool = True,
    limits: RolloutLimits = LIMITS,
) -> None:
    """Run a test beside a repair controller in a cluster with a TFJob of two pods."""

    @driven
    async def drive() -> None:
        telemetry = Telemetry()
        async with Injected() as api, Client(api.access()) as client:
            api.injects, api.answered = injects, answered
            await api.put("tfjobs", document("Running"))
            await api.operate()
            events, spaces = Events(client, "host"), {"training": dict(ENABLED)}
            recorder = RepairRecorder(telemetry, events)
            suspended = SuspendedJobs(
                client, telemetry, recorder, allowed=policy.restart_jobs, limits=FAST
            )
            repair = RepairController(
                client, spaces, telemetry, events,
                policy=policy, suspended_jobs=suspended, limits=limits,
            )  # fmt: skip
            pods = Watch(
                client, "/api/v1/pods", Pod, repair, backoff=Backoff(0.02, 0.1),
                selection=NOT_TERMINAL,
            )  # fmt: skip
            repair.look(mesh())
            repair.lead(True)
            world = World(cast("Any", api), repair, telemetry, spaces)
            async with (
                background(pods.run()),
                background(repair.run(pods.synced)),
                background(events.run()),
            ):
                try:
                    await test(world)
                finally:
                    await repair.stop(0)

    drive()


def test_a_training_job_is_suspended_in_place_of_its_pods_eviction() -> None:
    """T41: one restart is for all its pods."""

    async def resumed(world: World) -> None:
        await until(lambda: world.restarts("resumed") == 1, "it is resumed")
        await until(lambda: not world.unmeshed, "all are meshed")
        assert (world.restarts("suspended"), world.restarts("evicted")) == (1, 0)
        told = await until(lambda: world.events("RestartedForSidecar"), "its owner is told")
        assert len(told) == 1
        await until(lambda: not world.repair.suspended(), "nothing is under way")

    run(resumed, WITH_JOBS, injects=True)


def test_a_training_job_whose_new_pods_have_no_sidecar_either_is_not_suspended_again() -> None:
    async def stopped(world: World) -> None:
        await until(lambda: world.restarts("stopped") == 1, "it is given up")
        await until(lambda: world.restarts("resumed") == 1, "it goes on")
        assert world.restarts("suspended") == 1

    # On a busy machine the Job's pods may go late, which here is no reason to try again.
    run(stopped, WITH_JOBS, injects=False, limits=replace(LIMITS, doubt=20))


def test_a_suspension_that_ended_in_a_server_error_is_awaited() -> None:
    """It may have happened, and nobody has refused it."""

    async def awaited(world: World) -> None:
        await until(lambda: world.restarts("resumed") == 1, "it is suspended, and resumed")
        await until(lambda: not world.unmeshed, "all are meshed")
        assert (world.restarts("failed"), world.restarts("refused")) == (1, 0)

    run(awaited, WITH_JOBS, injects=True, answered=False)


@pytest.mark.parametrize("injects", [True, False])
def test_a_training_job_is_only_reported_where_jobs_are_not_to_be_restarted(injects: bool) -> None:
    async def reported(world: World) -> None:
        await until(lambda: len(world.unmeshed) == 2, "both are found")
        for reason in world.unmeshed.values():
            assert reason.endswith("not restarted: it is a TFJob's, and restart-jobs is off")
        assert world.restarts("suspended") == 0

    run(reported, RESTART, injects=injects)
