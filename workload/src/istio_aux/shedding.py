"""Load shedding: whose request is next, and whose connection is closed where they are too many.

A connection costs the memory that it takes: a fixed part, and what it sends. Every byte counts from
when it arrives, in a head, in a body or behind it (docs/decisions/0005).
"""

from __future__ import annotations

import ctypes
import os
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator
from contextlib import suppress
from itertools import islice
from math import inf
from pathlib import Path
from typing import Generic, Protocol, TypeVar

SILENT = 4 << 10
"""Bytes that a connection costs before it has sent anything. The numbers are measured."""
STARTED = 96 << 10
"""Bytes that it costs from then on: TLS, HTTP, and their buffers."""
COPIES = 2
"""Bytes that a byte costs: on its way to the body it is in several buffers."""
CHUNK = 128
"""Bytes that what arrives at once costs beside that: a client may send single bytes."""

ADDRESSES = 1024  # Those that were answered last.
SHARE = 0.1  # Of the last request, in how long the requests of an address take.
_NEW = 0.0, inf  # What is known of an address that was not.
OLDEST = 8  # Connections that have waited longest, of which one is closed.
TRIM = 16 << 20  # Bytes that have become free before they are given back.
PAUSE = 10.0  # Seconds between two times. Each took 25 to 90 ms on two busy cores.


def available_memory(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many bytes this process may use: the limit of its container, or all there are."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # Of version 2, and of version 1.
        with suppress(OSError, ValueError):  # Without a limit it is "max".
            limits.append(int((cgroup / name).read_text()))
    return min(limits)


class Peer(Protocol):
    """What `Connections` reads of a connection."""

    took: float  # Seconds of CPU that its last request took.

    @property
    def address(self) -> str:
        """Where it comes from."""
        ...


P = TypeVar("P", bound=Peer)


class _Queue(OrderedDict[P, int]):
    """Connections and what each costs; the one that has waited longest is the first."""

    total = 0

    def put(self, peer: P, cost: int) -> None:
        self.total += cost - self.get(peer, 0)
        self[peer] = cost

    def take(self, peer: P) -> int:
        cost = self.pop(peer)
        self.total -= cost
        return cost


class Connections(Generic[P]):
    """The open connections of a port.

    A connection that was answered is closed only for another one that was. Of the others, strangers
    go first: connections from addresses that were not answered lately.
    """

    def __init__(self, most: int, memory: int) -> None:
        """Allow ``most`` connections and ``memory`` bytes to the answered, and to the others."""
        self._most, self._memory = most, memory
        self._queues = _Queue[P](), _Queue[P](), _Queue[P]()
        self._strangers, self._known, self._answered = self._queues
        # Those that were answered lately: how long their requests take, how many were before them.
        self._lately = OrderedDict[str, tuple[float, float]]()
        self._seen, self._rule, self._spent = 0, 0, [0.0, 0.0, 0.0]  # See `turn`.
        self._highest, self._before, self._trimmed = 0, 0, 0.0

    @property
    def cost(self) -> int:
        """What all of them cost, in bytes."""
        return sum(queue.total for queue in self._queues)

    def __len__(self) -> int:
        return sum(map(len, self._queues))

    def __iter__(self) -> Iterator[P]:
        return iter([peer for queue in self._queues for peer in queue])

    def __contains__(self, peer: P) -> bool:
        return self._queue(peer) is not None

    def add(self, peer: P) -> None:
        """Add a connection that was just accepted."""
        (self._known if peer.address in self._lately else self._strangers).put(peer, SILENT)

    def charge(self, peer: P, cost: int) -> None:
        """Count what it costs now."""
        if (queue := self._queue(peer)) is not None:
            queue.put(peer, cost)
            self._highest = max(self._highest, self.cost)

    def proceed(self, peer: P) -> None:
        """It has made progress: it is connected, or a request has begun. It goes to the end."""
        if (queue := self._queue(peer)) is not None:
            queue.move_to_end(peer)

    def answer(self, peer: P) -> None:
        """It was answered, and so was its address."""
        if peer.address not in self._lately:
            for other in [other for other in self._strangers if other.address == peer.address]:
                self._known.put(other, self.remove(other))
            self._seen += 1
        takes, seen = self._lately.pop(peer.address, (peer.took, self._seen))
        self._lately[peer.address] = takes + SHARE * (peer.took - takes), seen
        if len(self._lately) > ADDRESSES:
            self._lately.popitem(last=False)
        if peer in self:
            self._answered.put(peer, self.remove(peer))

    def turn(self, waiting: Collection[P]) -> P:
        """Return whose request is worked on next; the first one has waited longest.

        Three rules have a third of the time each. It is the one that has waited longest: many cheap
        ones delay none for long. It is of the address whose requests take least. It is of the one
        that was answered before all others, as that of an API server is before there is an attack.
        Equal shares would not do: an API server has one address, an attacker as many as pods.
        """
        self._rule = self._spent.index(min(self._spent))
        if self._rule == 0:
            return next(iter(waiting))
        return min(waiting, key=lambda peer: self._lately.get(peer.address, _NEW)[self._rule - 1])

    def spend(self, seconds: float) -> None:
        """The last turn took so long."""
        self._spent[self._rule] += seconds

    def remove(self, peer: P) -> int:
        """Remove a connection that is open; returns what it cost."""
        queue = self._queue(peer)
        assert queue is not None, peer
        return queue.take(peer)

    def surplus(self) -> P | None:
        """Return a connection to close; None: there is room for all."""
        if self._is_full(self._strangers, self._known):
            return self._newcomer()
        return next(iter(self._answered)) if self._is_full(self._answered) else None

    def trim(self, now: float) -> None:
        """Give memory back to the system when much has become free, and no more becomes free.

        glibc keeps what lies below a block in use. Other C libraries have no such function.
        """
        settled, self._before = self.cost >= self._before, self.cost
        if self._highest - self.cost > TRIM and settled and now - self._trimmed > PAUSE:
            self._highest, self._trimmed = self.cost, now
            if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
                trim(0)

    def _queue(self, peer: P) -> _Queue[P] | None:
        return next((queue for queue in self._queues if peer in queue), None)

    def _is_full(self, *queues: _Queue[P]) -> bool:
        cost = sum(queue.total for queue in queues)
        return sum(map(len, queues)) > self._most or cost > self._memory

    def _newcomer(self) -> P:
        """Of the few that waited longest, the first of the address that has most of these."""
        few = [*islice(self._strangers or self._known, OLDEST)]
        number = Counter(peer.address for peer in few)
        return max(few, key=lambda peer: number[peer.address])
