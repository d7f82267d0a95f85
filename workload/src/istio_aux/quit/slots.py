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
from dataclasses import dataclass, field
from typing import TypeVar

HALF_LIFE = 30.0
"""Seconds after which slot time counts half. An attempt that hung puts its namespace behind one
whose attempts take 0.1 s for some three minutes."""


@dataclass(slots=True)
class _Share:
    """The attempts of a namespace, or those on one of its nodes."""

    waiting: int = 0
    held: int = 0
    _used: float = 0.0
    _as_of: float = 0.0

    @property
    def idle(self) -> bool:
        """Whether nobody waits or holds a slot."""
        return not (self.waiting or self.held)

    def used(self, now: float) -> float:
        """Slot time that was used lately, in seconds."""
        return self._used * 0.5 ** ((now - self._as_of) / HALF_LIFE)

    def charge(self, seconds: float, now: float) -> None:
        """Add to that, or take from it."""
        self._used, self._as_of = max(0.0, self.used(now) + seconds), now


@dataclass(slots=True)
class _NodeQueue(_Share):
    """Those who wait for an attempt on one node."""

    turns: deque[asyncio.Future[None]] = field(default_factory=deque[asyncio.Future[None]])


@dataclass(slots=True)
class _Namespace(_Share):
    queues: dict[str, _NodeQueue] = field(default_factory=dict[str, _NodeQueue])


S = TypeVar("S", bound=_Share)


class Slot:
    """The right to one attempt."""

    def __init__(self, slots: Slots, namespace: str, node: str) -> None:
        self._slots, self._of = slots, (namespace, node)
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
            self._slots.give_back(*self._of, charge)


class Slots:
    """Gives out ``number`` slots; an attempt that holds one is charged ``expected`` seconds."""

    def __init__(self, number: int, expected: float) -> None:
        self._free, self._expected = number, expected
        self._of_node, self._of_namespace = max(1, number // 2), max(1, number // 4)
        self._namespaces: dict[str, _Namespace] = {}
        self._on_nodes = Counter[str]()  # Slots that are held, whatever the namespace.

    @asynccontextmanager
    async def take(self, namespace: str, node: str) -> AsyncGenerator[Slot]:
        """Hold a slot for a pod while the body runs; ``node`` is empty if it is unknown."""
        turn = asyncio.get_running_loop().create_future()
        queues = self._join(self._namespaces, namespace, _Namespace()).queues
        queue = self._join(queues, node, _NodeQueue())
        queue.turns.append(turn)
        self._count(namespace, node, waiting=1)
        self._give()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self.give_back(namespace, node, 0.0)
            elif turn in queue.turns:
                queue.turns.remove(turn)
                self._count(namespace, node, waiting=-1)
            raise
        slot = Slot(self, namespace, node)
        try:
            yield slot
        finally:
            slot.end()

    def give_back(self, namespace: str, node: str, charge: float) -> None:
        """A slot is free."""
        self._free += 1
        self._on_nodes[node] -= 1
        if not self._on_nodes[node]:
            del self._on_nodes[node]
        self._count(namespace, node, held=-1, charge=charge - self._expected)
        self._give()

    def _give(self) -> None:
        """Give free slots to those whose turn it is."""
        while self._free and (found := self._next()):
            turn = self._namespaces[found[0]].queues[found[1]].turns.popleft()
            if turn.cancelled():
                self._count(*found, waiting=-1)
                continue
            self._free -= 1
            self._on_nodes[found[1]] += 1
            self._count(*found, waiting=-1, held=1, charge=self._expected)
            turn.set_result(None)

    def _next(self) -> tuple[str, str] | None:
        """The namespace and the node whose turn it is; None if nobody may have a slot now."""
        now = asyncio.get_running_loop().time()

        def used(entry: tuple[str, _Share]) -> float:
            return entry[1].used(now)

        # Of equals the first one comes first: it has waited longer.
        for name, share in sorted(self._namespaces.items(), key=used):
            if share.waiting and share.held < self._of_namespace:
                may = [
                    each
                    for each in share.queues.items()
                    if each[1].turns and self._free_on(each[0])
                ]
                if may:
                    return name, min(may, key=used)[0]
        return None

    def _free_on(self, node: str) -> bool:
        """An unknown node has no share of its own."""
        return not node or self._on_nodes[node] < self._of_node

    def _count(
        self, namespace: str, node: str, *, waiting: int = 0, held: int = 0, charge: float = 0.0
    ) -> None:
        """Note a change, and forget those who are done and owe nothing."""
        now = asyncio.get_running_loop().time()
        of_namespace = self._namespaces[namespace]
        for share in (of_namespace, of_namespace.queues[node]):
            share.waiting += waiting
            share.held += held
            share.charge(charge, now)
        self._forget(of_namespace.queues, node, now)
        self._forget(self._namespaces, namespace, now)
        if all(share.idle for share in self._namespaces.values()):
            self._namespaces.clear()

    def _forget(self, shares: dict[str, S], name: str, now: float) -> None:
        share = shares[name]
        if share.idle and share.used(now) < self._expected:
            del shares[name]

    def _join(self, shares: dict[str, S], name: str, new: S) -> S:
        """The share of that name. The idle ones whose debt is gone make room for a new one."""
        if name not in shares:
            now = asyncio.get_running_loop().time()
            for other in [*shares]:
                self._forget(shares, other, now)
            shares[name] = new
        return shares[name]


async def end_tasks(tasks: Sequence[asyncio.Task[None]], patience: float) -> None:
    """Give tasks ``patience`` seconds to end, then cancel them in their order."""
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=patience)
        for task in tasks:
            if task in late:
                task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
