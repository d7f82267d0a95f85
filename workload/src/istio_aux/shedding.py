"""Load shedding: whose connection is closed where they are too many."""

from __future__ import annotations

import asyncio
import os
from collections import Counter, OrderedDict
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TypeVar

CONNECTION = 64 << 10  # Bytes that a connection takes with TLS, HTTP and their buffers: 58 KiB.
ADDRESSES = 1024  # Those that were answered last.
OLDEST = 8  # Connections that have waited longest, of which one is closed.


def available_memory(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many bytes this process may use: the limit of its container, or all there are."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # Of version 2, and of version 1.
        with suppress(OSError, ValueError):  # Without a limit it is "max".
            limits.append(int((cgroup / name).read_text()))
    return min(limits)


class Peer:
    """A connection: where it comes from, and what it costs."""

    address = ""
    held = 0  # Bytes of its request that have arrived, or of its last answer.
    answered = False
    turn: asyncio.Future[None] | None = None  # What its request waits for, if for anything.


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
        self._number, self._held = [0, 0], [0, 0]  # Of others, and of those that were answered.
        self._lately = OrderedDict[str, None]()  # Addresses that were answered.

    def add(self, peer: P) -> None:
        """Add a connection; it has waited least."""
        self[peer] = None
        self._number[peer.answered] += 1
        self._held[peer.answered] += peer.held

    def remove(self, peer: P) -> None:
        """Remove a connection that is open."""
        del self[peer]
        self._number[peer.answered] -= 1
        self._held[peer.answered] -= peer.held

    def hold(self, peer: P, held: int) -> None:
        """Count what it holds now."""
        if peer in self:
            self._held[peer.answered] += held - peer.held
        peer.held = held

    def proceed(self, peer: P) -> None:
        """It has made progress: it is connected, or a request has begun. It goes to the end."""
        if peer in self:
            self.move_to_end(peer)

    def answer(self, peer: P) -> None:
        """It was answered, and so was its address."""
        self._lately[peer.address] = None
        self._lately.move_to_end(peer.address)
        if len(self._lately) > ADDRESSES:
            self._lately.popitem(last=False)
        if peer in self:
            self.remove(peer)
            peer.answered = True
            self.add(peer)

    def surplus(self) -> P | None:
        """Return a connection to close; None: there is room for all.

        Of the strangers that have waited longest, it is one of the address that has most of these.
        """
        for answered in (False, True):
            if self._number[answered] > self._most or self._held[answered] > self._memory:
                same = [peer for peer in self if peer.answered is answered]
                strangers = (peer for peer in same if peer.address not in self._lately)
                few = [*islice(strangers, OLDEST)]
                number = Counter(peer.address for peer in few)
                return max(few, key=lambda peer: number[peer.address], default=same[0])
        return None
