"""The status port: what a client may cost it. The same doors lead to the webhook's (T37)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager

import aiohttp
from aiohttp import web
from istio_aux.serving import Door, OneRequest
from unit.asynchronous import driven, until

GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


@asynccontextmanager
async def opened(strangers: int = 4, patience: float = 60) -> AsyncGenerator[tuple[Door, str, int]]:
    """A door behind which /livez is answered."""

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
    door = Door(lambda guest: OneRequest(server, guest), strangers, patience)
    host, port = await door.listen("127.0.0.1", 0)
    try:
        yield door, host, port
    finally:
        door.close()
        await door.empty(0)
        await runner.cleanup()


async def answered(host: str, port: int) -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{host}:{port}/livez") as got,
    ):
        return got.status


@driven
async def test_who_says_nothing_keeps_nobody_out() -> None:
    async with opened() as (door, host, port):
        with ExitStack() as stack:
            for _ in range(100):
                stack.enter_context(socket.create_connection((host, port)))
            assert await answered(host, port) == 200
            assert len(door.silent) == 3


@driven
async def test_who_begins_a_request_and_does_not_end_it_keeps_nobody_out() -> None:
    async with opened() as (door, host, port):
        with ExitStack() as stack:
            for _ in range(100):
                stack.enter_context(socket.create_connection((host, port))).send(GET[:9])
            assert await answered(host, port) == 200
            assert len(door.strangers) <= 4


@driven
async def test_a_client_has_so_many_seconds_however_steadily_it_drips() -> None:
    async with opened(patience=0.2) as (door, host, port):
        reader, writer = await asyncio.open_connection(host, port)
        ended = asyncio.create_task(reader.read())
        while not ended.done():
            writer.write(b"G")
            await asyncio.sleep(0.01)
        writer.transport.abort()
        await until(lambda: not len(door.strangers), "it is gone")


@driven
async def test_a_client_that_leaves_without_a_word_leaves_nothing_behind() -> None:
    async with opened() as (door, host, port):
        with socket.create_connection((host, port)):
            await until(lambda: len(door.silent), "it is there")
        await until(lambda: not len(door.silent), "it is gone")
