"""A TCP relay in front of the API server that can cut connections in the middle of a message.

It forwards bytes as they are and does not decrypt TLS.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Iterator
from typing import Self
from urllib.parse import urlsplit

from lab.waiting import ending

PATIENCE = 10.0  # seconds for its thread to start or to end, which takes milliseconds


Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Relay:
    """A second address of ``server`` (``https://host:port``) while the context is open."""

    def __init__(self, server: str) -> None:
        self._to = urlsplit(server)
        self._executor = concurrent.futures.ThreadPoolExecutor(1, "relay")
        self._started = concurrent.futures.Future[int]()
        self._connections: set[_Connection] = set()
        self._life: concurrent.futures.Future[None]
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._open: asyncio.Event
        self.torn = 0

    def __enter__(self) -> Self:
        self._life = self._executor.submit(asyncio.run, self._serve())
        self._port = self._started.result(PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        with ending("relay"):
            self._loop.call_soon_threadsafe(self._stop.set)
            self._life.result(PATIENCE)
            self._executor.shutdown()

    @property
    def server(self) -> str:
        """The URL of the API server through this relay."""
        return f"https://127.0.0.1:{self._port}"

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Keep new connections waiting until the end of the block, as a load balancer may."""
        self._loop.call_soon_threadsafe(self._open.clear)
        yield
        self._loop.call_soon_threadsafe(self._open.set)

    def tear(self, after: int) -> None:
        """Each connection that is open now ends when that many more bytes came from the server.

        ``torn`` counts those that did. Connections that are made later are left alone.
        """
        self._loop.call_soon_threadsafe(self._allow, after)

    def _allow(self, count: int) -> None:
        for connection in self._connections:
            connection.allowed = count

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop, self._open = asyncio.Event(), asyncio.Event()
        self._open.set()
        listener = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self._started.set_result(listener.sockets[0].getsockname()[1])
        await self._stop.wait()
        listener.close()
        for connection in list(self._connections):
            connection.end()
        await asyncio.sleep(0)  # The loop closes an aborted socket in its next turn.

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._open.wait()
        try:
            there = await asyncio.open_connection(self._to.hostname, self._to.port)
        except OSError:  # The server is away, and so is this address of it.
            writer.transport.abort()
            return
        connection = _Connection((reader, writer), there)
        self._connections.add(connection)
        try:
            torn = await connection.live()
            self.torn += torn
        finally:
            self._connections.discard(connection)


class _Connection:
    """One client and its connection to the server. ``allowed``: bytes from there until the end."""

    def __init__(self, client: Ends, server: Ends) -> None:
        self.allowed: int | None = None
        self._client, self._server = client, server

    async def live(self) -> bool:
        """Pass bytes on in both directions; returns whether it ended by being torn."""
        upwards = asyncio.ensure_future(self._upwards())
        try:
            return await self._downwards()
        finally:
            upwards.cancel()
            self.end()

    def end(self) -> None:
        """Cut both connections, without a goodbye."""
        self._client[1].transport.abort()
        self._server[1].transport.abort()

    async def _upwards(self) -> None:
        with contextlib.suppress(OSError):
            while data := await self._client[0].read(1 << 16):
                self._server[1].write(data)
                await self._server[1].drain()
        self.end()

    async def _downwards(self) -> bool:
        with contextlib.suppress(OSError):
            while data := await self._server[0].read(1 << 16):
                passed = data if self.allowed is None else data[: self.allowed]
                self._client[1].write(passed)
                await self._client[1].drain()
                if self.allowed is not None:
                    self.allowed -= len(passed)
                    if self.allowed == 0:
                        return True
        return False
