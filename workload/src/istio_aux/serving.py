"""HTTP and HTTPS for both ports: asyncio accepts and does TLS, aiohttp parses and runs the handler.

Neither limits connections, slow requests, or the bytes of all clients together: this module does. A
new connection is never refused; if there are too many, another is closed (docs/decisions/0005).
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import resource
import ssl
from asyncio import sslproto
from collections import Counter, OrderedDict
from collections.abc import Callable, Container
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from enum import StrEnum
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
from aiohttp import web

from istio_aux.model.text import one_line
from istio_aux.tasks import until

_log = logging.getLogger(__name__)

BACKLOG = 4096  # The API server opens a connection for each review above 25 at once, in bursts.
ACCEPTS = 4  # Connections accepted in one turn of the event loop.
BUFFER = 32 << 10  # Bytes that aiohttp, and asyncio's TLS, buffer before they pause reading.
CONNECTION = 64 << 10  # Bytes that a connection takes with TLS, HTTP and their buffers: 58 KiB.
ADDRESSES = 1024  # Client addresses that are remembered: the last ones with a good answer.
FEWER = 128  # After so many closed connections call malloc_trim, which takes 25 to 90 ms.


class Closed(StrEnum):
    """Why a connection to the webhook ended."""

    PEER = "peer"  # The client closed it.
    HANDSHAKE = "handshake"  # The handshake failed or took too long.
    TIMEOUT = "timeout"  # A request took too long.
    REFUSED = "refused"  # A request was refused before its end.
    IDLE = "idle"
    LIMIT = "limit"  # There were too many connections.
    UNREAD = "unread"  # The client did not read its answers.
    DRAIN = "drain"  # The process stops.


class ServingLimits(msgspec.Struct, frozen=True, kw_only=True):
    """One budget for the clients that got a good answer, and an equal one for all others."""

    connections: int = 1024  # At most a quarter of all descriptors, and memory / `CONNECTION`.
    memory: int = 64 << 20  # Bytes of requests. At most a 16th of this process's limit.
    handshake: float = 10.0  # From accept on, as the API server (apimachinery util/net/http.go).
    request: float = 10.0  # From first byte to last; also for a client to read its answer.
    idle: float = 120.0  # More than the API server's 90 s: it does not repeat a POST that was cut.
    linger: float = 1.0  # From a last answer to the close. Unread bytes turn a close into a reset.
    sweep: float = 0.5  # Between two checks of all deadlines.


def available_memory(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many bytes this process may use: the limit of its container, or all there are."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # cgroup v2, then v1.
        with suppress(OSError, ValueError):  # Without a limit it is "max".
            limits.append(int((cgroup / name).read_text()))
    return min(limits)


class Peer:
    """A connection: where it comes from, and what it costs."""

    address = ""
    held = 0  # Bytes of its request that have arrived, or of its last answer.
    answered = False
    turn: asyncio.Future[None] | None = None  # The future for which its request waits, if any.


P = TypeVar("P", bound=Peer)


class Connections(OrderedDict[P, None]):
    """The open connections of a port; the first one has waited longest.

    A connection is answered once it got a good answer. An answered one is closed only to make room
    for another. Of each kind the one that has waited longest is closed, in this order: those of an
    address that has more than half of the room, of an address that got no good answer, of one that
    got a good answer lately, of an API server.
    """

    def __init__(self, most: int, memory: int, known: Container[str] = ()) -> None:
        """Allow ``most`` connections and ``memory`` bytes to the answered, as much to the others.

        ``known`` are addresses of API servers.
        """
        super().__init__()
        self._most, self._memory, self._known = most, memory, known
        self._number, self._held = [0, 0], [0, 0]  # Both are indexed by `Peer.answered`.
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
        """Count the bytes that a connection holds now."""
        if peer in self:
            self._held[peer.answered] += held - peer.held
        peer.held = held

    def answer(self, peer: P) -> None:
        """Move a connection to the budget of answered clients, and remember its address."""
        self._lately[peer.address] = None
        self._lately.move_to_end(peer.address)
        if len(self._lately) > ADDRESSES:
            self._lately.popitem(last=False)
        if peer in self:
            self.remove(peer)
            peer.answered = True
            self.add(peer)

    def surplus(self) -> P | None:
        """Return the next connection to close; None: there is room for all."""
        for answered in (False, True):
            if self._number[answered] > self._most or self._held[answered] > self._memory:
                same = [peer for peer in self if peer.answered is answered]
                [(most, number)] = Counter(peer.address for peer in same).most_common(1)
                if number > self._most / 2 and most not in self._known:
                    same = [peer for peer in same if peer.address == most]
                return min(
                    same,
                    key=lambda peer: (peer.address in self._known, peer.address in self._lately),
                )
        return None


class Connection(web.RequestHandler, Peer):
    """One connection from accept to close."""

    why: Closed | None = None  # Why it ends, once that is known.

    def __init__(self, listener: Listener) -> None:
        super().__init__(
            listener.server,
            loop=listener.loop,
            access_log=cast("Any", None),
            lingering_time=listener.limits.linger,
            auto_decompress=False,  # A few bytes of gzip can be gigabytes.
            max_line_size=4096,
            max_field_size=4096,
            max_headers=32,  # aiohttp allows 2 MiB.
            read_bufsize=BUFFER,
        )
        self.listener = listener
        self.wait("handshake")

    def wait(self, waits_for: str) -> None:
        """Begin a wait, whose timeout is the field ``waits_for`` of `ServingLimits`."""
        self.waits_for, self.since = waits_for, self._loop.time()
        if self in self.listener.connections:  # `connections` is in the order of the waits.
            self.listener.connections.move_to_end(self)

    def accepted(self, connection: asyncio.Transport) -> None:
        """TCP is connected."""
        self._socket, self.address = connection, connection.get_extra_info("peername")[0]
        self.listener.connections.add(self)
        self.listener.make_room()

    def connection_made(self, transport: Any) -> None:
        """asyncio: the handshake is done, or there is none."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(BUFFER)
        if self.listener.context:
            transport.set_read_buffer_limits(BUFFER)
        else:
            self.accepted(transport)
        self.wait("idle")

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes arrived. aiohttp calls this without bytes to parse those in its buffer."""
        if data and not self.why:  # Bytes after the last answer are dropped.
            if self.waits_for == "idle":
                self.wait("request")
            self.listener.connections.hold(self, self.held + len(data))
            self.listener.make_room()
        if self.waits_for != "linger":  # `make_room` may just have closed it.
            super().data_received(data)
        if self._messages and (error := getattr(self._messages[-1][0], "exc", None)):
            error.with_traceback(None)  # Its frames would keep the connection until a full GC.
            self.refused(400, one_line(f"no HTTP/1.1: {error.message}"))

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """aiohttp: the request failed. Log that, unless the client left or sent no HTTP."""
        if not self.why:
            super().log_exception(*args, **kw)
        kw["exc_info"].with_traceback(None)  # The request would keep the exception's frames.

    def refused(self, status: int, text: str) -> None:
        """Count a request that is refused. Its answer is the last one."""
        if not self.why:
            self.listener.refused(status, text)
            self.why = Closed.REFUSED

    def finish(self, response: web.StreamResponse) -> web.StreamResponse:
        """Return the answer to a request, perhaps the last one."""
        # If a next request has come already, its bytes stay counted: the client may never read.
        if not self._messages:
            self.listener.connections.hold(self, response.content_length or 0)
        if response.status < HTTPStatus.BAD_REQUEST:
            self.listener.connections.answer(self)
        self.listener.make_room()
        if self.listener.draining:
            self.why = self.why or Closed.DRAIN
        if self.why:
            response.force_close()
        return response

    def expire(self) -> None:
        """End what has taken too long."""
        if self.writing_paused or self.waits_for not in {"idle", "request"}:
            self.end(Closed.UNREAD if self.writing_paused else Closed.HANDSHAKE)
        elif self.waits_for == "idle":
            self.say_last(Closed.IDLE)
        else:
            self.say_last(
                Closed.TIMEOUT,
                408,
                f"no complete request in {self.listener.limits.request:g} s",
            )

    def say_last(self, why: Closed, status: int = 503, text: str = "closed, try again") -> None:
        """Write a last answer; close when the client does, or after `ServingLimits.linger`.

        client-go repeats a review that was answered with 503, but none whose connection was closed.
        """
        if self.waits_for == "request" and not self.why:
            self.listener.refused(status, text)
        if self.transport and self.waits_for != "linger":
            self.transport.write(
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nConnection: close\r\n"
                f"Retry-After: 1\r\nContent-Length: {len(text) + 1}\r\n\r\n{text}\n".encode()
            )
            self.why = self.why or why
            self.wait("linger")

    def end(self, why: Closed) -> None:
        """Close the connection now; an earlier reason stays."""
        self.why = self.why or why
        self._socket.abort()
        self.connection_lost(None)

    def connection_lost(self, exc: BaseException | None) -> None:
        """asyncio: the connection is closed."""
        if not self.why:
            self.why = Closed.HANDSHAKE if self.waits_for == "handshake" else Closed.PEER
            if isinstance(exc, ssl.SSLError):  # The client may not trust the certificate.
                _log.warning(
                    "%s: %s",
                    self.address,
                    exc,
                    extra={"event": "connection", "outcome": self.why},
                )
            if self.waits_for == "request":
                self.listener.refused(400, "the client left before the request was complete")
        if self in self.listener.connections:
            self.listener.connections.remove(self)
            self.listener.closed(self.why)
        if self.turn:  # The waiting request would keep its body.
            self.turn.cancel()
        super().connection_lost(exc)


class _Tls(sslproto.SSLProtocol):
    """asyncio's TLS with a smaller buffer; it tells `Connection` when TCP begins and ends."""

    max_size = BUFFER  # By default asyncio allocates 256 KiB for each connection.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("Connection", self._app_protocol).accepted(cast("asyncio.Transport", transport))
        if not transport.is_closing():  # `make_room` may have closed it.
            super().connection_made(cast("Any", transport))

    def buffer_updated(self, nbytes: int) -> None:
        """asyncio: bytes arrived. A handshake step costs as much as a review, so it waits its turn.

        Reading is paused meanwhile, so that `_ssl_buffer` is not written again.
        """
        connection = cast("Connection", self._app_protocol)
        if connection.waits_for == "handshake":
            cast("asyncio.Transport", self._transport).pause_reading()
            self._step = asyncio.create_task(self._shake(connection, nbytes))
        else:
            super().buffer_updated(nbytes)

    async def _shake(self, connection: Connection, nbytes: int) -> None:
        async with connection.listener.turn(connection):
            super().buffer_updated(nbytes)
        if self._transport:  # Else the handshake has failed.
            cast("asyncio.Transport", self._transport).resume_reading()

    def connection_lost(self, exc: BaseException | None) -> None:
        connection = cast("Connection", self._app_protocol)
        super().connection_lost(exc)
        connection.connection_lost(exc)
        if exc:  # Its frames would keep the connection until a garbage collection.
            exc.with_traceback(None)


class Listener:
    """One port, its connections and their limits; while ``draining``, each answer is the last."""

    def __init__(
        self,
        server: web.Server,
        limits: ServingLimits,
        context: Callable[[], ssl.SSLContext] | None = None,
        closed: Callable[[Closed], None] = lambda _why: None,
        refused: Callable[[int, str], None] = lambda _status, _text: None,
        *,
        turn: Callable[[Peer], AbstractAsyncContextManager[None]] = lambda _peer: nullcontext(),
        known: Container[str] = (),
    ) -> None:
        """Let ``server`` answer; ``context`` returns the TLS context of a new handshake.

        ``closed`` gets why a connection ended; ``refused`` status and text of each error answer.
        ``turn`` is entered for each step of a handshake. ``known`` are addresses of API servers.
        """
        self.server, self.limits, self.context = server, limits, context
        self.closed, self.refused, self.turn, self.draining = closed, refused, turn, False
        self.loop = asyncio.get_running_loop()
        self._handler, server.request_handler = server.request_handler, self._handle
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)  # Others need some, too.
        some = descriptors // 4 if descriptors != resource.RLIM_INFINITY else limits.connections
        memory = min(limits.memory, available_memory() // 16)
        self.connections = Connections[Connection](
            max(1, min(limits.connections, some, memory // CONNECTION)),
            memory,
            known,
        )
        self._before = 0  # The most connections since the last malloc_trim.

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Accept at ``host`` (empty: all) and ``port`` (0: any); returns both; raises OSError."""
        self._server = await self.loop.create_server(self._new, host or None, port, backlog=ACCEPTS)
        for listening in self._server.sockets:
            with listening.dup() as same:  # asyncio takes one number for `BACKLOG` and `ACCEPTS`.
                same.listen(BACKLOG)
        self._sweep()
        return self._server.sockets[0].getsockname()[:2]

    def _new(self) -> asyncio.BaseProtocol:
        connection = Connection(self)
        return (
            _Tls(
                self.loop,
                connection,
                self.context(),
                cast("Any", None),
                server_side=True,
                ssl_shutdown_timeout=self.limits.request,
            )
            if self.context
            else connection
        )

    async def close(self, patience: float) -> None:
        """Accept no more, close idle connections, and after ``patience`` seconds all others."""
        self.draining = True
        for _ in range(BACKLOG // ACCEPTS):  # The kernel would reset what waits in the backlog.
            await asyncio.sleep(0)
        for listening in self._server.sockets:
            self.loop.remove_reader(listening)
        await asyncio.sleep(0)  # asyncio forgets what it accepts meanwhile (cpython#109564).
        self._server.close()
        for connection in [*self.connections]:
            if connection.waits_for == "idle":
                connection.say_last(Closed.DRAIN)
        await until(lambda: not self.connections, patience)
        for connection in [*self.connections]:
            connection.end(Closed.DRAIN)
        self._timer.cancel()
        await asyncio.sleep(0.01)  # asyncio and aiohttp close them in later iterations.

    def make_room(self) -> None:
        """Close connections until there is room for the others."""
        while connection := self.connections.surplus():
            connection.say_last(Closed.LIMIT, text="too many connections or bytes, try again")
            connection.end(Closed.LIMIT)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = cast("Connection", request.protocol)
        await request.writer.drain()  # First the client reads its earlier answers.
        if connection.waits_for == "idle":
            connection.wait("request")
        try:
            response = await self._handler(request)
        except web.HTTPException as error:  # aiohttp would keep it, with the body in its frames.
            connection.refused(error.status, (error.text or "").strip())
            response = web.Response(status=error.status, body=error.body, headers=error.headers)
        except web.RequestPayloadError as error:  # Its body is no HTTP.
            response = web.Response(status=400)
            error.with_traceback(None)
        finally:
            if connection.waits_for == "request":
                connection.wait("idle")
        return connection.finish(response)

    def _sweep(self) -> None:
        self._timer = self.loop.call_later(self.limits.sweep, self._sweep)
        for connection in [*self.connections]:
            waits_for = "request" if connection.writing_paused else connection.waits_for
            if connection.since + getattr(self.limits, waits_for) <= self.loop.time():
                connection.expire()
        self._before = max(self._before, len(self.connections))
        if self._before >= len(self.connections) + FEWER:
            self._before = len(self.connections)
            if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
                trim(0)
