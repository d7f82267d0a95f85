"""How long the repair controller holds the loop, and what it remembers of a pod.

    PYTHONPATH=workload/src:tests:src:lib python -m benchmarks.repairing

5,000 pods, in this process and without a cluster: reviews are served by the same loop, so what
counts is the CPU time between two turns of another task (the clock of the thread, which a busy
machine does not stretch). The garbage collector rests meanwhile. Needs the dependency group `unit`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

from istio_aux.core import pod as pods
from istio_aux.core.applications import parse
from istio_aux.core.liveness import State
from istio_aux.core.policy import RepairPolicy as Policy
from istio_aux.kube.client import Client
from istio_aux.kube.errors import ApiError
from istio_aux.kube.events import Events
from istio_aux.repair.controller import Repair
from istio_aux.repair.ledger import BATCH
from istio_aux.telemetry import Telemetry, log_to
from unit.core.unmeshed import REPORT, RESTART, raw
from unit.repairing import BARE, SIDECAR, mesh

PODS = 5000
SPACES = {f"model-{number}": {"istio-injection": "enabled"} for number in range(20)}
FILE = "\n".join(f"{space}/app-{number}" for number, space in enumerate(SPACES))


class Refusing:
    """An API server that lets no pod go."""

    async def post(self, _path: str, _body: bytes) -> bytes:
        """As an eviction is answered that a budget forbids."""
        await asyncio.sleep(0.01)
        raise ApiError(429, "it would violate the pod's disruption budget")

    async def get(self, _path: str) -> bytes:
        """As without a right."""
        raise ApiError(403, "no")


def bodies(containers: Any, owners: int) -> list[bytes]:
    """Pods as they come over the wire, with names and labels of a usual length."""
    return [
        json.dumps(
            raw(
                containers,
                name=f"web-7d9f8c6b5d-{number:05x}",
                uid=f"0f8fad5b-d9cb-469f-a165-{number:012x}",
                version=str(10_000_000 + number),
                owner_uid=f"7c9e6679-7425-40de-944b-{number % owners:012x}",
                namespace=f"model-{number % len(SPACES)}",
                labels={
                    "app.kubernetes.io/name": f"app-{number % 200}",
                    "pod-template-hash": "7d9f8c6b5d",
                },
                annotations={"controller.juju.is/id": "6f1b9f4a", "notes": "x" * 600},
            )
        ).encode()
        for number in range(PODS)
    ]


def controller(policy: Policy) -> Repair:
    """A controller to which 20 applications are named."""
    client = cast("Client", Refusing())
    repair = Repair(client, SPACES, Telemetry(), Events(client, "host"), policy=policy)
    repair.listed.set()
    repair.ask(parse(FILE)[0])
    return repair


async def stretch(work: Callable[[], Awaitable[None]]) -> tuple[float, float]:
    """The longest stretch in which no other task had a turn, and all of it, in seconds of CPU."""
    longest, over = 0.0, False

    async def beat() -> None:
        nonlocal longest
        last = time.thread_time()
        while not over:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest, last = max(longest, now - last), now

    gc.collect()
    gc.disable()
    other = asyncio.create_task(beat())
    await asyncio.sleep(0)
    began = time.thread_time()
    await work()
    took, over = time.thread_time() - began, True
    await other
    gc.enable()
    return longest, took


async def hold(policy: Policy, owners: int) -> None:
    """Print how long each event that concerns all pods holds the loop."""
    repair, wire = controller(policy), bodies(BARE, owners)
    repair.lead(True)
    running = asyncio.create_task(repair.run())
    await asyncio.sleep(0.1)

    async def settled() -> None:
        # Nobody outside can tell that all is decided, and nothing announces it.
        ledger, restarts = repair._ledger, repair._restarts  # noqa: SLF001  (see above)
        while ledger._doubted or ledger._stale or restarts._changed:  # noqa: ASYNC110, SLF001  (as above)
            await asyncio.sleep(0)

    async def listed() -> None:
        for number, body in enumerate(wire):
            repair.apply(pods.decode(body))
            if number % BATCH == 0:
                await asyncio.sleep(0)

    async def live() -> None:
        repair.look(mesh())
        await settled()
        await asyncio.sleep(0.5)  # Some evictions are begun, and refused.

    async def gone() -> None:
        repair.look(mesh(State.NO_ENDPOINT))
        await settled()

    async def labelled() -> None:
        for space in SPACES:
            repair.relabelled(space)
        await settled()

    async def shown() -> None:
        repair.unmeshed(500)
        repair.applications()

    for work in (listed, live, gone, live, labelled, shown):
        longest, took = await stretch(work)
        print(
            f"{policy.race}, {owners} controllers, {work.__name__}: longest stretch"
            f" {longest * 1000:.1f} ms of CPU, {took:.2f} s in all"
        )
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await repair.stop(0)


async def remember(name: str, containers: Any) -> None:
    """Print what one pod costs in memory, its share of its controller included."""
    repair, wire = controller(REPORT), bodies(containers, PODS // 2)
    repair.look(mesh())
    tracemalloc.start()
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()
    for body in wire:
        repair.apply(pods.decode(body))
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"{name}: {(after - before) / PODS:.0f} bytes a pod, two pods a controller")


async def main() -> None:
    """Measure all of it; log lines are made and thrown away."""
    logging.disable(logging.CRITICAL)
    await remember("meshed", SIDECAR)
    await remember("unmeshed", BARE)
    logging.disable(logging.NOTSET)
    for policy, owners in ((REPORT, 2500), (RESTART, 2500), (RESTART, 5)):
        await hold(policy, owners)


if __name__ == "__main__":
    with Path("/dev/null").open("wb") as nowhere:
        log_to(nowhere)
        asyncio.run(main())
