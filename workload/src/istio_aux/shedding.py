"""Load shedding: whose request is next, and whose connection is closed where they are too many."""

from __future__ import annotations

import ctypes
import os
from collections import Counter, OrderedDict
from collections.abc import Collection
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Protocol, TypeVar

CONNECTION = 64 << 10  # Bytes that a connection takes with TLS, HTTP and their buffers: 58 KiB.
ADDRESSES = 1024  # Those that were answered last.
SHARE = 0.1  # Of the last request, in how long the requests of an address take.
_NEW = 0.0, inf  # What is known of an address that was not.
OLDEST = 8  # Connections that have waited longest, of which one is closed.


def available_memory(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many bytes this process may use: the limit of its container, or all there are."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # Of version 2, and of version 1.
        with suppress(OSError, ValueError):  # Without a limit it is "max".
            limits.append(int((cgroup / name).read_text()))
    return min(limits)


def give_back_memory() -> None:
    """Give free memory back to the system. glibc does it only when asked, in 25 to 90 ms."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


class Peer(Protocol):
    """What `Connections` reads of a connection."""

    address: str  # Where it comes from.
    took: float  # Seconds of CPU that its last request took.
    held: int  # Bytes that it has sent and that were not answered yet.
    answered: bool


P = TypeVar("P", bound=Peer)


class Connections(OrderedDict[P, None]):
    """The open connections of a port; the first one has waited longest.

    A connection that was answered is closed only for another one that was. Of the others, strangers
    go first: connections from addresses that were not answered lately.
    """

    def __init__(self, most: int, memory: int) -> None:
        """Allow ``most`` connections and ``memory`` bytes to the answered, and to the others."""
        super().__init__()
        self._most, self._memory = most, memory
        # Those that were answered lately: how long their requests take, how many were before them.
        self._lately = OrderedDict[str, tuple[float, float]]()
        self._seen, self._rule, self._spent = 0, 0, [0.0, 0.0, 0.0]  # See `turn`.

    def proceed(self, peer: P) -> None:
        """It has made progress: it is connected, or a request has begun. It goes to the end."""
        if peer in self:
            self.move_to_end(peer)

    def answer(self, peer: P) -> None:
        """It was answered, and so was its address."""
        self._seen += peer.address not in self._lately
        takes, seen = self._lately.pop(peer.address, (peer.took, self._seen))
        self._lately[peer.address] = takes + SHARE * (peer.took - takes), seen
        if len(self._lately) > ADDRESSES:
            self._lately.popitem(last=False)
        peer.answered = True
        self.proceed(peer)

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

    def surplus(self) -> P | None:
        """Return a connection to close; None: there is room for all.

        Of the strangers that have waited longest, it is one of the address that has most of these.
        """
        for answered in (False, True):
            peers = [peer for peer in self if peer.answered is answered]
            if len(peers) > self._most or sum(peer.held for peer in peers) > self._memory:
                few = [peer for peer in peers if peer.address not in self._lately][:OLDEST]
                number = Counter(peer.address for peer in few)
                return max(few, key=lambda peer: number[peer.address], default=peers[0])
        return None
