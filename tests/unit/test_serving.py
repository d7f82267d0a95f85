"""What clients may cost a port; the webhook's port has the same limits (T37)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager

import aiohttp
from aiohttp import web
from istio_aux.serving import Listener, ServingLimits
from unit.asynchronous import driven, until

GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


@asynccontextmanager
async def opened(request: float = 60) -> AsyncGenerator[tuple[Listener, str, int]]:
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
    limits = ServingLimits(connections=8, request=request, linger=0.1, sweep=0.05)
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


@driven
async def test_silent_connections_keep_nobody_out() -> None:
    async with opened() as (listener, host, port):
        with ExitStack() as stack:
            for _ in range(100):
                stack.enter_context(socket.create_connection((host, port)))
            assert await answered(host, port) == 200
            assert len(listener.waiting) <= 4


@driven
async def test_requests_that_never_end_keep_nobody_out() -> None:
    async with opened() as (listener, host, port):
        with ExitStack() as stack:
            for _ in range(100):
                stack.enter_context(socket.create_connection((host, port))).send(GET[:9])
            assert await answered(host, port) == 200
            assert len(listener.established) <= 8


@driven
async def test_a_request_must_be_complete_in_time_however_steadily_it_drips() -> None:
    async with opened(request=0.2) as (listener, host, port):
        reader, writer = await asyncio.open_connection(host, port)
        ended = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
        writer.write(GET[:-2] + b"X: ")
        while not ended.done():
            writer.write(b"x")
            await asyncio.sleep(0.01)
        assert ended.result().startswith(b"HTTP/1.1 408 ")
        writer.transport.abort()
        await until(lambda: not listener.established, "it is gone")


@driven
async def test_a_client_that_leaves_without_a_word_leaves_nothing_behind() -> None:
    async with opened() as (listener, host, port):
        with socket.create_connection((host, port)):
            await until(lambda: listener.waiting, "it is there")
        await until(lambda: not listener.waiting, "it is gone")
