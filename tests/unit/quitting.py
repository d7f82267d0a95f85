"""A cluster with a quit controller at work in it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from istio_aux.injector.watcher import Namespaces
from istio_aux.kube.actions import JOBS
from istio_aux.kube.client import Client
from istio_aux.kube.clock import system_clock
from istio_aux.kube.errors import Backoff
from istio_aux.kube.events import Events
from istio_aux.kube.watch import Watch
from istio_aux.model.applications import PodOptions
from istio_aux.model.documents import run_now
from istio_aux.model.found import Found
from istio_aux.model.moment import Clock
from istio_aux.model.pod import Pod
from istio_aux.model.selectors import Selector, parse_namespaces
from istio_aux.model.webhooks import Namespace
from istio_aux.quit.attempt import QuitLimits, QuitScope
from istio_aux.quit.controller import QuitController
from istio_aux.telemetry import Telemetry
from unit.apiserver import ApiServer, Exec, agent_quits, fails, proxy_quits, sending
from unit.process import Led, background, counted, until
from unit.rules.pods import RUNNING, State, document, exited

FAST = QuitLimits(
    deadline=1, confirm=0.2, confirm_failed=0.05, first_retry=0.02, last_retry=0.1, last_reading=0.1
)
LABELS = {"io.datastrophic/istio-aux": "enabled"}
DONE = exited(0)
ENDED = exited(0, at="2026-11-21T08:16:30Z")
JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "j-1", "controller": True}


class World:
    """A cluster with one selected namespace, ``training``, and a controller at work in it."""

    def __init__(self, api: ApiServer, running: QuitController, telemetry: Telemetry) -> None:
        self.api, self.controller, self.telemetry = api, running, telemetry

    def troubled(self, state: str) -> list[Found]:
        """The pods in such a state, the oldest first."""
        return [pod for pod in run_now(self.controller.survey()) if pod.state == state]

    async def pod(
        self,
        name: str,
        main: State = DONE,
        proxy: State = RUNNING,
        *,
        namespace: str = "training",
        owners: list[dict[str, Any]] | None = None,
        others: Mapping[str, State] | None = None,
        native: bool = False,
        **more: Any,
    ) -> None:
        """Create or change a pod; ``others`` are containers beside ``main``, by name."""
        sidecar: dict[str, State] = {"istio-proxy": proxy}
        payload = {"main": main, **(others or {})}
        if native:
            body = document(payload, sidecars=sidecar, **more)
        else:
            body = document({**sidecar, **payload}, **more)
        body["metadata"].update(name=name, namespace=namespace, ownerReferences=owners or [])
        body["metadata"].pop("uid", None)
        self.api.put("pods", body)

    async def finish(self, name: str, namespace: str = "training") -> None:
        """What the kubelet reports once the proxy has exited: two changes, as recorded."""
        await self.pod(name, proxy=ENDED, namespace=namespace)
        await self.pod(name, proxy=ENDED, namespace=namespace, phase="Succeeded")

    async def select(self, namespace: str, *, selected: bool = True) -> None:
        self.api.put(
            "namespaces", {"metadata": {"name": namespace, "labels": LABELS if selected else {}}}
        )

    @property
    def told(self) -> list[str]:
        """Pods whose proxy was told to exit, in order, also those where it was refused."""
        paths = [path.split("/") for path in self.api.requests]
        return [path[6] for path in paths if path[-1] in {"exec", "portforward"}]

    def count(self, series: str) -> float:
        run_now(self.controller.survey())  # Sets gauges.
        return counted(self.telemetry, series)

    async def ended(self, outcome: str, times: int = 1) -> None:
        await until(
            lambda: self.count(f'istio_aux_quits_total{{outcome="{outcome}",') >= times,
            f"{times} {outcome}",
        )

    def reasons(self) -> list[str]:
        return [event["reason"] for event in self.api.events]


def freeing(world: World, answer: Exec = proxy_quits) -> Exec:
    """An exec, or a forwarded request, that works: the proxy says OK and is gone."""

    async def free(socket: web.WebSocketResponse, namespace: str, pod: str) -> None:
        await answer(socket, namespace, pod)
        await world.finish(pod, namespace)

    return free


nobody_listens = sending(b"\x01connection refused")
"""A forwarded request that reaches nobody."""


@asynccontextmanager
async def at_work(
    api: ApiServer,
    *,
    limits: QuitLimits = FAST,
    pods: Selector | None = None,
    leading: bool = True,
    leads: Callable[[], bool] = lambda: True,
    clock: Clock = system_clock,
    **scope: Any,
) -> AsyncGenerator[World]:
    """A controller with its two watches, as `serve` runs it."""
    telemetry = Telemetry()
    api.put("namespaces", {"metadata": {"name": "training", "labels": LABELS}})
    async with Client(api.access()) as client:
        events = Events(client, "host")
        chosen = PodOptions(
            namespaces=parse_namespaces("io.datastrophic/istio-aux=enabled"),
            pods=pods or Selector(),
        )

        def relabelled(namespace: str) -> None:
            running.relabelled(namespace)

        labels = Namespaces(relabelled)
        running = QuitController(
            client, labels, telemetry, events,
            QuitScope(options=chosen, limits=limits, **scope),
            clock=clock, leadership=Led(leading, leads),
        )  # fmt: skip
        backoff = Backoff(0.02, 0.1)
        spaces = Watch(
            client, "/api/v1/namespaces", Namespace, labels, backoff=backoff, failed=fails
        )
        jobs = Watch(
            client, "/api/v1/pods", Pod, running, backoff=backoff, selection=JOBS, failed=fails,
        )  # fmt: skip
        async with background(spaces.run()), background(jobs.run()), background(events.run()):
            world = World(api, running, telemetry)
            api.on_exec, api.on_forward = freeing(world), freeing(world, agent_quits)
            try:
                yield world
            finally:
                await running.stop(0)


@asynccontextmanager
async def cluster(**options: Any) -> AsyncGenerator[World]:
    async with ApiServer() as api, at_work(api, **options) as world:
        yield world
