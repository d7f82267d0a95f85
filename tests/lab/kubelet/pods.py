"""The pods of the scripted kubelet: what it believes of them, and how it tells the API server.

All of it runs on the kubelet's own event loop, so nothing here is locked against threads; a lock
per pod keeps the several writes that make one transition together.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import httpx2
from lightkube import ApiError, AsyncClient
from lightkube.models import core_v1, meta_v1
from lightkube.resources.core_v1 import Pod
from lightkube.types import PatchType

from lab.kubelet import agent, rules
from lab.kubelet.behaviour import Behaviour
from lab.kubelet.containers import Container, Running, Waiting, now, statuses

RETRY = 0.2  # seconds between two tries while the API server is away
STATUS_PORT_ANNOTATION = "status.sidecar.istio.io/port"

T = TypeVar("T")


@dataclasses.dataclass
class Record:
    """One pod: the kubelet's belief about its containers, and what the test told it to do."""

    pod: Pod
    ip: str
    containers: dict[str, Container] = dataclasses.field(default_factory=dict)
    phase: str = "Pending"
    started_at: str = dataclasses.field(default_factory=now)
    transitions: dict[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    omitted: set[str] = dataclasses.field(default_factory=set)
    lingers: bool = False
    misbehaviours: Iterator[Behaviour] = dataclasses.field(default_factory=lambda: iter(()))
    lock: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)

    @property
    def metadata(self) -> meta_v1.ObjectMeta:
        """The pod's metadata, which every stored pod has."""
        assert self.pod.metadata is not None
        return self.pod.metadata

    @property
    def spec(self) -> core_v1.PodSpec:
        """The pod's spec, which every stored pod has."""
        assert self.pod.spec is not None
        return self.pod.spec

    @property
    def namespace(self) -> str:
        """The pod's namespace."""
        return self.metadata.namespace or ""

    @property
    def name(self) -> str:
        """The pod's name."""
        return self.metadata.name or ""

    @property
    def uid(self) -> str:
        """The pod's UID: what tells it from an earlier pod of the same name."""
        return self.metadata.uid or ""

    @property
    def status_port(self) -> int:
        """The port on which this pod's pilot-agent has its status server."""
        return int((self.metadata.annotations or {}).get(STATUS_PORT_ANNOTATION, agent.STATUS_PORT))


class Pods:
    """The pods that run here. ``client`` speaks to the API server, ``node`` is the node's name."""

    def __init__(self, client: AsyncClient, node: str) -> None:
        self._client = client
        self._node = node
        self._records: dict[str, Record] = {}
        self._addresses = itertools.count(2)

    def find(self, namespace: str, name: str) -> Record | None:
        """The latest pod of that name."""
        for record in reversed(self._records.values()):
            if (record.namespace, record.name) == (namespace, name):
                return record
        return None

    def get(self, uid: str) -> Record:
        """The pod with that UID. Raises KeyError when it was never adopted or is gone."""
        return self._records[uid]

    async def adopt(self, namespace: str, name: str) -> Record:
        """Take over a pod, binding it to this node unless it is bound."""
        pod = await self._persist(lambda: self._client.get(Pod, name, namespace=namespace))
        if pod is None or pod.metadata is None or pod.spec is None:
            raise KeyError(f"{namespace}/{name}: no such pod")
        if not pod.spec.nodeName:
            binding = Pod.Binding(
                metadata=meta_v1.ObjectMeta(name=name, namespace=namespace),
                target=core_v1.ObjectReference(kind="Node", name=self._node),
            )
            await self._persist(
                lambda: self._client.create(binding, name=name, namespace=namespace)
            )
        address = divmod(next(self._addresses), 250)
        record = Record(pod, ip=f"10.244.{address[0]}.{address[1] + 1}")
        return self._records.setdefault(record.uid, record)

    async def run(self, record: Record) -> None:
        """Init containers end with 0, native sidecars and all containers start: phase Running."""
        async with record.lock:
            running = Container(Running(now()))
            for container in record.spec.initContainers or []:
                sidecar = rules.native(container)
                record.containers[container.name] = running if sidecar else running.ended(0)
            record.containers |= {c.name: running for c in record.spec.containers}
            await self._settle(record)

    async def end(self, record: Record, name: str, exit_code: int, reason: str | None) -> None:
        """A container's process ends, and what follows from that, phase included, is reported."""
        async with record.lock:
            record.containers[name] = record.containers[name].ended(exit_code, reason)
            await self._settle(record)

    async def quit(self, record: Record, name: str, exit_code: int) -> None:
        """A process that was told to go ends, unless something else ended it before."""
        async with record.lock:
            container = record.containers[name]
            if isinstance(container.state, Running):
                record.containers[name] = container.ended(exit_code)
                await self._settle(record)

    async def again(self, record: Record, name: str, waiting: str | None) -> None:
        """The next run of a container that ended starts, or waits for the reason ``waiting``."""
        async with record.lock:
            state = Waiting(waiting) if waiting else Running(now())
            record.containers[name] = record.containers[name].again(state)
            await self._settle(record)

    async def omit(self, record: Record, names: set[str]) -> None:
        """Report no status for these containers, as a kubelet that has not seen them yet."""
        async with record.lock:
            record.omitted = names
            await self._write(record)

    async def follow(self) -> None:
        """Finalise pods that are being deleted, for as long as this runs."""
        while True:
            try:
                listed = self._client.list(Pod, namespace="*", fields={"spec.nodeName": self._node})
                async for pod in listed:
                    await self._observe("MODIFIED", pod)
                watch = self._client.watch(
                    Pod,
                    namespace="*",
                    fields={"spec.nodeName": self._node},
                    resource_version=listed.resourceVersion,
                )
                async for event, pod in watch:
                    await self._observe(event, pod)
            except httpx2.HTTPError:
                await asyncio.sleep(RETRY)

    async def release(self, record: Record) -> None:
        """End a pod that lingered in its deletion."""
        record.lingers = False
        await self._finalise(record)

    async def _observe(self, event: str, pod: Pod) -> None:
        assert pod.metadata is not None
        uid = pod.metadata.uid or ""
        record = self._records.get(uid)
        if event == "DELETED":
            self._records.pop(uid, None)
        elif pod.metadata.deletionTimestamp is not None:
            record = record or Record(pod, ip="")
            if not record.lingers:
                await self._finalise(record)

    async def _finalise(self, record: Record) -> None:
        """Stop what still runs, report it, and remove the pod with grace period 0."""
        async with record.lock:
            for name, container in record.containers.items():
                if isinstance(container.state, Running):
                    record.containers[name] = container.ended(0)
            if record.containers:
                await self._write(record)
            present = await self._persist(
                lambda: self._client.get(Pod, record.name, namespace=record.namespace)
            )
            # There is no UID precondition in lightkube's delete, so look first: a pod of the same
            # name may have come after this one was removed by force.
            if present and present.metadata and present.metadata.uid == record.uid:
                await self._persist(
                    lambda: self._client.delete(
                        Pod, record.name, namespace=record.namespace, grace_period=0
                    )
                )

    async def _settle(self, record: Record) -> None:
        """Report the new states, then what a kubelet concludes from them, in its order.

        A final phase is written after the terminated containers, not with them: between the two a
        real pod was seen twice with nothing running and the phase still Running.
        """
        phase = rules.phase(record.spec, record.containers)
        over = rules.payload_over(record.spec, record.containers)
        if not over:
            record.phase = phase
        await self._write(record)
        if not over:
            return
        for container in record.spec.initContainers or []:
            state = record.containers[container.name]
            if isinstance(state.state, Running):
                record.containers[container.name] = state.ended(0)
        await self._write(record)
        record.phase = rules.phase(record.spec, record.containers)
        await self._write(record)

    async def _write(self, record: Record) -> None:
        patch = {"metadata": {"uid": record.uid}, "status": _status(record)}
        await self._persist(
            lambda: self._client.patch(
                Pod.Status,
                record.name,
                patch,
                namespace=record.namespace,
                patch_type=PatchType.STRATEGIC,
            )
        )

    async def _persist(self, call: Callable[[], Awaitable[T]]) -> T | None:
        """Make a call, again and again while the API server is away; None when the pod is gone."""
        while True:
            try:
                return await call()
            except ApiError as error:
                if error.status.code in (404, 409):  # 409: the UID is that of a later pod
                    return None
                if (error.status.code or 500) < 500:
                    raise
            except httpx2.HTTPError:
                pass
            await asyncio.sleep(RETRY)


def _status(record: Record) -> dict[str, Any]:
    states = {n: c for n, c in record.containers.items() if n not in record.omitted}
    regular = [record.containers.get(c.name) for c in record.spec.containers]
    done = record.phase in rules.TERMINAL
    ready = not done and all(c is not None and isinstance(c.state, Running) for c in regular)
    facts = {
        "PodReadyToStartContainers": not done,
        "Initialized": bool(record.containers),
        "ContainersReady": ready,
        "Ready": ready,
        "PodScheduled": True,
    }
    return {
        "phase": record.phase,
        "conditions": [_condition(record, kind, true=true) for kind, true in facts.items()],
        "containerStatuses": statuses(record.spec.containers, states, record.uid),
        "initContainerStatuses": statuses(record.spec.initContainers, states, record.uid),
        "hostIP": "127.0.0.1",
        "hostIPs": [{"ip": "127.0.0.1"}],
        "podIP": record.ip,
        "podIPs": [{"ip": record.ip}],
        "startTime": record.started_at,
    }


def _condition(record: Record, kind: str, *, true: bool) -> dict[str, Any]:
    value = "True" if true else "False"
    known, since = record.transitions.get(kind, ("", ""))
    if known != value:
        since = now()
        record.transitions[kind] = (value, since)
    return {"type": kind, "status": value, "lastTransitionTime": since}
