"""Whose review, or step of a handshake, is worked on next.

One is worked on in a turn of the event loop, and after one that took long some turns have none. In
each all sockets are read, so that the next one is chosen among all.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Container, Mapping
from contextlib import asynccontextmanager
from itertools import count
from math import inf
from typing import TypeVar

from istio_aux.serving import ADDRESSES, Peer

PROMPT, PAUSES = 0.0005, 20
"""Seconds of work for each turn of the event loop without any, and the most of these turns. A
handshake and a request need a dozen."""
SHARE = 0.1  # Of the last review, in how long those of an address take.

K = TypeVar("K")


class Turns:
    """Reviews, and steps of handshakes, that wait for their turn."""

    def __init__(self, known: Container[str] = ()) -> None:
        """``known`` are addresses of API servers."""
        self._known = known
        self._waiting: dict[asyncio.Future[None], str] = {}  # With the address of each.
        self._passing: asyncio.Task[None] | None = None
        self._pauses = 0
        # Of each address: how long its reviews take, and how many addresses were before it.
        self._lately = OrderedDict[str, tuple[float, float]]()
        self._number = count()
        self._rule, self._spent = 0, [0.0, 0.0, 0.0]

    @asynccontextmanager
    async def turn(self, peer: Peer, *, review: bool = False) -> AsyncGenerator[None]:
        """Wait until ``peer`` may be worked for; the context has no other wait."""
        turn = peer.turn = asyncio.get_running_loop().create_future()
        self._waiting[turn] = peer.address
        if not self._passing or self._passing.done():
            self._passing = asyncio.create_task(self._pass())
        try:
            await turn
        finally:
            self._waiting.pop(turn, None)  # It is there yet if its client has left.
        began = time.thread_time()  # Not what other processes took meanwhile.
        try:
            yield
        finally:
            # No review takes longer; garbage may have been collected meanwhile.
            took = min(time.thread_time() - began, PAUSES * PROMPT)
            self._pauses = int(took / PROMPT)
            self.spend(peer.address, took, review=review)

    def choose(self, waiting: Mapping[K, str]) -> K:
        """Return whose turn it is, of those that wait and their addresses, the oldest one first.

        Three rules have a third of the time each. It is the one that has waited longest: many cheap
        ones delay none for long. It is of the address whose reviews take least. It is of an API
        server, or of the address that was there before all others, as before there is an attack.
        Equal shares would not do: an API server has one address, an attacker as many as pods.
        """
        self._rule = self._spent.index(min(self._spent))
        if self._rule == 0:
            return next(iter(waiting))
        return min(
            waiting,
            key=lambda each: (
                self._rule == 2 and waiting[each] not in self._known,
                self._lately.get(waiting[each], (PROMPT, inf))[self._rule - 1],
            ),
        )

    def spend(self, address: str, seconds: float, *, review: bool = True) -> None:
        """What was chosen took so long; what reviews of its ``address`` take is remembered."""
        self._spent[self._rule] += seconds
        if review:
            takes, number = self._lately.pop(address, (seconds, next(self._number)))
            self._lately[address] = takes + SHARE * (seconds - takes), number
            if len(self._lately) > ADDRESSES:
                self._lately.popitem(last=False)

    async def _pass(self) -> None:
        while self._waiting:
            turn = self.choose(self._waiting)
            del self._waiting[turn]
            self._pauses = 0
            if not turn.done():  # Else its client has left in this turn of the event loop.
                turn.set_result(None)
            await asyncio.sleep(0)  # It is worked on.
            for _ in range(self._pauses):
                await asyncio.sleep(0)
