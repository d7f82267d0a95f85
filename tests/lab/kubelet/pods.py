"""The pods of the scripted kubelet: their containers' states, and their status in the API server.

All of it runs on the kubelet's own event loop, so nothing here is locked against threads. A lock
per pod keeps the writes of one transition together.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection
from typing import Any

from lab.kubelet.api import STRATEGIC, Api, Object, RefusedError
from lab.kubelet.record import Container, Record, native, running

AT_ONCE = "kubelet.lab.test/at-once"
"""The label of a pod that runs as soon as it is there, without being told to."""


class Pods:
    """The pods that run on ``node``."""

    def __init__(self, api: Api, node: str) -> None:
        self._api = api
        self._node = node
        self._records: dict[str, Record] = {}
        self._changed = asyncio.Condition()
        self._addresses = itertools.count(2)

    def find(self, namespace: str, name: str) -> Record | None:
        found = [r for r in self._records.values() if r.key == (namespace, name)]
        return found[-1] if found else None

    def get(self, uid: str) -> Record:
        """The pod with that UID. Raises KeyError when it never came here or is gone."""
        return self._records[uid]

    async def run(self, uid: str, waiting: Collection[str]) -> None:
        """Start the pod with that UID: Running, or Pending while a container is ``waiting``."""
        async with self._changed:
            await self._changed.wait_for(lambda: uid in self._records)
        record = self._records[uid]
        async with record.lock:
            started = Container(running())
            for container in record.init_containers:
                sidecar = native(container)
                record.containers[container["name"]] = started if sidecar else started.ended(0)
            later = Container({"waiting": {"reason": "PodInitializing"}})
            record.containers |= {
                c["name"]: later if c["name"] in waiting else started
                for c in record.spec["containers"]
            }
            await self._settle(record)

    async def end(self, record: Record, name: str, exit_code: int, reason: str | None) -> None:
        """End a container's process, and report what follows from that, phase included."""
        async with record.lock:
            record.containers[name] = record.containers[name].ended(exit_code, reason)
            await self._settle(record)

    async def quit(self, record: Record, name: str, exit_code: int) -> None:
        """A process that was told to exit does so, unless it has ended already."""
        async with record.lock:
            container = record.containers[name]
            if container.runs:
                record.containers[name] = container.ended(exit_code)
                await self._settle(record)

    async def again(self, record: Record, name: str) -> None:
        """The next run of a container that ended, or its first one."""
        async with record.lock:
            record.containers[name] = record.containers[name].again()
            await self._settle(record)

    async def follow(self) -> None:
        """Run the pods bound here, and finalise those being deleted, forever."""
        selector = {"fieldSelector": f"spec.nodeName={self._node}"}
        async for event, pod in self._api.objects("/api/v1/pods", selector):
            uid = pod["metadata"]["uid"]
            if event == "DELETED":
                self._records.pop(uid, None)
                continue
            record = self._records.get(uid) or await self._take_in(pod)
            if "deletionTimestamp" in pod["metadata"]:
                await self._finalise(record)
            elif AT_ONCE in pod["metadata"].get("labels", {}) and not record.containers:
                await self.run(uid, ())

    async def _take_in(self, pod: Object) -> Record:
        third, fourth = divmod(next(self._addresses), 250)
        record = Record(pod, ip=f"10.244.{third}.{fourth + 1}")
        async with self._changed:
            self._records[record.uid] = record
            self._changed.notify_all()
        return record

    async def _finalise(self, record: Record) -> None:
        """Stop what still runs, report it, and remove the pod with grace period 0."""
        async with record.lock:
            for name, container in record.containers.items():
                if container.runs:
                    record.containers[name] = container.ended(0)
            if record.containers:
                await self._write(record)
            options = {"gracePeriodSeconds": 0, "preconditions": {"uid": record.uid}}
            await self._unless_gone(record, "DELETE", record.path, options)

    async def _settle(self, record: Record) -> None:
        """Report the new states, then what a kubelet concludes from them, in its order.

        A final phase is written after the terminated containers, not with them: between the two a
        real pod was seen twice with nothing running and the phase still Running.
        """
        if not record.over:
            waits = any("waiting" in container.state for container in record.regular)
            record.phase = "Pending" if waits else "Running"
        await self._write(record)
        if not record.over:
            return
        for name in (init["name"] for init in record.init_containers):
            if record.containers[name].runs:
                record.containers[name] = record.containers[name].ended(0)
        await self._write(record)
        failed = any(container.exit_code for container in record.regular)
        record.phase = "Failed" if failed else "Succeeded"
        await self._write(record)

    async def _write(self, record: Record) -> None:
        # The UID makes the API server refuse the status for a later pod of the same name.
        patch = {"metadata": {"uid": record.uid}, "status": record.status()}
        await self._unless_gone(record, "PATCH", f"{record.path}/status", patch, STRATEGIC)

    async def _unless_gone(self, record: Record, method: str, *request: Any) -> None:
        try:
            await self._api.request(method, *request)
        except RefusedError as error:
            # The name now belongs to a later pod. NodeRestriction refuses (403) if that one has no
            # node yet, the comparison of UIDs (409) if it has, and validation (422: the UID is
            # immutable) if it came between the two.
            if error.code not in (403, 404, 409, 422):
                raise
            if error.code in (403, 422) and await self._exists(record):
                raise

    async def _exists(self, record: Record) -> bool:
        try:
            pod = await self._api.request("GET", record.path)
        except RefusedError as error:
            if error.code in (403, 404):
                return False
            raise
        return pod["metadata"]["uid"] == record.uid
