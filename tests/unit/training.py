"""An API server with Jobs of the training operator, and with that operator."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

from istio_aux.kube.client import Client
from istio_aux.kube.clock import system_clock
from istio_aux.kube.errors import ApiError
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
from simulation.store import Path, Stored, merged
from unit.apiserver import ApiServer
from unit.asynchronous import background, until
from unit.leading import Led
from unit.logged import counted
from unit.rules.training import document, pod_document

FAST = SuspensionLimits(
    settle=0.05, unnoticed=30, interval=0.01, late=30, first_retry=0.02, last_retry=0.05
)
WORKERS = ("mnist-worker-0", "mnist-worker-1")


class Kubeflow(ApiServer):
    """As 1.9 pkg/controller.v1/common/job.go ReconcileJobs has it, at once after each change.

    Attributes:
        ends: whether pods that are deleted are gone at once; see `end`.
        budget: whether a PodDisruptionBudget lets no pod go.
    """

    def __init__(self) -> None:
        super().__init__()
        self.types["kubeflow.org/v1"] = {
            "tfjobs": "TFJob", "tfjobs/status": "TFJob", "notebooks": "Notebook",
        }  # fmt: skip
        self.ends = True
        self.budget = False
        self._made = 0

    def evict(self, to: Path, eviction: dict[str, Any], *, dry: bool) -> Stored:
        assert dry
        if self.budget:
            raise ApiError(429, "Cannot evict pod", reason="TooManyRequests")
        return super().evict(to, eviction, dry=dry)

    def answer(self, method: str, path: str, params: Mapping[str, str], body: bytes) -> bytes:
        answer = super().answer(method, path, params, body)
        if method == "PATCH":
            self.operate()
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

    def change(self, policy: dict[str, Any], **metadata: Any) -> None:
        """What somebody else does to the Job."""
        patch = {"metadata": metadata, "spec": {"runPolicy": policy}}
        self.put("tfjobs", merged(self.job, patch))

    def operate(self) -> None:
        """What the operator does when it sees the Job."""
        if self.suspended:
            self._say("Suspended")
            for name in self.pods:
                self.put("pods", pod_document(name, uid=self.pods[name], deleting=True))
            if self.ends:
                self.end()
            return
        deleted = [self.get("pods", "training", name) for name in self.pods]
        failed = any(p and "deletionTimestamp" in p["metadata"] for p in deleted)
        self._say("Failed" if failed else "Running")
        for name in WORKERS:
            if name not in self.pods:
                self._made += 1
                self.put("pods", pod_document(name, uid=f"made-{self._made}"))

    def end(self) -> None:
        """The pods end."""
        for name in self.pods:
            self.remove("pods", "training", name)

    def _say(self, condition: str) -> None:
        status = {"conditions": [{"type": condition, "status": "True"}]}
        self.put("tfjobs", {**self.job, "status": status})


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
            self.api.end()

    async def another(self, name: str, namespace: str = "other") -> None:
        """A Job that some process has suspended, and that no operator sees."""
        found = document(
            "Suspended", name=name, namespace=namespace, uid=name, marked=True,
            policy={"suspend": True},
        )  # fmt: skip
        self.api.put("tfjobs", found)

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
        world.api.put("tfjobs", document("Running"))
        world.api.operate()
        yield world
