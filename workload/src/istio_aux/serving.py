"""HTTP and HTTPS serving for both ports: aiohttp behind an accept loop with limits.

aiohttp parses HTTP and runs the handler; asyncio does TLS. Neither bounds connections, handshakes,
slow requests or what all clients send together, so this module does. A connection has no TLS object
before its first byte comes. A new connection is never refused: when there are too many, or they
take too much memory, another one is closed (docs/decisions/0005).
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
import time
from asyncio import sslproto
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any, cast

import msgspec
from aiohttp import HttpVersion10, web

from istio_aux.model.text import one_line
from istio_aux.shedding import CHUNK, COPIES, SILENT, STARTED, Connections, available_memory
from istio_aux.telemetry import Closed

_log = logging.getLogger(__name__)

BACKLOG = 4096  # The API server opens a connection for each review above 25 at once, in bursts.
ACCEPTS = 64  # Connections accepted in one turn of the event loop.
PAUSE = 0.1  # Seconds without accepting when the process has no descriptor left.
PROMPT, PAUSES = 0.0005, 20
"""Seconds that a request is worked on for each turn of the event loop that follows, and the most of
these turns. A handshake and a request need a dozen."""
BUFFER = 32 << 10
"""Bytes that aiohttp, and asyncio's TLS, buffer before they stop to read, or to take answers. Their
defaults are 256 and 512 KiB for each connection."""
# asyncio allocates such a buffer for each TLS connection of the process, and has no option for it.
cast("Any", sslproto).SSLProtocol.max_size = BUFFER


class ServingLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What the clients of one port may use: connections, bytes, and seconds.

    ``connections`` and ``memory`` are for those that were answered; as much is for all others.
    """

    connections: int = 1024  # At most a quarter of all descriptors.
    memory: int = 128 << 20  # At most an eighth of the memory that this process may use.
    handshake: float = 10.0  # From accept on, as the API server (apimachinery util/net/http.go).
    request: float = 10.0  # From first byte to last; also for a client to read its answer.
    idle: float = 120.0  # More than the API server's 90 s: it does not repeat a POST that was cut.
    linger: float = 1.0  # From a last answer to the close. Unread bytes turn a close into a reset.
    sweep: float = 0.5  # Between two checks of all deadlines.


def raise_descriptors() -> None:
    """Raise the soft limit of open descriptors to the hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Connection(web.RequestHandler):
    """One connection from accept to close.

    Attributes:
        cost: bytes of memory that it counts for.
        waits_for, since: the field of `ServingLimits` that bounds what happens now, and its start.
        started: the task of its handshake; None until the client has sent something.
        why: why it ends, once that is known.
        took: seconds of CPU that its last request took.
    """

    def __init__(self, listener: Listener, connection: socket.socket, address: str) -> None:
        super().__init__(
            listener.server, loop=listener.loop, access_log=cast("Any", None),
            lingering_time=listener.limits.linger,
            auto_decompress=False,  # A few bytes of gzip can be gigabytes.
            max_line_size=4096, max_field_size=4096, max_headers=32,  # aiohttp allows 2 MiB.
            read_bufsize=BUFFER,
        )  # fmt: skip
        self.address = address
        self.cost, self.took = SILENT, 0.0
        self.why: Closed | None = None
        self.started: asyncio.Task[Any] | None = None
        self.listener, self._socket = listener, connection
        self.wait("handshake")

    @property
    def busy(self) -> bool:
        """Whether a handshake or a request has begun."""
        return self.started is not None and self.waits_for in {"handshake", "request"}

    def wait(self, waits_for: str) -> None:
        """Start another deadline."""
        self.waits_for, self.since = waits_for, self._loop.time()
        self.listener.connections.proceed(self)

    def charge(self, cost: int) -> None:
        """Count what it costs now; others may be closed for it, or it may be closed itself."""
        self.cost = cost
        self.listener.connections.charge(self, cost)
        self.listener.make_room()

    def answered(self, response: web.StreamResponse) -> None:
        """Give back what its request took; an answer that it may not have read yet counts."""
        if not self._messages:  # Else another request has come already.
            self.charge(STARTED + (response.content_length or 0))
        if response.status < HTTPStatus.BAD_REQUEST:
            self.listener.connections.answer(self)
            self.listener.make_room()

    def start_handshake(self) -> None:
        """Start TLS and HTTP. The event loop calls this at the first byte."""
        self._loop.remove_reader(self._socket)
        self.charge(STARTED)
        if self.why:
            return
        context, bound = self.listener.context, self.listener.limits.request
        tls: dict[str, Any] = {"ssl": context(), "ssl_shutdown_timeout": bound} if context else {}
        self.started = self._loop.create_task(
            self._loop.connect_accepted_socket(lambda: self, self._socket, **tls)
        )
        self.started.add_done_callback(self._handshake_ended)

    def _handshake_ended(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if error and not isinstance(error, OSError):
            _log.error("handshake: %s", error, exc_info=error, extra={"event": "internal-error"})
        if error:  # Its frames would keep TLS and its buffers until the garbage collector runs.
            error.with_traceback(None)
        if self.transport is None:
            self._socket.close()
            self.connection_lost(error)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the handshake is done."""
        super().connection_made(transport)
        if self.why:  # It was ended meanwhile.
            transport.close()
        else:
            buffers = cast("Any", transport)
            buffers.set_write_buffer_limits(BUFFER)
            if self.listener.context:
                buffers.set_read_buffer_limits(BUFFER)
            self.wait("idle")

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes arrived; aiohttp calls it with none, to parse what it has."""
        if data and not self.why:  # What comes after the last answer is not kept.
            if self.waits_for == "idle":
                self.wait("request")
            self.charge(self.cost + COPIES * len(data) + CHUNK)
        if self.waits_for == "linger":  # Perhaps since this turn: it took too much.
            return
        super().data_received(data)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """aiohttp: the request is no HTTP, the client has left, or the handler has failed."""
        if self.transport and status != 400 and not isinstance(exc, web.RequestPayloadError):
            return super().handle_error(request, status, exc, message)
        if exc:  # The request keeps it, and its frames would keep the body.
            exc.with_traceback(None)
        text = one_line(f"no HTTP/1.1: {message or exc}")
        if self.transport:
            self.listener.refused(400, text)
        self.why = self.why or Closed.REFUSED
        self.wait("idle")
        response = web.Response(status=400, text=f"{text}\n", headers={"Connection": "close"})
        response.force_close()
        return response

    def expire(self) -> None:
        """End what has taken too long."""
        if self.writing_paused:
            self.end(Closed.UNREAD)
        elif self.waits_for == "idle":
            self.say_last(Closed.IDLE)
        elif self.waits_for == "request":
            text = f"no complete request in {self.listener.limits.request:g} s"
            self.listener.refused(408, text)
            self.say_last(Closed.TIMEOUT, 408, text)
        else:
            self.end(Closed.HANDSHAKE)

    def say_last(self, why: Closed, status: int = 503, text: str = "closed, try again") -> None:
        """Write a last answer; close when the client does, or after `ServingLimits.linger`.

        client-go repeats a review that was answered with 503, but none whose connection was closed.
        """
        if self.transport and self.waits_for != "linger":
            head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nConnection: close\r\n"
            head += f"Retry-After: 1\r\nContent-Length: {len(text) + 1}\r\n\r\n"
            self.transport.write(f"{head}{text}\n".encode())
            self.why = why
            self.wait("linger")

    def connection_lost(self, exc: BaseException | None) -> None:
        """asyncio: it is closed."""
        if not self.why:
            self.why = Closed.HANDSHAKE if self.waits_for == "handshake" else Closed.PEER
            if isinstance(exc, ssl.SSLError):  # The client may not trust the certificate.
                extra = {"event": "connection", "outcome": self.why}
                _log.warning("%s: %s", self.address, exc, extra=extra)
            if self.waits_for == "request":
                self.listener.refused(400, "the client left before the request was complete")
        self.listener.forget(self)
        self.started = None  # The task's result refers to this connection.
        self.transport = None  # aiohttp closes it once more, and abort() of Python 3.11.2 raises.
        super().connection_lost(exc)

    def end(self, why: Closed) -> None:
        """Close it now; a reason that it had before stays."""
        self.why = self.why or why
        self.listener.forget(self)
        if self.transport:
            self.transport.abort()
        elif self.started:
            self.started.cancel()
        else:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self.connection_lost(None)


class Listener:
    """One port, its connections and their limits; while ``draining``, each answer is the last."""

    def __init__(
        self,
        server: web.Server,
        limits: ServingLimits,
        context: Callable[[], ssl.SSLContext] | None = None,
        closed: Callable[[Closed], None] = lambda _why: None,
        refused: Callable[[int, str], None] = lambda _status, _text: None,
    ) -> None:
        """Let ``server`` answer; ``context`` returns the TLS context of a new handshake.

        ``closed`` gets why a connection ended; ``refused`` status and text of each error answer.
        """
        self.server, self.limits, self.context = server, limits, context
        self.closed, self.refused = closed, refused
        self.draining = False
        self.loop = asyncio.get_running_loop()
        self._handler, server.request_handler = server.request_handler, self._handle
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)  # Others need some, too.
        some = descriptors // 4 if descriptors != resource.RLIM_INFINITY else limits.connections
        self.connections = Connections[Connection](
            max(1, min(limits.connections, some)), min(limits.memory, available_memory() // 8)
        )
        # Requests that wait for their turn; None: the next one need not.
        self._turns: dict[Connection, asyncio.Future[None]] | None = None
        self._pauses = 0  # Turns of the event loop until the next one.
        self._sockets: list[socket.socket] = []
        self._empty = asyncio.Event()

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Accept at ``host`` (empty: all) and ``port`` (0: any); returns both; raises OSError."""
        server = await self.loop.create_server(
            asyncio.Protocol, host or None, port, reuse_address=True, start_serving=False
        )
        # asyncio binds; but its accept has no bound, and logs a traceback for each failure.
        self._sockets = [bound.dup() for bound in server.sockets]
        server.close()
        for listening in self._sockets:
            listening.setblocking(False)
            listening.listen(BACKLOG)
            self._resume(listening)
        self._sweep()
        return self._sockets[0].getsockname()[:2]

    async def close(self, patience: float) -> None:
        """Accept no more, close idle connections, and after ``patience`` seconds all others."""
        self.draining = True
        while self._sockets:
            listening = self._sockets.pop()
            for _ in range(BACKLOG // ACCEPTS):  # The kernel would reset those that wait in it.
                self._accept(listening)
            self.loop.remove_reader(listening)
            listening.close()
        for connection in self.connections:
            if not connection.busy:
                connection.say_last(Closed.DRAIN)
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while self.connections:
                    self._empty.clear()
                    await self._empty.wait()
        for connection in self.connections:
            connection.end(Closed.DRAIN)
        self._timer.cancel()
        await asyncio.sleep(0)  # asyncio calls connection_lost in a later turn.

    @asynccontextmanager
    async def turn(self, connection: Connection) -> AsyncGenerator[None]:
        """Wait until a request may be worked on; the context has no other wait in it.

        One is worked on in a turn of the event loop, and after one that took long some turns have
        none. In each all sockets are read, so that the next one is chosen among all.
        """
        if self._turns is None:
            self._turns = {}
            self.loop.call_soon(self._pass)
            self.connections.turn([connection])
        else:
            self._turns[connection] = turn = self.loop.create_future()
            await turn
        began = time.thread_time()  # Not what other processes took meanwhile.
        try:
            yield
        finally:
            # No review takes longer; garbage may have been collected meanwhile.
            connection.took = min(time.thread_time() - began, PAUSES * PROMPT)
            self.connections.spend(connection.took)
            self._pauses = int(connection.took / PROMPT)

    def _pass(self) -> None:
        if not (self._pauses or self._turns):
            self._turns = None
            return
        self.loop.call_soon(self._pass)
        if self._pauses:
            self._pauses -= 1
        elif self._turns:
            turn = self._turns.pop(self.connections.turn(self._turns))
            if not turn.done():
                turn.set_result(None)

    def forget(self, connection: Connection) -> None:
        """Count a connection as closed, once; what waits for its turn is cancelled."""
        if self._turns and (turn := self._turns.pop(connection, None)):
            turn.cancel()
        if connection in self.connections:
            self.connections.remove(connection)
            self.closed(connection.why or Closed.PEER)
        if not self.connections:
            self._empty.set()

    def make_room(self) -> None:
        """Close connections until there is room for the others."""
        while connection := self.connections.surplus():
            if connection.waits_for == "request":
                self.refused(503, "closed: too many connections, or too many bytes")
            connection.say_last(Closed.LIMIT)
            connection.end(Closed.LIMIT)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = cast("Connection", request.protocol)
        await request.writer.drain()  # First the client reads its earlier answers.
        if connection.waits_for == "idle":
            connection.wait("request")
        try:
            if request.version < HttpVersion10:  # llhttp reads a line without a version as 0.9.
                raise web.HTTPBadRequest(text="no HTTP/1.1: the request line has no version\n")
            response = await self._handler(request)
        except web.HTTPException as error:
            self.refused(error.status, (error.text or "").strip())
            connection.why = Closed.REFUSED
            error.force_close()
            raise
        finally:
            if connection.waits_for == "request":
                connection.wait("idle")
        connection.answered(response)
        if self.draining:
            connection.why = Closed.DRAIN
            response.force_close()
        return response

    def _resume(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            self.loop.add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                break
            except OSError as error:  # No descriptor, or no memory.
                _log.warning("cannot accept: %s", error, extra={"event": "connection"})
                self.loop.remove_reader(listening)
                self.loop.call_later(PAUSE, self._resume, listening)
                return
            accepted.setblocking(False)
            connection = Connection(self, accepted, address[0])
            self.connections.add(connection)
            self.loop.add_reader(accepted, connection.start_handshake)
        self.make_room()

    def _sweep(self) -> None:
        self._timer = self.loop.call_later(self.limits.sweep, self._sweep)
        now = self.loop.time()
        for connection in self.connections:
            waits_for = "request" if connection.writing_paused else connection.waits_for
            if connection.since + getattr(self.limits, waits_for) <= now:
                connection.expire()
        self.connections.trim(now)
