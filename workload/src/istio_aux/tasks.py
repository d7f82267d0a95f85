"""Tasks: endless ones, how they end, and slots for attempts.

`Slots` say how many attempts run at once, and whose turn is next. A node may hang, and so may the
agents of tenants, in any number of namespaces. No other attempt is to wait for them, so

* an attempt that waits for a slot holds nothing;
* a node has at most half of the slots, and a namespace a quarter;
* an attempt that hangs gives its slot back early, and is charged for more than it had;
* a free slot goes to the namespace that has used the least slot time lately, and there to the node
  that has used the least.

So of attempts that last for ``deadline`` and give their slot back after ``slot`` seconds, at most
``number * (deadline / slot + 1)`` are open at once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, closing, suppress
from typing import Any

from istio_aux.kube.clock import TIMING, Timing, now
from istio_aux.kube.errors import Backoff

HALF_LIFE = 30.0  # Seconds after which used slot time counts half.
REMEMBERED = 4096  # Namespaces and places whose use is kept while any attempt runs or waits.

Place = tuple[str, str]
"""A namespace and a node; the node is empty if it is unknown, and has no share then."""


class Slot:
    """The right to one attempt."""

    def __init__(self, slots: Slots, place: Place) -> None:
        self._slots, self._place = slots, place
        self._since, self._held = now(), True
        self._timer: asyncio.TimerHandle | None = None

    def give_back_after(self, seconds: float, charge: float) -> None:
        """Free the slot after ``seconds``, even if the attempt goes on; it costs ``charge``."""
        self._timer = self._timer or asyncio.get_running_loop().call_later(
            seconds, self._give_back, charge
        )

    def close(self) -> None:
        """The attempt is over."""
        if self._timer:
            self._timer.cancel()
        self._give_back(now() - self._since)

    def _give_back(self, charge: float) -> None:
        if self._held:
            self._held = False
            self._slots.give_back(self._place, charge)


class Slots:
    """Gives out ``number`` slots; an attempt that holds one is charged ``expected`` seconds."""

    def __init__(self, number: int, expected: float) -> None:
        self._free, self._expected = number, expected
        self._of_node, self._of_namespace = max(1, number // 2), max(1, number // 4)
        # Waiting attempts by namespace and node, the oldest first.
        self._waiting: dict[str, dict[str, dict[asyncio.Future[None], None]]] = {}
        # Attempts that hold a slot, by namespace, and by node as the place without a namespace.
        self._held = Counter[str | Place]()
        # The used slot time of a namespace or a place, and when it was charged last.
        self._used: dict[str | Place, tuple[float, float]] = {}

    @asynccontextmanager
    async def take(self, namespace: str, node: str) -> AsyncGenerator[Slot]:
        """Hold a slot for a pod while the body runs."""
        place = (namespace, node)
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(namespace, {}).setdefault(node, {})[turn] = None
        self._give()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._leave(place, turn)
            else:
                self.give_back(place, 0.0)
            raise
        with closing(Slot(self, place)) as slot:
            yield slot

    def give_back(self, place: Place, charge: float) -> None:
        """Free a slot of the place, which used it for ``charge`` seconds."""
        self._free += 1
        self._held -= Counter((place[0], ("", place[1])))
        self._charge(place, charge - self._expected)
        self._give()
        if not (self._waiting or self._held):  # No attempt runs or waits.
            self._used.clear()

    def _give(self) -> None:
        while self._free and (place := self._next()):
            turn = next(iter(self._waiting[place[0]][place[1]]))
            self._leave(place, turn)
            if turn.cancelled():
                continue
            self._free -= 1
            self._held.update((place[0], ("", place[1])))
            self._charge(place, self._expected)
            turn.set_result(None)

    def _leave(self, place: Place, turn: asyncio.Future[None]) -> None:
        namespace, node = place
        nodes = self._waiting.get(namespace, {})
        turns = nodes.get(node, {})
        turns.pop(turn, None)
        if not turns:
            nodes.pop(node, None)
        if not nodes:
            self._waiting.pop(namespace, None)

    def _next(self) -> Place | None:
        """The place whose turn it is; None if none may have a slot now."""
        namespaces = [
            namespace
            for namespace, nodes in self._waiting.items()
            if self._held[namespace] < self._of_namespace and not all(map(self._full, nodes))
        ]
        if not namespaces:
            return None
        namespace = min(namespaces, key=self._lately)
        places = ((namespace, it) for it in self._waiting[namespace] if not self._full(it))
        return min(places, key=self._lately)

    def _full(self, node: str) -> bool:
        return bool(node) and self._held["", node] >= self._of_node

    def _lately(self, key: str | Place) -> float:
        """The used slot time of a namespace or a place; it decays by `HALF_LIFE`."""
        seconds, charged = self._used.get(key, (0.0, 0.0))
        return seconds * 0.5 ** ((now() - charged) / HALF_LIFE)

    def _charge(self, place: Place, seconds: float) -> None:
        for key in (place[0], place):
            used = max(0.0, self._lately(key) + seconds)
            self._used.pop(key, None)  # Keep the order: charged last, stored last.
            self._used[key] = used, now()
        while len(self._used) > REMEMBERED:
            del self._used[next(iter(self._used))]


async def endless_task(
    name: str,
    work: Callable[[], Coroutine[Any, Any, None]],
    failed: Callable[[str, BaseException | None], None],
    timing: Timing = TIMING,
) -> None:
    """Run ``work`` until cancelled, and again whenever it ends; ``failed`` gets why it ended."""
    if task := asyncio.current_task():
        task.set_name(name)
    backoff = Backoff(*timing.restart)
    while True:
        began, error = now(), None
        try:
            await work()
        except Exception as caught:
            error = caught
        failed(name, error)
        if now() - began > 2 * timing.restart[1]:
            backoff.reset()
        await asyncio.sleep(backoff.next())


@asynccontextmanager
async def running(*works: Coroutine[Any, Any, None]) -> AsyncGenerator[None]:
    """Run endless tasks while the context lasts."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(condition: Callable[[], bool], patience: float) -> bool:
    """Wait for ``patience`` seconds at most; return whether the condition is met."""
    with suppress(TimeoutError):
        async with asyncio.timeout(patience):
            # No single event shows it: it depends on several watches, probes and controllers.
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    return condition()


async def wait(event: asyncio.Event, patience: float | None) -> None:
    """Wait for the event, for ``patience`` seconds at most; None: however long it takes."""
    with suppress(TimeoutError):
        async with asyncio.timeout(patience):
            await event.wait()


async def end_tasks(tasks: Sequence[asyncio.Task[None]], patience: float) -> None:
    """Give tasks ``patience`` seconds to end, then cancel them in their order."""
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=patience)
        for task in tasks:
            task.cancel()  # It leaves alone what has ended.
        await asyncio.gather(*late, return_exceptions=True)
