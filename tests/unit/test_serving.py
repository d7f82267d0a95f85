"""What clients may cost a port; the webhook's port has the same limits (T37)."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from istio_aux.serving import Listener, ServingLimits
from unit.asynchronous import until

GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


@asynccontextmanager
async def opened() -> AsyncGenerator[tuple[Listener, str, int]]:
    """A port that answers /livez, with room for 8 connections."""

    async def livez(_request: web.Request) -> web.Response:
        answer = web.Response(text="ok\n")
        answer.force_close()
        return answer

    application = web.Application()
    application.router.add_get("/livez", livez)
    runner = web.AppRunner(application)
    await runner.setup()
    server = runner.server
    assert server
    limits = ServingLimits(connections=8, linger=0.1, sweep=0.05)
    listener = Listener(server, limits)
    host, port = await listener.listen("127.0.0.1", 0)
    try:
        yield listener, host, port
    finally:
        await listener.close(0)
        await runner.cleanup()


async def answered(host: str, port: int) -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{host}:{port}/livez") as got,
    ):
        return got.status


@pytest.mark.parametrize("sent", [b"", GET[:9]], ids=["silent", "requests that never end"])
async def test_many_connections_keep_no_other_client_out(sent: bytes) -> None:
    async with opened() as (listener, host, port):
        with ExitStack() as stack:
            for _ in range(100):
                stack.enter_context(socket.create_connection((host, port))).send(sent)
            assert await answered(host, port) == 200
            assert len(listener.connections) <= 8


async def test_a_client_that_leaves_without_a_word_leaves_nothing_behind() -> None:
    async with opened() as (listener, host, port):
        with socket.create_connection((host, port)):
            await until(lambda: listener.connections, "it is there")
        await until(lambda: not listener.connections, "it is gone")
