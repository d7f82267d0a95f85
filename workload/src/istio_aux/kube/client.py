"""HTTP client of the API server: typed errors, no knowledge of object kinds.

It retries nothing unless it is ``patient``: the caller knows whether and when to try again.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Literal, Self
from weakref import WeakSet

import aiohttp
from aiohttp.client_ws import ClientWebSocketResponse
from aiohttp.connector import Connection

from istio_aux.kube.access import Access
from istio_aux.kube.errors import (
    LONGEST_WAIT,
    AccessError,
    ApiError,
    LateError,
    NoConnectionError,
    OversizedError,
    SilentError,
    UnreachableError,
    UnreadableError,
)
from istio_aux.kube.objects import BEGINNING, LONGEST, ApiStatus, Oversized, decoded
from istio_aux.model.text import one_line

Params = Mapping[str, str] | Sequence[tuple[str, str]]
Check = Callable[[], Awaitable[bool]]
CHANGED = "nothing was sent: the pod has changed"

CONNECT_TIMEOUT = 10.0  # Seconds for TCP and TLS; client-go gives a TLS handshake as long.
READ_TIMEOUT = 30.0  # Read timeout in seconds of a request that is no watch.
# Seconds for a whole request that is no watch, which may hold one of few slots. The API server's
# own limit is 60 s (--request-timeout).
REQUEST = 90.0
# Bytes of a large answer, and how many large ones are read at once: each is in memory twice. Quits
# may read fifty pods at once, and their authors may have made each of them as long as `LONGEST`.
LARGE = 1 << 20
LARGE_AT_ONCE = 4
TRIES = 10  # Retries of a patient client after a 429; client-go has as many.
# An idle connection whose other end is gone fails within 45 s. client-go pings as often (HTTP/2
# health check, 30 s and 15 s).
KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}

_CONTEXT = re.compile(r" ssl:(?:\w+|<[^<>]*>)")  # The TLS context in aiohttp's messages.


class Client:
    """The API server, while the ``async with`` lasts. Every method raises `KubeError`."""

    def __init__(self, access: Access, *, patient: bool = False, user: str | None = None) -> None:
        """Prepare; a ``patient`` client, as commands use, repeats a request after a 429.

        It acts as another ``user``, if one is named (``kubectl --as``).
        """
        self._access = access
        self._user = {"Impersonate-User": user} if user else {}
        self._tries = TRIES if patient else 0
        self.namespace = access.namespace  # The namespace of the credentials, as for kubectl.
        self._large = asyncio.Semaphore(LARGE_AT_ONCE)
        self._sockets = WeakSet[socket.socket]()

    async def __aenter__(self) -> Self:
        """Open the session; it connects on the first request."""
        self._session = aiohttp.ClientSession(
            # Callers bound their own concurrency. With one limit for all, watches and hung execs
            # would delay a GET.
            connector=aiohttp.TCPConnector(limit=0, socket_factory=self._socket),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "istio-aux", **self._user},
            request_class=_Request,
            middlewares=(self._middleware,),
            trust_env=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close every connection."""
        await self._session.close()
        # asyncio keeps the connection of a cancelled watch until the server answers its TLS
        # close_notify, for up to 30 s (asyncio/constants.py SSL_SHUTDOWN_TIMEOUT). A socket that is
        # shut down is closed in the next turns of the event loop.
        for each in self._sockets:
            with suppress(OSError):  # The socket is closed already.
                each.shutdown(socket.SHUT_RDWR)
        for _turn in range(10):
            if any(each.fileno() >= 0 for each in self._sockets):
                await asyncio.sleep(0)

    async def get(
        self, path: str, params: Params = (), *, accept: str = "", longest: int = LONGEST
    ) -> bytes:
        """Read one object, or a page of a list; `OversizedError` if over ``longest`` bytes."""
        return await self.send("GET", path, params=params, accept=accept, longest=longest)

    async def send(
        self,
        method: Literal["GET", "POST", "PUT", "DELETE"],
        path: str,
        body: bytes | None = None,
        params: Params = (),
        *,
        accept: str = "",
        longest: int = LONGEST,
    ) -> bytes:
        """Send a request and read the whole answer, within `REQUEST` seconds.

        POST creates an object of JSON, PUT replaces it: both return what is stored. For DELETE
        ``body`` is a meta/v1 DeleteOptions. `ApiError` 409: the version in ``body`` is old.
        """
        access = await self._access.current()  # It has no timeout: a person may have to log in.
        bound = asyncio.timeout(REQUEST)
        try:
            async with (
                bound,
                self._request(access, method, path, params, body=body, accept=accept) as response,
            ):
                return await self._whole(response, longest)
        except TimeoutError as error:
            if bound.expired():
                raise SilentError(f"no complete answer within {REQUEST:g} s") from error
            raise  # It is the caller's own timeout.

    async def watch(
        self, path: str, params: Params, *, silence: float
    ) -> AsyncGenerator[bytes | Oversized]:
        """Yield an empty line once the watch is accepted, then its lines until the server ends it.

        After ``silence`` seconds without a byte the connection counts as dead.
        """
        async with self._request(
            await self._access.current(),
            "GET",
            path,
            params,
            silence=silence,
        ) as response:
            yield b""
            parts = list[bytes]()
            size = 0
            async for arrived in response.content.iter_any():
                for part in arrived.splitlines(keepends=True):  # JSON has no other ends of lines.
                    parts.append(part)
                    size += len(part)
                    if size > LONGEST:  # The memory for a line is bounded.
                        parts = [b"".join(parts)[:BEGINNING]]
                    if part.endswith(b"\n"):
                        line = b"".join(parts)
                        yield line if size <= LONGEST else Oversized(line)
                        parts = []
                        size = 0
            if parts:  # The stream was cut inside a line.
                yield b"".join(parts)

    @asynccontextmanager
    async def websocket(
        self, path: str, params: Params, protocols: Sequence[str], *, still: Check | None = None
    ) -> AsyncGenerator[ClientWebSocketResponse]:
        """Upgrade a GET to a WebSocket; on exit, close the connection without waiting.

        ``still`` is called once there is a connection: `LateError` unless the request may be sent.
        TLS sessions are not resumed: it would save us a sixth of the CPU of a connection, and cost
        the API server of Kubernetes 1.36 a third more.
        """
        access = await self._access.current()
        _checks.set(checks := [still] if still else [])
        try:
            with _errors(access):
                async with self._session.ws_connect(
                    access.server + path,
                    # The kubelet refuses every other type with 406.
                    headers={"Accept": "*/*", **_authorization(access)},
                    protocols=protocols,
                    params=params,
                    compress=0,
                    max_msg_size=1 << 20,
                    ssl=access.tls,
                    server_hostname=access.server_hostname,
                    proxy=access.proxy,
                ) as socket:
                    try:
                        yield socket
                    finally:
                        # aiohttp's `close` reads while the peer sends, and never yields.
                        socket._response.close()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        finally:
            checks.clear()  # The connection, and timers of its pool, keep the context.

    @asynccontextmanager
    async def _request(
        self,
        access: Access,
        method: str,
        path: str,
        params: Params,
        *,
        body: bytes | None = None,
        accept: str = "",
        silence: float = READ_TIMEOUT,
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        json = "application/json"
        content = {} if body is None else {"Content-Type": json}
        with _errors(access):
            async with self._session.request(
                method,
                access.server + path,
                params=params,
                data=body,
                headers={"Accept": accept or json, **content, **_authorization(access)},
                ssl=access.tls,
                server_hostname=access.server_hostname,
                proxy=access.proxy,
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=CONNECT_TIMEOUT, sock_read=silence
                ),
            ) as response:
                yield response

    async def _middleware(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Turn an error answer into an `ApiError`: only here has a refused handshake a body."""
        response = await handler(request)
        for _ in range(self._tries):
            if response.status != 429 or (pause := _retry_after(response)) is None:
                break
            response.release()
            await asyncio.sleep(min(pause, LONGEST_WAIT))
            response = await handler(request)
        if response.status >= 300:  # Also a redirect, which would carry our token elsewhere.
            async with response:
                try:
                    body = await self._whole(response)
                except OversizedError as error:
                    body = error.beginning
                raise _error(response, body)
        return response

    def _socket(self, address: tuple[Any, ...]) -> socket.socket:
        made = socket.socket(*address[:3])
        self._sockets.add(made)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if option := getattr(socket, name, None):  # macOS has another name for the first.
                made.setsockopt(socket.IPPROTO_TCP, option, value)
        return made

    async def _whole(self, response: aiohttp.ClientResponse, longest: int = LONGEST) -> bytes:
        parts = list[bytes]()
        size = 0
        async with AsyncExitStack() as stack:
            async for part in response.content.iter_any():
                parts.append(part)
                size += len(part)
                if size > longest:
                    raise OversizedError(longest, b"".join(parts)[:BEGINNING])
                if size > LARGE >= size - len(part):
                    await stack.enter_async_context(self._large)
            return b"".join(parts)


# Checks to await right before this task's next request is sent.
_checks = ContextVar[list[Check]]("checks")


class _Request(aiohttp.ClientRequest):
    """A request that is sent only if its check succeeds once it has a connection."""

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        # A check sends requests itself, so it is removed first.
        if (checks := _checks.get([])) and not await checks.pop()():
            raise LateError(CHANGED)
        return await super().send(conn)


def _retry_after(response: aiohttp.ClientResponse) -> float | None:
    seconds = response.headers.get("Retry-After", "")
    return float(seconds) if seconds.isascii() and seconds.isdigit() else None


def _error(response: aiohttp.ClientResponse, body: bytes) -> ApiError:
    retry_after = _retry_after(response)
    try:
        return decoded(body, ApiStatus).error(code=response.status, retry_after=retry_after)
    except UnreadableError:  # A proxy answered, in plain text or HTML.
        return ApiError(
            response.status,
            one_line(body[:200].decode(errors="replace")) or "no message",
            retry_after=retry_after,
        )


def _authorization(access: Access) -> dict[str, str]:
    token = access.token()
    if token and not token.isprintable():
        raise AccessError("token: expected text without control characters")
    return {"Authorization": f"Bearer {token}"} if token else {}


def _no_connection(error: aiohttp.ClientError) -> str:
    """Name the failure for a person: asyncio says "Connect call failed" for all of them."""
    if isinstance(error, aiohttp.ClientConnectorError) and "Connect call" in str(error):
        where = "proxy" if isinstance(error, aiohttp.ClientProxyConnectionError) else "host"
        if why := error.os_error.errno and os.strerror(error.os_error.errno).lower():
            return f"Cannot connect to {where} {error.host}:{error.port} [{why}]"
    return _CONTEXT.sub("", str(error))


@contextmanager
def _errors(access: Access) -> Generator[None]:
    """Translate aiohttp's exceptions. A TimeoutError comes from the caller's own timeout."""
    try:
        yield
    except ApiError as error:
        if error.code == 401:
            access.refused()
        raise
    except aiohttp.SocketTimeoutError as error:
        raise SilentError("the connection went silent") from error
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise NoConnectionError(_no_connection(error)) from error
    except (aiohttp.ClientError, ConnectionError, ssl.SSLError) as error:
        raise UnreachableError(str(error) or type(error).__name__) from error
