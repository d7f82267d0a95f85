"""One unit of istio-aux: its processes, one after another, and what is done to them.

The clock of its event loop is the world's, and it runs only when the world lets it.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import random
import ssl
import sys
from asyncio import base_events, events
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from istio_aux.kube.access import Access
from istio_aux.kube.actions import NAMESPACES, PODS
from istio_aux.model.moment import Moment
from istio_aux.serve import IN_FLIGHT, LINGER
from istio_aux.settings import Settings
from istio_aux.tasks import endless_task
from istio_aux.wiring import Wiring
from msgspec import structs

from simulation.client import ModelClient

if TYPE_CHECKING:
    from simulation.client import Request
    from simulation.cluster import Cluster


class _NoSelector:
    """There are no files: what arrives is put into futures by the world."""

    def select(self, _timeout: float | None = None) -> Sequence[Any]:
        return ()

    def close(self) -> None:
        pass


SPINS = 20_000
"""Rounds of a loop at one moment: a process that has so many to do would use a whole core."""


class SpinningError(RuntimeError):
    """A process does one thing after another, and waits for nothing."""


class VirtualLoop(base_events.BaseEventLoop):
    """A loop whose ``time`` is what ``clock`` returns; `turn` runs what is due.

    A unit that is frozen is a loop that is not turned: its clock goes on, and its timers are late.
    """

    # Private to asyncio, and the same in all its versions.
    _ready: Any
    _scheduled: Any
    _run_once: Callable[[], None]
    _asyncgen_firstiter_hook: Any
    _asyncgen_finalizer_hook: Any

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._ending = False
        self._selector = _NoSelector()
        # A timer that is due now runs; an earlier one would find that nothing is due yet, for ever.
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._clock()

    def _process_events(self, event_list: object) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    @property
    def next(self) -> float | None:
        """When there is something to do, by `time`; None: only when something arrives."""
        if self._ready:
            return self._clock()
        timers: list[Any] = self._scheduled
        while timers and timers[0]._cancelled:
            heapq.heappop(timers)._scheduled = False
            self._timer_cancelled_count -= 1
        return timers[0]._when if timers else None

    @property
    def busy(self) -> bool:
        """Whether something can be done at this moment."""
        then = self.next
        return then is not None and then <= self._clock()

    def turn(self) -> None:
        """Run everything that can be done at this moment; `SpinningError` if there is no end."""
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(self._asyncgen_firstiter_hook, self._asyncgen_finalizer_hook)
        events._set_running_loop(self)
        try:
            for _ in range(SPINS):
                if not self.busy:
                    return
                self._run_once()
            raise SpinningError(f"{SPINS} rounds at {self.time():.2f} s")
        finally:
            events._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """Start a task; RuntimeError while the process ends: a task may start its successor."""
        if self._ending:
            coro.close()
            raise RuntimeError("the process has ended")
        return super().create_task(coro, **options)

    def end(self) -> None:
        """Cancel every task until none is left, and close. Errors no longer matter."""
        self._ending = True
        self.set_exception_handler(lambda _loop, _context: None)
        for _ in range(20):
            tasks = asyncio.all_tasks(self)
            if not tasks:
                break
            for task in sorted(tasks, key=lambda task: task.get_name()):
                task.cancel()
            with suppress(SpinningError):
                self.turn()
        self.close()


LEASE = 15.0  # Seconds for which a renewed Lease holds.
KILL = 10.0  # Seconds from SIGTERM to SIGKILL, as in the charm's layer.
_ACCESS = Access("", ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), lambda: None)


class Process:
    """One process of a unit, from its start to its end."""

    def __init__(self, unit: Unit, settings: Settings, name: str) -> None:
        cluster = unit.cluster
        self.unit, self.name, self.ended, self.stopping = unit, name, False, False
        self._world, self.began = cluster.world, cluster.world.now
        self.loop = VirtualLoop(lambda: self._world.now - self.began)
        self.loop.set_exception_handler(self._failed)
        self.client = ModelClient(cluster, self)
        self.wiring: Wiring = None  # type: ignore[assignment]  (made in its loop)
        self.settings = settings
        self.read: dict[tuple[str, str], tuple[float, str]] = {}  # When pods were read, and UIDs.
        self.seen = 0  # The newest version that its watch of pods has brought.
        self.first: int | None = None  # The first one.
        self.labels = 0, 0.0  # The newest version that its watch of namespaces has brought, when.
        self.requests = defaultdict[str, deque[float]](deque)  # When it sent its last ones.
        self.troubled = self.throttled = self.began  # When it could last not renew its Lease.
        self.policy = False  # Whether it has read the injection policy.
        self.leads_since: float | None = None
        self._stop = asyncio.Event()
        self._main = self.loop.create_task(self._run(), name="main")

    def saw(self, path: str, version: int) -> None:
        """A watch of it has brought an object of this version."""
        if path == PODS:
            self.seen = max(self.seen, version)
            self.first = self.first or version
        elif path == NAMESPACES and version > self.labels[0]:
            self.labels = version, self._world.now

    def renews_late(self, request: Request, *, busy: bool = False) -> None:
        """A renewal of its Lease failed or took long; one 429 is no trouble, two may be."""
        now = self._world.now
        if request.to.resource == "leases":
            if not busy or now < self.throttled + LEASE:
                self.troubled = max(self.troubled, now)
            self.throttled = now if busy else self.throttled

    def forget(self) -> None:
        """Versions have begun again."""
        self.seen, self.first, self.labels, self.policy = 0, None, (0, 0.0), False

    def clock(self) -> Moment:
        """The present as this process sees it; with defects, a handler of its watches raises."""
        task = asyncio.current_task(self.loop)
        if task and task.get_name() == "watch pods" and self._world.happens("defects", 0.01):
            raise RuntimeError("a defect")
        return Moment(self.loop.time(), self._world.wall + self.unit.wall_offset)

    def world_time(self, when: float) -> float:
        """The world's time at which the loop's is ``when``, or just past it: floats are rounded."""
        then = when + self.began
        while then - self.began < when:
            then = math.nextafter(then, math.inf)
        return then

    async def _run(self) -> None:
        """Do what `istio_aux.serve` does, without its ports."""
        wiring = self.wiring = Wiring(
            self.settings, _ACCESS, client=self.client, clock=self.clock, identity=self.name
        )
        async with self.client:
            wiring.listening = True
            endless = [
                asyncio.create_task(endless_task(name, work, self._ended), name=name)
                for name, work in wiring.work().items()
            ]
            await self._stop.wait()
            for task in endless:
                task.cancel()
            await asyncio.gather(*endless, return_exceptions=True)
            wiring.listening = False
            await asyncio.gather(wiring.hand_over(IN_FLIGHT), asyncio.sleep(LINGER))

    def terminate(self) -> None:
        self.stopping = True
        self._stop.set()

    @property
    def done(self) -> bool:
        return self._main.done()

    def end(self) -> None:
        """Nothing of it runs any more."""
        self.ended = True
        if self._main.done() and (error := self._main.exception()):
            self.unit.cluster.judge.crashed(self, error)
        self.loop.end()

    def _ended(self, what: str, error: BaseException | None) -> None:
        self.unit.cluster.judge.crashed(self, error or RuntimeError(f"{what} has ended"))

    def _failed(self, _loop: object, context: dict[str, Any]) -> None:
        self.unit.cluster.judge.crashed(
            self, context.get("exception") or RuntimeError(str(context.get("message")))
        )


class Unit:
    """A unit: it always has a process, or starts one soon."""

    def __init__(self, cluster: Cluster, number: int, settings: Settings) -> None:
        self.cluster, self.number = cluster, number
        self.wall_offset = 0.0
        self.partitioned = False
        self.deaf = ""  # The path of a collection of which it learns nothing more.
        self.process: Process | None = None
        self.settings = structs.replace(settings)
        self._frozen = False
        self._pod = 0

    def __str__(self) -> str:
        return f"unit-{self.number}"

    @property
    def name(self) -> str:
        """The name of its pod, which is the identity of its process."""
        return f"unit-{self.number}" + (f"-{self._pod}" if self._pod else "")

    def start(self) -> None:
        if self.process is None:
            self.cluster.world.tell("{} starts as {}", self, self.name)
            self.process = Process(self, self.settings, self.name)

    def next(self) -> float | None:
        """When its process has something to do, in the world's seconds."""
        process = self.process
        if process is None or self._frozen:
            return None
        when = process.loop.next
        return None if when is None else process.world_time(when)

    def turn(self) -> None:
        """Let its process do what it can do now."""
        process = self.process
        if process is None or self._frozen:
            return
        self.cluster.acting = self
        try:
            process.loop.turn()
        except SpinningError as error:
            self.cluster.judge.crashed(process, error)
            self._replace(process)
            return
        finally:
            self.cluster.acting = None
        if process.done:
            self.cluster.world.tell("{} has ended", self)
            self._replace(process)

    def terminate(self, *, renamed: bool) -> None:
        """Stop it as a rolling upgrade does; its next pod may have another name."""
        if (process := self.process) and not process.stopping:
            self.cluster.world.tell("{} gets SIGTERM", self)
            self._pod += renamed
            process.terminate()
            self.cluster.world.after(KILL, self._kill, process)

    def configure(self) -> None:
        """Stop it to start it with the present settings."""
        self.settings = self.cluster.settings
        self.terminate(renamed=True)

    def crash(self, *, renamed: bool = False) -> None:
        if process := self.process:
            self.cluster.world.tell("{} is killed", self)
            self._pod += renamed
            self._replace(process)

    def _kill(self, process: Process) -> None:
        if self.process is process:
            self.crash(renamed=False)

    def _replace(self, process: Process) -> None:
        self.process = None
        process.end()
        self.cluster.world.after(random.Random(self._pod).uniform(0.5, 3.0), self.start)

    def freeze(self, seconds: float) -> None:
        """Stop it as SIGSTOP does, and let it go on later."""
        self.cluster.world.tell("{} is frozen for {:.0f} s", self, seconds)
        self._frozen = True
        self._trouble(seconds)
        self.cluster.world.after(seconds, self._thaw)

    def _thaw(self) -> None:
        if self._frozen:
            self._frozen = False
            self.cluster.world.tell("{} goes on", self)

    def partition(self, seconds: float) -> None:
        """Cut it off from the API server for a time."""
        self.cluster.world.tell("{} is cut off for {:.0f} s", self, seconds)
        self.partitioned = True
        self._trouble(seconds)
        self.cluster.world.after(seconds, self._join)

    def _trouble(self, seconds: float) -> None:
        if self.process:
            self.process.troubled = max(self.process.troubled, self.cluster.world.now + seconds)

    def _join(self) -> None:
        if self.partitioned:
            self.partitioned = False
            self.cluster.world.tell("{} reaches the API server again", self)

    def calm_down(self) -> None:
        self._thaw()
        self._join()
