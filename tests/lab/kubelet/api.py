"""The kubelet's client of the API server: JSON in and out, patience with a server that is away.

Not lightkube, which the tests use: calls are repeated while the server is away, and connections are
cut at the end, on a loop of the kubelet's own.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from io import BytesIO
from typing import Any, Self

import aiohttp

Object = dict[str, Any]

RETRY = 0.2  # seconds between two tries while the API server is away
PARTING = 5.0  # seconds for calls in flight at the end; one takes milliseconds
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


class RefusedError(Exception):
    """The API server said no: ``code`` is the HTTP status, the text its message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Api:
    """Speaks to ``server`` with the client certificate of ``tls``.

    A cancelled call leaves a connection in TLS's closing handshake, which outlives the loop, so
    its socket stays open. So calls are finished, and watches are cut.
    """

    def __init__(self, server: str, tls: ssl.SSLContext) -> None:
        self._in_flight: set[asyncio.Future[tuple[int, str]]] = set()
        self._connector = aiohttp.TCPConnector(ssl=tls, limit=0)
        self._session = aiohttp.ClientSession(
            server,
            connector=self._connector,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
            read_bufsize=1 << 22,  # one watch event is one line
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._in_flight:
            await asyncio.wait(self._in_flight, timeout=PARTING)
        await self._connector.close(abort_ssl=True)
        await self._session.close()

    async def request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        content_type: str = "application/json",
        *,
        params: Mapping[str, str] | None = None,
    ) -> Object:
        """One call, repeated while the server is away or fails. Raises RefusedError."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": content_type}
        while True:
            call = self._session.request(
                method, path, data=data and BytesIO(data), headers=headers, params=params
            )
            attempt = asyncio.ensure_future(_answer(call))
            self._in_flight.add(attempt)
            attempt.add_done_callback(self._in_flight.discard)
            try:
                status, text = await asyncio.shield(attempt)
            except (aiohttp.ClientError, TimeoutError):
                status, text = 503, ""  # it is away, perhaps because a test killed it
            if status < 400:
                return json.loads(text)
            if status < 500 and status != 429:
                raise RefusedError(status, text)
            await asyncio.sleep(RETRY)

    async def objects(
        self, path: str, params: Mapping[str, str]
    ) -> AsyncIterator[tuple[str, Object]]:
        """List, then watch, forever: event type (``ADDED`` of a list) and object."""
        while True:
            listed = await self.request("GET", path, params=params)
            for item in listed["items"]:
                yield "ADDED", item
            since = {"watch": "1", "resourceVersion": listed["metadata"]["resourceVersion"]}
            try:
                async with self._session.get(path, params={**params, **since}) as stream:
                    try:
                        async for line in stream.content:
                            event = json.loads(line)
                            if event["type"] == "ERROR":
                                break
                            yield event["type"], event["object"]
                    finally:
                        if stream.connection and stream.connection.transport:
                            stream.connection.transport.abort()
            except (aiohttp.ClientError, TimeoutError, ValueError):
                await asyncio.sleep(RETRY)


async def _answer(call: AbstractAsyncContextManager[aiohttp.ClientResponse]) -> tuple[int, str]:
    async with call as answer:
        return answer.status, await answer.text()
