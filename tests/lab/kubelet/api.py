"""The kubelet's client of the API server: JSON in and out, patience with a server that is away.

Not lightkube, which the tests use: msgspec builds the type of a resource at its first use, and two
threads that do so at once crash the interpreter; the kubelet has a thread of its own.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Self

import aiohttp

Object = dict[str, Any]

RETRY = 0.2  # seconds between two tries while the API server is away
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


class RefusedError(Exception):
    """The API server said no: ``code`` is the HTTP status, the text its message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Api:
    """Speaks to ``server`` with the client certificate of ``tls``."""

    def __init__(self, server: str, tls: ssl.SSLContext) -> None:
        self._connector = aiohttp.TCPConnector(ssl=tls, limit=0)
        self._session = aiohttp.ClientSession(
            server,
            connector=self._connector,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
            read_bufsize=1 << 22,  # one watch event is one line
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A polite end of TLS outlives the loop, and its sockets are found unclosed.
        await self._connector.close(abort_ssl=True)
        await self._session.close()

    async def request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        content_type: str = "application/json",
        params: Mapping[str, str] | None = None,
    ) -> Object:
        """One call, made again for as long as nobody answers or the answer is a server's error.

        Raises:
            RefusedError: the answer is a client's error, such as 404 or 409.
        """
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": content_type}
        while True:
            try:
                async with self._session.request(
                    method, path, data=data, headers=headers, params=params
                ) as answer:
                    text = await answer.text()
                    if answer.status < 400:
                        return json.loads(text)
                    if answer.status < 500 and answer.status != 429:
                        raise RefusedError(answer.status, text)
            except (aiohttp.ClientError, TimeoutError):
                pass  # the API server is away, perhaps because a test killed it
            await asyncio.sleep(RETRY)

    async def objects(
        self, path: str, params: Mapping[str, str]
    ) -> AsyncIterator[tuple[str, Object]]:
        """List, then watch, for ever: pairs of event type and object; a list gives ``ADDED``.

        Whenever the watch ends, for whatever reason, it lists again. What was deleted in between is
        not told.
        """
        while True:
            listed = await self.request("GET", path, params=params)
            for item in listed["items"]:
                yield "ADDED", item
            since = {"watch": "1", "resourceVersion": listed["metadata"]["resourceVersion"]}
            try:
                async with self._session.get(path, params={**params, **since}) as stream:
                    async for line in stream.content:
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            break
                        yield event["type"], event["object"]
            except (aiohttp.ClientError, TimeoutError, ValueError):
                await asyncio.sleep(RETRY)
