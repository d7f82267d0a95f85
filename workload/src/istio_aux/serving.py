"""Who may be connected: both ports accept in the same way, and strangers cannot use them up.

Only connections may live here; what is said on one is for its protocol. A client that reaches a
port can open connections faster than anything else is done. So one that has said nothing costs a
descriptor and no more, and a new one is never refused: when there are too many, one goes of the
address that has the most, and of those the one that has been silent longest.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar, cast

from aiohttp import web

from istio_aux.telemetry import Closed

_log = logging.getLogger(__name__)

BACKLOG = 4096
"""Connections. The API server opens one for each review above 25 at once, in bursts."""
AT_ONCE = 64
"""Connections taken before everything else has its turn; the others wait in the kernel."""
PAUSE = 0.1
"""Seconds without accepting when the process has no descriptor left."""
SWEEP = 0.5
"""Seconds between looks at the deadlines of strangers."""


def raise_descriptors() -> None:
    """Use as many descriptors as the process may have; 1,024 is a limit for programs of 1990."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # What we have must do.
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def room(wanted: int, share: int) -> int:
    """How many connections there may be of ``wanted``: the ``share``-th part of the descriptors."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, descriptors // share))


class Peer(Protocol):
    """Whatever has an address at its other end."""

    @property
    def address(self) -> str:
        """The IP address."""
        ...


T = TypeVar("T", bound=Peer)


class Crowd(Generic[T]):
    """Connections by address, the oldest of each first."""

    def __init__(self) -> None:
        self._by_address: dict[str, dict[T, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, one: T) -> None:
        """Take one that is not in it."""
        self._by_address.setdefault(one.address, {})[one] = None
        self._count += 1

    def discard(self, one: T) -> None:
        """Let it go if it is in it."""
        if (same := self._by_address.get(one.address)) and one in same:
            del same[one]
            self._count -= 1
            if not same:
                del self._by_address[one.address]

    def __iter__(self) -> Iterator[T]:
        for same in self._by_address.values():
            yield from same

    def most(self) -> Collection[T]:
        """Those of the address that has the most, in the order in which they came."""
        return max(self._by_address.values(), key=len, default=())


class Guest:
    """A connection from its beginning to its end, as its protocol and the `Door` share it.

    Attributes:
        address: the peer's.
        since: when it was accepted (monotonic, in seconds).
        end: ends it at once.
    """

    def __init__(self, door: Door, connection: socket.socket, address: str) -> None:
        self.address = address
        self.since = time.monotonic()
        self._door, self._connection = door, connection
        self._due: Closed | None = None
        self.end: Callable[[Closed], None] = self._end_in_silence

    def known(self) -> None:
        """It has shown that it can speak: neither strangers nor their deadline concern it now."""
        self._door.strangers.discard(self)

    def gone(self) -> None:
        """It is closed."""
        self._door.forget(self)
        self.end = _nothing  # The way to its protocol: a circle that only the collector would find.

    def speaks(self) -> None:
        """The loop: there is something to read, or its end."""
        self._door.loop.remove_reader(self._connection)
        try:
            said = self._connection.recv(1, socket.MSG_PEEK)
        except OSError:
            said = b""
        if said:
            self.end = self._end_soon
            self._door.welcome(self)
        else:
            self._end_in_silence(Closed.PEER)

    async def connect(self, protocol: Callable[[Guest], asyncio.BaseProtocol]) -> None:
        """Let a protocol have the connection."""
        loop = self._door.loop
        await loop.connect_accepted_socket(lambda: protocol(self), self._connection)
        if self._due:
            self.end(self._due)

    def _end_soon(self, why: Closed) -> None:
        """Between silence and a protocol the socket is asyncio's."""
        self._due = why

    def _end_in_silence(self, why: Closed) -> None:
        self._door.loop.remove_reader(self._connection)
        self._connection.close()
        self._door.ended(why)
        self.gone()


def _nothing(_why: Closed) -> None:
    """What is left to end of a connection that is closed."""


class Door:
    """Where connections come in, by one port.

    Attributes:
        silent: those that have not said a word; there is no protocol for them yet.
        strangers: those that have, but are not `Guest.known`.
        ended: is told why, of each connection that ends without a protocol.
    """

    def __init__(
        self,
        protocol: Callable[[Guest], asyncio.BaseProtocol],
        strangers: int,
        patience: float,
        ended: Callable[[Closed], None] = lambda _: None,
    ) -> None:
        """Give each connection a ``protocol``, which must set `Guest.end` and call `Guest.gone`.

        At most so many ``strangers``, silent ones among them, for ``patience`` seconds each.
        """
        self.silent, self.strangers = Crowd[Guest](), Crowd[Guest]()
        self.ended = ended
        self._protocol, self._room, self._patience = protocol, strangers, patience
        self._guests: set[Guest] = set()
        self._listening: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._none = asyncio.Event()
        self.loop: asyncio.AbstractEventLoop

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Accept at ``host`` (empty: every address) and ``port`` (0: any); returns where that is.

        Raises:
            OSError: the port cannot be had.
        """
        self.loop = asyncio.get_running_loop()
        server = await self.loop.create_server(
            asyncio.Protocol, host or None, port, reuse_address=True, start_serving=False
        )
        # asyncio binds; but its way to accept has no bound, and one traceback for each failure.
        self._listening = [one.dup() for one in server.sockets]
        server.close()
        for one in self._listening:
            one.setblocking(False)
            one.listen(BACKLOG)
            self.loop.add_reader(one, self._accept, one)
        self._sweep()
        return self._listening[0].getsockname()[:2]

    def close(self) -> None:
        """Take those that wait in the kernel, which would be reset, and no more."""
        while self._listening:
            one = self._listening.pop()
            for _ in range(BACKLOG // AT_ONCE):
                self._accept(one)
            self.loop.remove_reader(one)
            one.close()

    async def empty(self, patience: float) -> None:
        """Return when all are gone; after ``patience`` seconds they are ended."""
        try:
            async with asyncio.timeout(patience):
                while self._guests:
                    self._none.clear()
                    await self._none.wait()
        except TimeoutError:
            for guest in tuple(self._guests):
                guest.end(Closed.DRAIN)
        self._timer.cancel()
        await asyncio.sleep(0)  # asyncio tells of a closed connection one turn later.

    def welcome(self, guest: Guest) -> None:
        """Let a guest who has spoken have a protocol."""
        self.silent.discard(guest)
        self.strangers.add(guest)
        task = self.loop.create_task(guest.connect(self._protocol))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def forget(self, guest: Guest) -> None:
        """Let go of one who is gone."""
        self.silent.discard(guest)
        self.strangers.discard(guest)
        self._guests.discard(guest)
        if not self._guests:
            self._none.set()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(AT_ONCE):
            try:
                connection, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # No descriptor, or no memory.
                _log.warning("no connection: %s", error, extra={"event": "connection"})
                self._make_room(0)
                self.loop.remove_reader(listening)
                self.loop.call_later(PAUSE, self._accept_again, listening)
                return
            connection.setblocking(False)
            guest = Guest(self, connection, address[0])
            self._guests.add(guest)
            self.silent.add(guest)
            self.loop.add_reader(connection, guest.speaks)
            self._make_room(self._room)

    def _accept_again(self, listening: socket.socket) -> None:
        if listening in self._listening:
            self.loop.add_reader(listening, self._accept, listening)

    def _make_room(self, room: int) -> None:
        if len(self.silent) + len(self.strangers) > room:
            first = next(iter(self.silent.most() or self.strangers.most()))
            self.forget(first)
            first.end(Closed.LIMIT)

    def _sweep(self) -> None:
        self._timer = self.loop.call_later(SWEEP, self._sweep)
        due = time.monotonic() - self._patience
        for guest in [one for one in (*self.silent, *self.strangers) if one.since <= due]:
            guest.end(Closed.HANDSHAKE)


class OneRequest(web.RequestHandler):
    """Plain HTTP: a stranger from beginning to end, which comes again for its next request."""

    def __init__(self, server: web.Server, guest: Guest) -> None:
        quiet: dict[str, Any] = {"access_log": None}
        super().__init__(server, loop=asyncio.get_running_loop(), **quiet)
        self._guest = guest

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the client has said something."""
        super().connection_made(transport)
        self._guest.end = lambda _: cast("asyncio.Transport", transport).abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        """asyncio: it is closed."""
        super().connection_lost(exc)
        self._guest.gone()
