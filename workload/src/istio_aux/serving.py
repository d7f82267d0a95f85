"""HTTP and HTTPS serving for both ports: aiohttp behind an accept loop with limits.

aiohttp parses HTTP and runs the handler; asyncio does TLS. Neither bounds connections, handshakes
or slow requests, so this module does. A connection has no TLS object before its first byte comes.
A new connection is never refused: when there are too many, one of the peer address that has most is
closed (docs/decisions/0005).
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
import time
from asyncio import sslproto
from collections.abc import Callable, Iterable
from contextlib import suppress
from http import HTTPStatus
from typing import Any, cast

import msgspec
from aiohttp import HttpVersion10, web

from istio_aux.telemetry import Closed, Telemetry

_log = logging.getLogger(__name__)

BACKLOG = 4096  # The API server opens a connection for each review above 25 at once, in bursts.
ACCEPTS = 64  # Connections accepted in one turn of the event loop.
PAUSE = 0.1  # Seconds without accepting when the process has no descriptor left.
if hasattr(getattr(sslproto, "SSLProtocol", None), "max_size"):
    # asyncio allocates this many bytes for each TLS connection of the process: 256 KiB, and has no
    # option for it. It is the most that one read returns; a TLS record has at most 16 KiB. With
    # 1,024 handshakes at once this saves 224 MiB. A Python without the attribute uses its default.
    sslproto.SSLProtocol.max_size = 32 << 10
_HTTP: dict[str, Any] = {
    "access_log": None,
    "auto_decompress": False,  # A few bytes of gzip can be gigabytes.
    "max_line_size": 4096, "max_field_size": 4096, "max_headers": 32,  # aiohttp allows 2 MiB.
}  # fmt: skip


class ServingLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of connections, and seconds, that the clients of one port may use."""

    connections: int = 2048  # At most half of all descriptors; half as many may be waiting.
    handshake: float = 10.0  # From accept on, as the API server (apimachinery util/net/http.go).
    request: float = 10.0  # From first byte to last, as a webhook's default timeoutSeconds.
    idle: float = 120.0  # More than the API server's 90 s: it does not repeat a POST that was cut.
    unread: float = 10.0  # For a client to read its answers, and to close its end of TLS.
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
        waits_for, since: the field of `ServingLimits` that bounds what happens now, and its start.
        started: the task of its handshake; None until the client has sent something.
        why: why it ends, once that is known.
    """

    def __init__(self, listener: Listener, connection: socket.socket, address: str) -> None:
        linger = listener.limits.linger
        super().__init__(listener.server, loop=listener.loop, lingering_time=linger, **_HTTP)
        self.address, self.why = address, cast("Closed | None", None)
        self._listener, self._socket = listener, connection
        self.wait("handshake")
        self.started: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        """Whether nobody waits for an answer on it."""
        return self.waits_for in {"idle", "linger"}

    def wait(self, waits_for: str) -> None:
        """Start another deadline."""
        self.waits_for, self.since = waits_for, time.monotonic()

    def readable(self) -> None:
        """Start TLS and HTTP at the first byte. The event loop calls this."""
        self._loop.remove_reader(self._socket)
        try:
            first = self._socket.recv(1, socket.MSG_PEEK)
        except OSError:
            first = b""
        if first:
            self.started = self._loop.create_task(self._begin())
        else:
            self.end(Closed.PEER)

    async def _begin(self) -> None:
        context, unread = self._listener.context, self._listener.limits.unread
        tls: dict[str, Any] = {"ssl": context(), "ssl_shutdown_timeout": unread} if context else {}
        try:
            await self._loop.connect_accepted_socket(lambda: self, self._socket, **tls)
        except OSError as error:
            if self._listener.forget(self, Closed.HANDSHAKE):
                self._log_tls(error)
        finally:
            if self.transport is None:
                self.connection_lost(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the handshake is done."""
        super().connection_made(transport)
        if self.why:  # It was ended meanwhile.
            transport.close()
            return
        self.wait("idle")
        self._listener.welcome(self)

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes; aiohttp: none, to parse what it has."""
        if self.waits_for == "linger":
            return
        if data and self.waits_for == "idle":
            self.wait("request")
        super().data_received(data)

    def pause_writing(self) -> None:
        """asyncio: the client does not read its answers."""
        super().pause_writing()
        self.wait("unread")

    def resume_writing(self) -> None:
        """asyncio: it has read nearly all."""
        super().resume_writing()
        if self.waits_for == "unread":
            self.wait("idle")

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """aiohttp: the request is no HTTP, the client has left, or the handler has failed."""
        text = " ".join(f"no HTTP/1.1: {message or exc}".split())[:256]
        if self.transport:
            if status != 400 and not isinstance(exc, web.RequestPayloadError):
                return super().handle_error(request, status, exc, message)
            self._listener.refused(400, text)
        self.why = self.why or Closed.REFUSED
        self.wait("idle")
        response = web.Response(status=400, text=f"{text}\n", headers={"Connection": "close"})
        response.force_close()
        return response

    def expire(self) -> None:
        """End what has taken too long."""
        if self.waits_for == "idle":
            self.say_last(Closed.IDLE)
        elif self.waits_for == "request":
            text = f"no complete request in {self._listener.limits.request:g} s\n"
            self._listener.refused(408, text.strip())
            self.say_last(Closed.TIMEOUT, HTTPStatus.REQUEST_TIMEOUT, text)
        elif self.waits_for == "linger" and self.transport:
            self.wait("unread")
            self.transport.close()
        else:
            self.end(self.why or Closed(self.waits_for))

    def say_last(
        self,
        why: Closed,
        status: HTTPStatus = HTTPStatus.SERVICE_UNAVAILABLE,
        text: str = "the connection is closed, try again\n",
    ) -> None:
        """Write a last answer; close when the client does, or after `ServingLimits.linger`.

        client-go repeats a review that was answered with 503, but none whose connection was closed.
        """
        if self.transport and self.waits_for != "linger":
            head = f"HTTP/1.1 {status.value} {status.phrase}\r\nConnection: close\r\nRetry-After: 1"
            head += f"\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(text)}"
            self.transport.write(f"{head}\r\n\r\n{text}".encode())
            self.why = why
            self.wait("linger")

    def connection_lost(self, exc: BaseException | None) -> None:
        """asyncio: it is closed."""
        if self.waits_for == "request" and not self.why:
            self._listener.refused(400, "the client left before the request was complete")
        if not self.why:
            self._log_tls(exc)
        self._listener.forget(self, self.why or Closed.PEER)
        self.transport = None  # aiohttp closes it once more, and abort() of Python 3.11.2 raises.
        super().connection_lost(exc)

    def end(self, why: Closed) -> None:
        """Close it now."""
        if not self._listener.forget(self, why):
            return
        if self.transport:
            self.transport.abort()
        elif self.started:
            self.started.cancel()
        else:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self.connection_lost(None)

    def _log_tls(self, error: BaseException | None) -> None:
        if isinstance(error, ssl.SSLError):  # The client may not trust the certificate.
            extra = {"event": "connection", "outcome": self.why}
            _log.warning("%s: %s", self.address, error, extra=extra)


class Listener:
    """One port, its connections and their limits.

    ``waiting`` has those that are silent or in their handshake, the oldest first; while
    ``draining`` each answer closes its connection.
    """

    def __init__(
        self,
        server: web.Server,
        limits: ServingLimits,
        context: Callable[[], ssl.SSLContext] | None = None,
        metrics: Telemetry | None = None,
        refused: Callable[[int, str], None] = lambda _status, _text: None,
    ) -> None:
        """Let ``server`` answer; ``context`` returns the TLS context of a new handshake.

        ``metrics`` counts connections; ``refused`` gets status and text of each error answer.
        """
        self.server, self.limits, self.context, self.refused = server, limits, context, refused
        self.waiting: dict[Connection, None] = {}
        self.established: dict[Connection, None] = {}
        self.draining = False
        self.loop = asyncio.get_running_loop()
        self._metrics = metrics
        self._handler, server.request_handler = server.request_handler, self._handle
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)  # Others need some, too.
        some = descriptors // 2 if descriptors != resource.RLIM_INFINITY else limits.connections
        self._most = max(1, min(limits.connections, some))
        self._most_waiting = max(1, self._most // 2)
        self._sockets: list[socket.socket] = []
        self._empty = asyncio.Event()

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Accept at ``host`` (empty: every address) and ``port`` (0: any); return where that is.

        Raises:
            OSError: the port is not available.
        """
        server = await self.loop.create_server(
            asyncio.Protocol, host or None, port, reuse_address=True, start_serving=False
        )
        # asyncio binds; but its accept has no bound, and logs a traceback for each failure.
        self._sockets = [one.dup() for one in server.sockets]
        server.close()
        for one in self._sockets:
            one.setblocking(False)
            one.listen(BACKLOG)
            self.loop.add_reader(one, self._accept, one)
        self._sweep()
        return self._sockets[0].getsockname()[:2]

    async def close(self, patience: float) -> None:
        """Accept no more, close idle connections, and after ``patience`` seconds all others."""
        self.draining = True
        while self._sockets:
            one = self._sockets.pop()
            for _ in range(BACKLOG // ACCEPTS):  # The kernel would reset those that wait in it.
                self._accept(one)
            self.loop.remove_reader(one)
            one.close()
        for connection in [one for one in self.established if one.idle]:
            connection.say_last(Closed.DRAIN)
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while self.waiting or self.established:
                    self._empty.clear()
                    await self._empty.wait()
        for connection in (*self.waiting, *self.established):
            connection.end(Closed.DRAIN)
        self._timer.cancel()
        await asyncio.sleep(0)  # asyncio calls connection_lost in a later turn.

    def welcome(self, connection: Connection) -> None:
        """Count a connection as established; if there are too many, close another one.

        It is of the address that has most: the one idle longest, or else the oldest request.
        """
        self.established[connection] = self.waiting.pop(connection)
        if len(self.established) > self._most:
            others = (one for one in self.established if one is not connection)
            others = max(_by_address(others), key=len)
            oldest = min(others, key=lambda one: (not one.idle, one.since))
            oldest.say_last(Closed.LIMIT)
            oldest.end(Closed.LIMIT)

    def forget(self, connection: Connection, why: Closed) -> bool:
        """Count a connection as closed; return whether it was not before."""
        known = self.waiting if connection in self.waiting else self.established
        if connection not in known:
            return False
        del known[connection]
        connection.why = why
        if self._metrics:
            self._metrics.closed_connections.labels(why).inc()
        self._count()
        if not (self.waiting or self.established):
            self._empty.set()
        return True

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
        if self.draining:
            connection.why = Closed.DRAIN
            response.force_close()
        return response

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                break
            except OSError as error:  # No descriptor, or no memory.
                _log.warning("cannot accept: %s", error, extra={"event": "connection"})
                self._make_room(len(self.waiting) - 1)
                self.loop.remove_reader(listening)
                self.loop.call_later(PAUSE, self._accept_again, listening)
                return
            accepted.setblocking(False)
            connection = Connection(self, accepted, address[0])
            self.waiting[connection] = None
            self.loop.add_reader(accepted, connection.readable)
        self._make_room(self._most_waiting)
        self._count()

    def _accept_again(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            self.loop.add_reader(listening, self._accept, listening)

    def _make_room(self, room: int) -> None:
        """Close waiting connections: the oldest of the address that has most, silent ones first."""
        for silent in (True, False) if len(self.waiting) > room else ():
            groups = _by_address(one for one in self.waiting if silent is (one.started is None))
            while groups and len(self.waiting) > room:
                most = max(groups, key=len)
                most.pop(0).end(Closed.LIMIT)
                if not most:
                    groups.remove(most)

    def _count(self) -> None:
        if self._metrics:
            self._metrics.connections.set(len(self.waiting) + len(self.established))

    def _sweep(self) -> None:
        self._timer = self.loop.call_later(self.limits.sweep, self._sweep)
        now = time.monotonic()
        for one in (*self.waiting, *self.established):
            if one.since + getattr(self.limits, one.waits_for) <= now:
                one.expire()


def _by_address(connections: Iterable[Connection]) -> list[list[Connection]]:
    groups: dict[str, list[Connection]] = {}
    for one in connections:
        groups.setdefault(one.address, []).append(one)
    return list(groups.values())
