"""Slots: how many attempts run at once, and whose turn is next.

A node may hang, and so may the agents of tenants, in any number of namespaces. Nobody else is to
wait for them, so

* an attempt that waits for a slot holds nothing;
* a node has at most half of the slots, and a namespace a quarter;
* an attempt that hangs gives its slot back early, and is charged for more than it had;
* a free slot goes to the namespace that has used the least slot time lately, and in it to the node
  of which the same is true.

So of attempts that last for ``deadline`` and give their slot back after ``slot`` seconds, at most
``number * (deadline / slot + 1)`` are open at once.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

HALF_LIFE = 30.0
"""Seconds after which slot time counts half. An attempt that hung puts its namespace behind one
whose attempts take 0.1 s for some three minutes."""


Place = tuple[str, str]
"""A namespace and a node; the node is empty if it is unknown, and has no share then."""


class Slot:
    """The right to one attempt."""

    def __init__(self, slots: Slots, place: Place) -> None:
        self._slots, self._place = slots, place
        self._loop = asyncio.get_running_loop()
        self._since, self._held = self._loop.time(), True
        self._timer: asyncio.TimerHandle | None = None

    def give_back_after(self, seconds: float, charge: float) -> None:
        """Give the slot back then, even if the attempt goes on; ``charge`` is what that costs."""
        self._timer = self._timer or self._loop.call_later(seconds, self._give_back, charge)

    def end(self) -> None:
        """The attempt is over."""
        if self._timer:
            self._timer.cancel()
        self._give_back(self._loop.time() - self._since)

    def _give_back(self, charge: float) -> None:
        if self._held:
            self._held = False
            self._slots.give_back(self._place, charge)


class Slots:
    """Gives out ``number`` slots; an attempt that holds one is charged ``expected`` seconds."""

    def __init__(self, number: int, expected: float) -> None:
        self._free, self._expected = number, expected
        self._of_node, self._of_namespace = max(1, number // 2), max(1, number // 4)
        self._waiting: dict[Place, deque[asyncio.Future[None]]] = {}
        self._held = Counter[Place]()
        # Slot time of namespaces and places, in seconds, and when it was that much.
        self._used: dict[str | Place, tuple[float, float]] = {}
        self._many = 0  # While there are fewer, none of them is forgotten.

    @asynccontextmanager
    async def take(self, namespace: str, node: str) -> AsyncGenerator[Slot]:
        """Hold a slot for a pod while the body runs."""
        place, turn = (namespace, node), asyncio.get_running_loop().create_future()
        self._waiting.setdefault(place, deque()).append(turn)
        self._give()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._leave(place, turn)
            else:
                self.give_back(place, 0.0)
            raise
        slot = Slot(self, place)
        try:
            yield slot
        finally:
            slot.end()

    def give_back(self, place: Place, charge: float) -> None:
        """A slot is free."""
        self._free += 1
        self._held -= Counter((place,))
        self._charge(place, charge - self._expected)
        self._give()
        self._forget()

    def _give(self) -> None:
        """Give free slots to those whose turn it is."""
        while self._free and (place := self._next()):
            turn = self._waiting[place][0]
            self._leave(place, turn)
            if turn.cancelled():
                continue
            self._free -= 1
            self._held[place] += 1
            self._charge(place, self._expected)
            turn.set_result(None)

    def _leave(self, place: Place, turn: asyncio.Future[None]) -> None:
        """Somebody waits no more."""
        turns = self._waiting.get(place)
        if turns and turn in turns:
            turns.remove(turn)
            if not turns:
                del self._waiting[place]

    def _next(self) -> Place | None:
        """The place whose turn it is; None if nobody may have a slot now."""
        now = asyncio.get_running_loop().time()
        of_namespace, on_node = Counter[str](), Counter[str]()
        for (namespace, node), held in self._held.items():
            of_namespace[namespace] += held
            on_node[node] += held
        places = list[Place]()
        for namespace, node in self._waiting:
            if of_namespace[namespace] < self._of_namespace and (
                not node or on_node[node] < self._of_node
            ):
                if namespace not in self._used:  # No other can have used less.
                    return namespace, node
                places.append((namespace, node))
        # Of equals the first one comes first: it has waited longer.
        return min(
            places, key=lambda p: (self._lately(p[0], now), self._lately(p, now)), default=None
        )

    def _lately(self, key: str | Place, now: float) -> float:
        """Slot time that was used lately, in seconds."""
        used, as_of = self._used.get(key, (0.0, now))
        return used * 0.5 ** ((now - as_of) / HALF_LIFE)

    def _charge(self, place: Place, seconds: float) -> None:
        """Add to the slot time of a place and its namespace."""
        now = asyncio.get_running_loop().time()
        for key in (place[0], place):
            self._used[key] = max(0.0, self._lately(key, now) + seconds), now

    def _forget(self) -> None:
        """Forget those who are done and owe nothing, once they are many, or nobody is busy."""
        if (self._waiting or self._held) and len(self._used) < self._many:
            return
        now = asyncio.get_running_loop().time()
        busy = {*self._waiting, *self._held}
        kept = {*busy, *(namespace for namespace, _ in busy)}
        self._used = {
            key: used
            for key, used in self._used.items()
            if key in kept or (busy and self._lately(key, now) >= self._expected)
        }
        self._many = 2 * len(self._used)


async def end_tasks(tasks: Sequence[asyncio.Task[None]], patience: float) -> None:
    """Give tasks ``patience`` seconds to end, then cancel them in their order."""
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=patience)
        for task in tasks:
            if task in late:
                task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
