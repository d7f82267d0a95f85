"""An API server with Jobs of the training operator, and with that operator."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from aiohttp import web
from istio_aux.kube.client import Client
from istio_aux.kube.clock import system_clock
from istio_aux.kube.events import Events
from istio_aux.model import pod as pods
from istio_aux.model.moment import Clock
from istio_aux.model.owners import controller
from istio_aux.repair.candidate import Candidate
from istio_aux.repair.recorder import RepairRecorder
from istio_aux.repair.suspended_jobs import SuspendedJobs
from istio_aux.repair.suspension import MARK, SuspensionLimits
from istio_aux.telemetry import Telemetry
from msgspec import structs
from unit.apiserver import ApiServer
from unit.asynchronous import background, until
from unit.leading import Led
from unit.logged import counted
from unit.rules.training import document, pod_document
from unit.store import merged, refusal

FAST = SuspensionLimits(
    settle=0.05, unnoticed=30, interval=0.01, late=30, first_retry=0.02, last_retry=0.05
)
WORKERS = ("mnist-worker-0", "mnist-worker-1")


class Kubeflow(ApiServer):
    """As 1.9 pkg/controller.v1/common/job.go ReconcileJobs has it, at once after each change.

    Attributes:
        served: whether there is a training operator.
        ends: whether pods that are deleted are gone at once; see `end`.
        budget: whether a PodDisruptionBudget lets no pod go.
    """

    def __init__(self) -> None:
        super().__init__()
        self.served = self.ends = True
        self.budget = False
        self._made = 0

    async def _route(self, request: web.Request) -> web.StreamResponse:
        match request.path.strip("/").split("/"):
            case ["apis", "kubeflow.org", "v1"] if self.served:
                names = ("tfjobs", "tfjobs/status", "notebooks")
                kinds = ("TFJob", "TFJob", "Notebook")
                resources = [{"name": n, "kind": k} for n, k in zip(names, kinds, strict=True)]
                return web.json_response({"resources": resources})
        return await super()._route(request)

    async def evict(
        self, request: web.Request, resource: str, found: dict[str, Any]
    ) -> web.StreamResponse:
        assert request.query["dryRun"] == "All"
        answer = await super().evict(request, resource, found)
        return refusal(429, "TooManyRequests", "Cannot evict pod") if self.budget else answer

    async def patch(
        self, request: web.Request, resource: str, found: dict[str, Any]
    ) -> web.StreamResponse:
        answer = await super().patch(request, resource, found)
        if answer.status == 200:
            await self.operate()
        return answer

    @property
    def job(self) -> dict[str, Any]:
        job = self.get("tfjobs", "training", "mnist")
        assert job is not None
        return job

    @property
    def pods(self) -> dict[str, str]:
        """The uid of each pod, by its name."""
        found = (self.get("pods", "training", name) for name in WORKERS)
        return {p["metadata"]["name"]: p["metadata"]["uid"] for p in found if p}

    @property
    def suspended(self) -> bool:
        return bool(self.job["spec"]["runPolicy"].get("suspend"))

    @property
    def marked(self) -> bool:
        return MARK in self.job["metadata"]["labels"]

    async def change(self, policy: dict[str, Any], **metadata: Any) -> None:
        """What somebody else does to the Job."""
        patch = {"metadata": metadata, "spec": {"runPolicy": policy}}
        await self.put("tfjobs", merged(self.job, patch))

    async def operate(self) -> None:
        """What the operator does when it sees the Job."""
        if self.suspended:
            await self._say("Suspended")
            for name in self.pods:
                await self.put("pods", pod_document(name, uid=self.pods[name], deleting=True))
            if self.ends:
                await self.end()
            return
        deleted = [self.get("pods", "training", name) for name in self.pods]
        failed = any(p and "deletionTimestamp" in p["metadata"] for p in deleted)
        await self._say("Failed" if failed else "Running")
        for name in WORKERS:
            if name not in self.pods:
                self._made += 1
                await self.put("pods", pod_document(name, uid=f"made-{self._made}"))

    async def end(self) -> None:
        """The pods end."""
        for name in self.pods:
            await self.remove("pods", "training", name)

    async def _say(self, condition: str) -> None:
        status = {"conditions": [{"type": condition, "status": "True"}]}
        await self.put("tfjobs", {**self.job, "status": status})


async def suspend(api: ApiServer, process: SuspendedJobs, name: str) -> str:
    """Why the Job of this pod is not suspended, or nothing."""
    pod = pods.convert(api.get("pods", "training", name) or pod_document(name))
    owner = controller(pod.metadata)
    assert owner
    left = await process.suspend("training", owner, Candidate.of(pod))
    return left.reason if left else ""


class World:
    """A TFJob with two pods, and a process that may suspend it."""

    def __init__(self, api: Kubeflow, telemetry: Telemetry, client: Client, events: Events) -> None:
        self.api, self.telemetry = api, telemetry
        self.client, self._events = client, events
        self._processes: list[SuspendedJobs] = []

    def process(
        self,
        *,
        allowed: bool = True,
        leads: Callable[[], bool] = lambda: True,
        clock: Clock = system_clock,
        **limits: Any,
    ) -> SuspendedJobs:
        """A process with limits that differ from `FAST` like that."""
        recorder = RepairRecorder(self.telemetry, self._events)
        recorder.leading = True
        process = SuspendedJobs(
            self.client, self.telemetry, recorder,
            allowed=allowed, limits=structs.replace(FAST, **limits),
            clock=clock, leadership=Led(leads=leads),
        )  # fmt: skip
        self._processes.append(process)
        process.lead(True)
        return process

    async def restart(self, process: SuspendedJobs, name: str = WORKERS[0]) -> str:
        return await suspend(self.api, process, name)

    async def suspended(self, *, ends: bool = False) -> None:
        """A Job that some process has suspended; its pods are there, or have just ended."""
        self.api.ends = False
        gone = self.process()
        assert await self.restart(gone) == ""
        gone.lead(False)
        if ends:
            await self.api.end()

    async def another(self, name: str, namespace: str = "other") -> None:
        """A Job that some process has suspended, and that no operator sees."""
        found = document(
            "Suspended", name=name, namespace=namespace, uid=name, marked=True,
            policy={"suspend": True},
        )  # fmt: skip
        await self.api.put("tfjobs", found)

    async def resumed(self) -> None:
        await until(lambda: not self.api.suspended and not self.api.marked, "the Job is resumed")

    async def counted(self, outcome: str) -> None:
        await until(lambda: self.restarts(outcome) == 1, f"one Job {outcome}")

    def restarts(self, outcome: str) -> float:
        return self.gauge(f'istio_aux_sidecar_restarts_total{{outcome="{outcome}"}}')

    def gauge(self, series: str) -> float:
        """The value of a metric."""
        return counted(self.telemetry, series)

    async def stop(self) -> None:
        for process in self._processes:
            await process.stop(0)


@asynccontextmanager
async def at_work(api: ApiServer) -> AsyncGenerator[World]:
    """Processes beside these controllers."""
    async with api, Client(api.access()) as client:
        events = Events(client, "host")
        world = World(cast("Kubeflow", api), Telemetry(), client, events)
        async with background(events.run()):
            try:
                yield world
            finally:
                await world.stop()


@asynccontextmanager
async def kubeflow() -> AsyncGenerator[World]:
    async with at_work(Kubeflow()) as world:
        await world.api.put("tfjobs", document("Running"))
        await world.api.operate()
        yield world
