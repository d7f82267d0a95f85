"""Clusters with a quit or a repair controller at work in them, and what replaces pods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

from aiohttp import web
from istio_aux.injector.injection import hooks_of
from istio_aux.injector.rules import ControlPlanes, Injector
from istio_aux.injector.watcher import Namespaces
from istio_aux.kube.actions import JOBS, NOT_TERMINAL
from istio_aux.kube.client import Client
from istio_aux.kube.clock import system_clock
from istio_aux.kube.errors import ApiError, Backoff
from istio_aux.kube.events import Events
from istio_aux.kube.watch import Watch
from istio_aux.model.answers import Liveness
from istio_aux.model.applications import PodOptions
from istio_aux.model.documents import run_now
from istio_aux.model.found import Found
from istio_aux.model.moment import Clock
from istio_aux.model.pod import Pod
from istio_aux.model.policy import RepairPolicy
from istio_aux.model.selectors import Selector, parse_namespaces
from istio_aux.model.webhooks import Namespace
from istio_aux.quit.attempt import QuitLimits, QuitScope
from istio_aux.quit.controller import QuitController
from istio_aux.repair.controller import RepairController
from istio_aux.repair.rollout import RolloutLimits
from istio_aux.telemetry import Telemetry
from simulation.store import Path, Stored
from unit.apiserver import ApiServer, Exec, agent_quits, fails, proxy_quits, sending
from unit.process import Led, background, counted, until
from unit.rules.pods import (
    DEFAULT,
    ENABLED,
    HOOKS,
    POLICIES,
    REPLICAS,
    RESTART,
    RUNNING,
    State,
    document,
    exited,
    raw,
    renamed,
)

# A cluster with a quit controller at work in it.

FAST = QuitLimits(
    deadline=1, confirm=0.2, confirm_failed=0.05, first_retry=0.02, last_retry=0.1, last_reading=0.1
)
LABELS = {"io.datastrophic/istio-aux": "enabled"}
DONE = exited(0)
ENDED = exited(0, at="2026-11-21T08:16:30Z")
JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "j-1", "controller": True}


class QuitWorld:
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


def freeing(world: QuitWorld, answer: Exec = proxy_quits) -> Exec:
    """An exec, or a forwarded request, that works: the proxy says OK and is gone."""

    async def free(socket: web.WebSocketResponse, namespace: str, pod: str) -> None:
        await answer(socket, namespace, pod)
        await world.finish(pod, namespace)

    return free


nobody_listens = sending(b"\x01connection refused")
"""A forwarded request that reaches nobody."""


@asynccontextmanager
async def quit_at_work(
    api: ApiServer,
    *,
    limits: QuitLimits = FAST,
    pods: Selector | None = None,
    leading: bool = True,
    leads: Callable[[], bool] = lambda: True,
    clock: Clock = system_clock,
    **scope: Any,
) -> AsyncGenerator[QuitWorld]:
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
            world = QuitWorld(api, running, telemetry)
            api.on_exec, api.on_forward = freeing(world), freeing(world, agent_quits)
            try:
                yield world
            finally:
                await running.stop(0)


@asynccontextmanager
async def quitting(**options: Any) -> AsyncGenerator[QuitWorld]:
    async with ApiServer() as api, quit_at_work(api, **options) as world:
        yield world


# A cluster with a repair controller at work in it, and with controllers that replace pods.

# An eviction shows late on a busy machine, and must not count as one that failed.
LIMITS = RolloutLimits(at_once=2, patience=20, unconfirmed=20, first_retry=0.05, last_retry=0.1)
SIDECAR = {"main": RUNNING, "istio-proxy": RUNNING}
BARE = {"main": RUNNING}


def mesh(
    state: Liveness = Liveness.LIVE, *, known: bool = True, named: str = DEFAULT
) -> ControlPlanes:
    """What is known of an Istio with the configurations of a real one, or one of that name."""
    injector = Injector(state=state, why="so", configuration=named, revision="default")
    hooks = HOOKS if named == DEFAULT else hooks_of([renamed(DEFAULT, named)])
    return ControlPlanes(injectors=(injector,), hooks=hooks, policies=POLICIES, known=known)


class Cluster(ApiServer):
    """An API server that evicts, and whose controllers replace a pod as soon as it is gone.

    Attributes:
        evictions: names of the pods that were to be evicted, in order, also where it was refused.
        bodies: what was sent for each.
        answers: what the next evictions are answered instead of being done.
        injects: whether new pods get a sidecar.
        replaces: whether controllers make new pods at all.
    """

    def __init__(self) -> None:
        super().__init__()
        self.evictions: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.answers: list[ApiError] = []
        self.injects = self.replaces = True
        self.dry_run = self._inject
        self._made = 0

    def evict(self, to: Path, eviction: dict[str, Any]) -> Stored:
        self.evictions.append(to.name)
        self.bodies.append(eviction)
        if self.answers:
            raise self.answers.pop(0)
        found = super().evict(to, eviction)
        self.remove("pods", *found.name)
        if self.replaces:
            self.replacement(found.object)
        return found

    def _inject(self, pod: dict[str, Any]) -> web.Response:
        if self.injects:
            pod["spec"]["containers"].append({"name": "istio-proxy"})
        return web.json_response(pod, status=201)

    def replacement(self, gone: dict[str, Any]) -> None:
        """What the pod's controller makes in its place: of the same name in a StatefulSet."""
        meta = gone["metadata"]
        (owner,) = meta["ownerReferences"]
        self._made += 1
        name = meta["name"] if owner["kind"] == "StatefulSet" else f"new-{self._made}"
        containers = SIDECAR if self.injects else BARE
        kind = (owner["apiVersion"], owner["kind"])
        new = raw(
            containers, name=name, uid=f"new-{self._made}", namespace=meta["namespace"],
            owner=kind, owner_uid=owner["uid"], labels=meta.get("labels"),
        )  # fmt: skip
        self.put("pods", new)


@dataclass
class RepairWorld:
    """A cluster with one namespace that is in the mesh, ``shop``."""

    api: Cluster
    repair: RepairController
    telemetry: Telemetry
    namespaces: dict[str, dict[str, str]]
    listed: asyncio.Event

    async def pod(self, name: str, containers: Any = None, **fields: Any) -> None:
        """Create or change a pod; see `unit.rules.pods.raw`."""
        fields = {"uid": f"old-{name}", "owner": REPLICAS, **fields}
        body = raw(containers, name=name, **fields)
        del body["metadata"]["resourceVersion"]
        self.api.put("pods", body)

    async def relabel(self, namespace: str, labels: dict[str, str]) -> None:
        self.namespaces[namespace] = labels
        self.repair.store.invalidate(namespace)

    async def known(self, count: int) -> None:
        """Wait until so many pods are known, and all of the list."""
        await self.listed.wait()
        await until(lambda: len(self.repair.store.pods) >= count, f"{count} pods are known")

    async def found(self, *names: str) -> None:
        """Wait until these pods, and no others, are unmeshed."""
        await self.listed.wait()
        await until(lambda: set(self.unmeshed) == set(names), f"{names} are unmeshed")

    @property
    def unmeshed(self) -> dict[str, str]:
        """Name and reason of each unmeshed pod."""
        return {pod.name: pod.reason for pod in run_now(self.repair.unmeshed())}

    def count(self, series: str) -> float:
        return counted(self.telemetry, series)

    def restarts(self, outcome: str) -> float:
        return self.count(f'istio_aux_sidecar_restarts_total{{outcome="{outcome}"}}')

    def events(self, reason: str) -> list[tuple[str, str]]:
        """Pod and note of each Event of that reason."""
        return [
            (event["regarding"]["name"], event["note"])
            for event in self.api.events
            if event["reason"] == reason
        ]


@asynccontextmanager
async def repairing(**options: Any) -> AsyncGenerator[RepairWorld]:
    """A cluster with a repair controller at work in it; see `at_work`."""
    async with Cluster() as api, repair_at_work(api, **options) as world:
        yield world


@asynccontextmanager
async def repair_at_work(
    api: ApiServer,
    *,
    policy: RepairPolicy = RESTART,
    leading: bool = True,
    leads: Callable[[], bool] = lambda: True,
    store: Callable[[], Awaitable[None]] | None = None,
    known: ControlPlanes | None = None,
    listed: asyncio.Event | None = None,
    namespace: str = "shop",
    **options: Any,
) -> AsyncGenerator[RepairWorld]:
    """A repair controller with its watch, as `serve` runs it; one namespace is in the mesh."""
    telemetry = Telemetry()
    options = {"limits": LIMITS, **options}
    async with Client(api.access()) as client:
        events = Events(client, "host")
        namespaces = {namespace: dict(ENABLED)}
        repair = RepairController(
            client, namespaces, telemetry, events, policy=policy,
            leadership=Led(False, leads, store), **options,
        )  # fmt: skip
        pods = Watch(
            client, "/api/v1/pods", Pod, repair.store, backoff=Backoff(0.02, 0.1),
            selection=NOT_TERMINAL, failed=fails,
        )  # fmt: skip
        world = RepairWorld(cast("Cluster", api), repair, telemetry, namespaces, pods.synced)
        repair.store.set_injectors(known or mesh())
        repair.lead(leading)
        async with (
            background(pods.run()),
            background(repair.run(listed or pods.synced)),
            background(events.run()),
        ):
            try:
                yield world
            finally:
                await repair.stop(0)
