"""Let a million short-lived pods come and go, and print what is left; exit status 1 if it grows.

Watches, decoders and controllers are the program's own; the client makes up the API server's watch
events. Each pod has names, labels and reasons that no other pod has.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import ssl
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from istio_aux.kube import actions
from istio_aux.kube.access import Access
from istio_aux.kube.client import Client, Params
from istio_aux.kube.events import Events
from istio_aux.kube.lease import Leadership
from istio_aux.kube.watch import Watch
from istio_aux.model.pod import Pod
from istio_aux.model.policy import RepairPolicy
from istio_aux.quit.attempt import QuitScope
from istio_aux.quit.controller import QuitController
from istio_aux.repair.controller import RepairController
from istio_aux.telemetry import Telemetry
from unit.apiserver import fails

from benchmarks.processes import usage

GROWTH = 8.0
"""MiB. A million pods that leave 10 bytes each behind would exceed it."""
PARTS = 20
WARM = 2
"""Parts after which every cache is full."""
MIB = 1 << 20
AT_ONCE = 200
"""Pods that are there at a time."""

_META = (
    '"metadata":{"name":"job-%(n)d","namespace":"team-%(team)d","uid":"uid-%(n)d",'
    '"resourceVersion":"%(version)d","labels":{"job-name":"job-%(n)d","run-%(n)d":"value-%(n)d"},'
    '"ownerReferences":[{"apiVersion":"batch/v1","kind":"Job","name":"job-%(n)d",'
    '"uid":"owner-%(n)d","controller":true}]}'
)
_RUNNING = '{"name":"%s","state":{"running":{}}}'
_ENDED = '{"name":"%s","state":{"terminated":{"exitCode":0}}}'


@dataclass(frozen=True)
class Part:
    """What was left after so many pods."""

    pods: int
    memory: float  # Resident, in MiB.
    blocks: int  # Of Python's allocator.


class Simulated(Client):
    """A client whose watch makes up pods that come, change and go.

    Attributes:
        known: how many of them a controller ``knows`` before the last ones went.
    """

    def __init__(
        self,
        number: int = 0,
        knows: Callable[[], int] = int,
        *,
        begin: int = 0,
    ) -> None:
        super().__init__(Access("https://127.0.0.1:1", ssl.create_default_context(), lambda: ""))
        self._numbers, self._knows = range(begin, begin + number), knows
        self.known = 0
        self.done = asyncio.Event()

    async def get(self, path: str, params: Params = (), **_: Any) -> bytes:  # noqa: ARG002
        """Return an empty list."""
        return b'{"metadata":{"resourceVersion":"1"},"items":[]}'

    async def watch(
        self,
        path: str,  # noqa: ARG002  (as `Client` has them)
        params: Params,  # noqa: ARG002
        *,
        silence: float,  # noqa: ARG002
    ) -> AsyncGenerator[bytes]:
        """Yield the events of all pods, and then none."""
        version = 3 * self._numbers.start + 1
        yield _line("BOOKMARK", f'"metadata":{{"resourceVersion":"{version}"}}')
        for number in self._numbers:
            version = 3 * number + 2
            yield _pod("ADDED", number, version, main=_RUNNING)
            yield _pod("MODIFIED", number, version + 1, main=_ENDED)
            if (gone := number - AT_ONCE) >= self._numbers.start:
                yield _pod("DELETED", gone, version + 2, main=_ENDED)
        self.known = self._knows()
        for gone in self._numbers[-AT_ONCE:]:
            yield _pod("DELETED", gone, version + 2, main=_ENDED)
        self.done.set()
        await asyncio.Event().wait()


def _line(kind: str, content: str) -> bytes:
    return f'{{"type":"{kind}","object":{{{content}}}}}\n'.encode()


def _pod(kind: str, number: int, version: int, *, main: str) -> bytes:
    """A pod in which another container runs on; every second one has no sidecar."""
    meta = _META % {"n": number, "team": number % 50, "version": version}
    names = ["main", f"side-{number}", *(["istio-proxy"] if number % 2 else [])]
    containers = ",".join(f'{{"name":"{name}","image":"app"}}' for name in names)
    states = ",".join([main % names[0], *(_RUNNING % name for name in names[1:])])
    spec = f'"spec":{{"restartPolicy":"Never","containers":[{containers}]}}'
    status = f'"status":{{"phase":"Running","containerStatuses":[{states}]}}'
    return _line(kind, f"{meta},{spec},{status}")


async def play(
    number: int, parts: int, show: Callable[[Part], None] = lambda _: None
) -> list[Part]:
    """Let ``number`` pods come and go, and measure the process after each of so many ``parts``.

    Raises:
        AssertionError: a controller knew no pod, or still knows one that is gone.
    """
    telemetry, client = Telemetry(), Simulated()
    events = Events(client, "soak")

    leadership = Leadership(held=False)
    quit_ = QuitController(client, {}, telemetry, events, QuitScope(), leadership=leadership)
    repair = RepairController(
        client, {}, telemetry, events, policy=RepairPolicy(), leadership=leadership
    )
    handlers = (quit_, lambda: len(quit_.known)), (repair.store, lambda: len(repair.store.pods))
    weighed: list[Part] = []
    share = number // parts
    for part in range(parts):
        for controller, knows in handlers:
            simulated = Simulated(share, knows, begin=part * share)
            watch = asyncio.create_task(
                Watch(simulated, actions.PODS, Pod, controller, failed=fails).run()
            )
            await simulated.done.wait()
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch
            assert simulated.known, f"{type(controller).__name__} knew no pod"
        assert [*quit_.known, *repair.store.pods] == [], "pods that are gone are still known"
        gc.collect()
        weighed.append(Part((part + 1) * share, memory(), sys.getallocatedblocks()))
        show(weighed[-1])
    await quit_.stop(0)
    await repair.stop(0)
    return weighed


def memory() -> float:
    """Resident memory of this process in MiB."""
    return usage(os.getpid()).rss / MIB


def main() -> int:
    parser = argparse.ArgumentParser("python -m soak", description=__doc__)
    parser.add_argument("--pods", type=int, default=1_000_000)
    options = parser.parse_args()
    print(f"Python {sys.version.split()[0]}\n     pods memory/MiB    blocks", flush=True)
    weighed = asyncio.run(play(options.pods, PARTS, _show))
    growth = max(part.memory for part in weighed[WARM:]) - weighed[WARM - 1].memory
    print(f"memory grew by {growth:.1f} MiB, at most {GROWTH:.0f} are allowed")
    print("good" if growth <= GROWTH else "NOT GOOD")
    return 0 if growth <= GROWTH else 1


def _show(part: Part) -> None:
    print(f"{part.pods:>9} {part.memory:>10.1f} {part.blocks:>9}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
