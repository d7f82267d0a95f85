"""HTTP to the API server in a few small verbs: one session, one TLS context, typed errors.

Nothing about a particular kind of object may live here, and no retry: who asks knows whether and
when to ask again.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp.client_ws import ClientWebSocketResponse
from aiohttp.http_exceptions import LineTooLong

from istio_aux.kube.access import Access
from istio_aux.kube.errors import (
    LONGEST_WAIT,
    ApiError,
    NoConnectionError,
    SilentError,
    UnreachableError,
    UnreadableError,
)
from istio_aux.kube.objects import ApiStatus, Reader

Params = Mapping[str, str] | Sequence[tuple[str, str]]

DRY_RUN_ALL = {"dryRun": "All"}
"""Parameters of a request that is to change nothing."""

CONNECT_TIMEOUT = 10.0
"""Seconds for TCP and TLS; client-go's transport gives a TLS handshake as long."""

READ_TIMEOUT = 30.0
"""Seconds without a byte after which an answer that is no watch is given up."""

REQUEST = 90.0
"""Seconds for a whole request that is no watch. The API server gives it 60 (--request-timeout); one
of ours that lasted longer would hold one of few slots."""

TRIES = 10
"""How often a patient client waits as it is told to; client-go tries as often."""

READ_BUFFER = 4 << 20
"""Bytes. aiohttp refuses a line longer than twice this; etcd stores objects up to 1.5 MiB."""


_CONTEXT = re.compile(r" ssl:(?:\w+|<[^>]*>)")
"""What aiohttp says of the TLS context: an address in memory."""

_status = Reader(ApiStatus, "Status")


class Client:
    """The API server, for as long as the ``async with`` lasts. Every verb raises `KubeError`."""

    def __init__(self, access: Access, *, patient: bool = False) -> None:
        """Prepare.

        ``patient``: a request that the API server has no time for (429) is made again when it says.
        That is for those who ask once; who asks again anyway decides when by itself.
        """
        self._access, self._tries = access, TRIES if patient else 0
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Open the session; it connects on the first request."""
        self._session = aiohttp.ClientSession(
            # Whoever uses the client bounds its own concurrency; a common limit would let watches
            # and hung execs keep a GET waiting.
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "istio-aux", "Accept": "application/json"},
            middlewares=(self._middleware,),
            read_bufsize=READ_BUFFER,
            trust_env=False,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str, params: Params = ()) -> bytes:
        """Read one object, or one page of a list."""
        return await self._ask("GET", path, params)

    async def post(self, path: str, body: bytes, params: Params = ()) -> bytes:
        """Create an object from JSON; returns it as it was stored."""
        return await self._ask("POST", path, params, body=body)

    async def put(self, path: str, body: bytes) -> bytes:
        """Replace an object by JSON; returns it as it was stored.

        A ``metadata.resourceVersion`` in the body is a precondition: `ApiError` 409 if it is old.
        """
        return await self._ask("PUT", path, (), body=body)

    async def patch(self, path: str, body: bytes, params: Params = ()) -> bytes:
        """Merge JSON into an object (RFC 7386); returns it as it is stored then.

        ``metadata.uid`` and ``metadata.resourceVersion`` in the body are preconditions: `ApiError`
        422 (a custom resource) or 409 if the object has others.
        """
        kind = "application/merge-patch+json"
        return await self._ask("PATCH", path, params, body=body, kind=kind)

    async def delete(self, path: str, body: bytes) -> bytes:
        """Delete an object; ``body`` is a meta/v1 DeleteOptions in JSON, such as preconditions.

        Returns a Status, or the object while it is still terminating.
        """
        return await self._ask("DELETE", path, (), body=body)

    async def watch(self, path: str, params: Params, *, silence: float) -> AsyncGenerator[bytes]:
        """Yield the lines of a watch until the server ends it.

        The first one is empty, and comes when the server has accepted the watch.

        Args:
            path: of the collection.
            params: among them ``watch``, ``resourceVersion`` and ``timeoutSeconds``.
            silence: seconds without a byte after which the connection counts as dead.
        """
        patience = _timeout(read=silence)
        access = await self._access.current()
        async with self._request(access, "GET", path, params, patience=patience) as response:
            yield b""
            try:
                async for line in response.content:
                    yield line
            except LineTooLong as error:
                raise UnreachableError(f"a line over {2 * READ_BUFFER} bytes") from error

    @asynccontextmanager
    async def websocket(
        self, path: str, params: Params, protocols: Sequence[str]
    ) -> AsyncGenerator[ClientWebSocketResponse]:
        """Upgrade a GET to a WebSocket; on leaving, the connection is closed without a wait.

        TLS sessions are not resumed: that saves us a sixth of the CPU of a connection, and costs
        the API server of Kubernetes 1.36 a third more.
        """
        access = await self._access.current()
        with _errors(self._access):
            async with self._open.ws_connect(
                access.server + path,
                # The kubelet names no type that its streams have, and refuses any other with 406.
                headers={"Accept": "*/*", **_proof(access)},
                protocols=protocols,
                params=params,
                compress=0,
                max_msg_size=1 << 20,
                ssl=access.tls,
                server_hostname=access.server_hostname,
            ) as socket:
                try:
                    yield socket
                finally:
                    # Its own `close` reads on for as long as the peer sends, and yields to nobody.
                    socket._response.close()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

    @property
    def _open(self) -> aiohttp.ClientSession:
        assert self._session is not None, "the client is used outside its `async with`"
        return self._session

    async def _ask(
        self,
        method: str,
        path: str,
        params: Params,
        *,
        body: bytes | None = None,
        kind: str = "application/json",
    ) -> bytes:
        """Request and read the whole answer, within `REQUEST` seconds."""
        access = await self._access.current()  # Before the clock runs: a person may have to log in.
        bound = asyncio.timeout(REQUEST)
        try:
            async with (
                bound,
                self._request(access, method, path, params, body=body, kind=kind) as response,
            ):
                return await response.read()
        except TimeoutError as error:
            if bound.expired():
                raise SilentError(f"no complete answer within {REQUEST:g} s") from error
            raise  # The caller's own.

    @asynccontextmanager
    async def _request(
        self,
        access: Access,
        method: str,
        path: str,
        params: Params,
        *,
        body: bytes | None = None,
        kind: str = "application/json",
        patience: aiohttp.ClientTimeout | None = None,
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        headers = {"Content-Type": kind} if body is not None else {}
        with _errors(self._access):
            async with self._open.request(
                method,
                access.server + path,
                params=params,
                data=body,
                headers={**headers, **_proof(access)},
                # Another context has connections of its own.
                ssl=access.tls,
                server_hostname=access.server_hostname,
                timeout=patience or _timeout(read=READ_TIMEOUT),
            ) as response:
                yield response

    async def _middleware(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Turn an error answer into what it says.

        It stands here, below the verbs, because a WebSocket's refused handshake loses its body
        further up.
        """
        response = await handler(request)
        for _ in range(self._tries):
            if response.status != 429 or (pause := _retry_after(response)) is None:
                break
            response.release()
            await asyncio.sleep(min(pause, LONGEST_WAIT))
            response = await handler(request)
        if response.status >= 300:  # Also a redirect, which would carry our token elsewhere.
            async with response:
                raise _error(response, await response.read())
        return response


def _timeout(*, read: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=read)


def _retry_after(response: aiohttp.ClientResponse) -> float | None:
    asked = response.headers.get("Retry-After", "")
    return float(asked) if asked.isascii() and asked.isdigit() else None


def _error(response: aiohttp.ClientResponse, body: bytes) -> ApiError:
    retry_after = _retry_after(response)
    try:
        return _status.read(body).error(code=response.status, retry_after=retry_after)
    except UnreadableError:  # A proxy in between answers in plain text or HTML.
        text = " ".join(body[:200].decode(errors="replace").split())
        return ApiError(response.status, text or "no message", retry_after=retry_after)


def _proof(access: Access) -> dict[str, str]:
    """The header with the token of this moment."""
    token = access.token()
    return {"Authorization": f"Bearer {token}"} if token else {}


@contextmanager
def _errors(access: Access) -> Generator[None]:
    """Translate what aiohttp raises; TimeoutError passes, because it is the caller's own."""
    try:
        yield
    except ApiError as error:
        if error.code == 401:
            access.refused()
        raise
    except aiohttp.SocketTimeoutError as error:
        raise SilentError("the connection went silent") from error
    except aiohttp.ClientConnectorError as error:
        raise NoConnectionError(_CONTEXT.sub("", str(error))) from error
    except (aiohttp.ClientError, ConnectionError, ssl.SSLError) as error:
        raise UnreachableError(str(error) or type(error).__name__) from error
