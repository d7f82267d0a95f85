"""Which review, or step of a TLS handshake, is handled next.

The event loop handles one in each iteration, and none in some iterations after a slow one. Every
iteration reads all sockets, so the next one is chosen among all that have arrived.
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
"""Each `PROMPT` seconds of work are followed by one iteration of the event loop without work, up to
`PAUSES` of them. A handshake and a request need a dozen iterations."""
SHARE = 0.1  # The weight of the last review in the average time of its address.

K = TypeVar("K")


class Turns:
    """Reviews, and steps of handshakes, that wait for their turn."""

    def __init__(self, known: Container[str] = ()) -> None:
        """``known`` are addresses of API servers."""
        self._known = known
        self._waiting: dict[asyncio.Future[None], str] = {}  # Each with its client's address.
        self._passing: asyncio.Task[None] | None = None
        self._pauses = 0
        # By address: how long its reviews take, and a number that grows with each address.
        self._lately = OrderedDict[str, tuple[float, float]]()
        self._number = count()
        self._rule, self._spent = 0, [0.0, 0.0, 0.0]

    @asynccontextmanager
    async def turn(self, peer: Peer, *, review: bool = False) -> AsyncGenerator[None]:
        """Wait until it is the turn of ``peer``; the body of the context awaits nothing."""
        turn = peer.turn = asyncio.get_running_loop().create_future()
        self._waiting[turn] = peer.address
        if not self._passing or self._passing.done():
            self._passing = asyncio.create_task(self._pass())
        try:
            await turn
        finally:
            self._waiting.pop(turn, None)  # The future is still there if its client has left.
        began = time.thread_time()  # CPU time, so other processes do not count.
        try:
            yield
        finally:
            # Capped: no review takes longer, but a garbage collection may have run.
            took = min(time.thread_time() - began, PAUSES * PROMPT)
            self._pauses = int(took / PROMPT)
            self.spend(peer.address, took, review=review)

    def choose(self, waiting: Mapping[K, str]) -> K:
        """Return whose turn it is; ``waiting`` has clients and addresses, the oldest first.

        Three rules get equal CPU time. The first chooses who has waited longest, so that many cheap
        reviews delay none for long. The second chooses the address whose reviews take least time.
        The third chooses API servers, then the address known longest: attackers come later. Equal
        shares of addresses would not do: an API server has one, an attacker as many as pods.
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
        """Charge the rule that chose last, and remember how long reviews of ``address`` take."""
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
            if not turn.done():  # Else its client has just left.
                turn.set_result(None)
            await asyncio.sleep(0)  # It is handled now.
            for _ in range(self._pauses):
                await asyncio.sleep(0)
