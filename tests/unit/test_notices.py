"""Pebble gets a notice of each change, even if it was away meanwhile."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Self

import pytest
from aiohttp import web
from istio_aux.notices import KEY, Notices
from unit.asynchronous import background, driven, until

# api_notices.go customKeyRegexp
VALID_KEY = re.compile(
    r"^[a-z0-9]+(-[a-z0-9]+)*(\.[a-z0-9]+(-[a-z0-9]+)*)+(/[a-z0-9]+(-[a-z0-9]+)*)+$"
)


def _answer(code: int, result: object) -> web.Response:
    kind = "sync" if code == 200 else "error"
    return web.json_response({"type": kind, "status-code": code, "result": result}, status=code)


class Pebble:
    """Pebble's API for notices on a unix socket, as Pebble 1.26 has it (api_notices.go).

    It checks each notice, and counts repetitions. It knows no other path.

    Attributes:
        socket: where it listens after `start`.
        occurrences: how often each key was sent.
        refuses: answer every request with 403.
    """

    def __init__(self) -> None:
        self.occurrences: dict[str, int] = {}
        self.refuses = False
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        # A socket's path has less than 108 bytes; pytest's own folders may need more.
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp"))
        self.socket = Path(folder) / "pebble.socket"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def start(self) -> None:
        """Listen."""
        application = web.Application()
        application.router.add_post("/v1/notices", self._post)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.05)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        await web.UnixSite(runner, str(self.socket)).start()

    async def _post(self, request: web.Request) -> web.Response:
        if self.refuses:
            return _answer(403, {"message": "access denied"})
        notice = await request.json()
        if (
            notice["action"] != "add"
            or notice["type"] != "custom"
            or not VALID_KEY.match(notice["key"])
        ):
            return _answer(400, {"message": f"invalid notice {notice}"})
        self.occurrences[notice["key"]] = self.occurrences.get(notice["key"], 0) + 1
        return _answer(200, {"id": "1"})


class Shown:
    """The status that the charm would show now, and how often it was read."""

    def __init__(self) -> None:
        self.now = b"nothing"
        self.looks = 0

    def status(self) -> bytes:
        self.looks += 1
        return self.now

    async def look_again(self) -> None:
        """Return after two more reads: the first one may have begun before."""
        seen = self.looks
        await until(lambda: self.looks >= seen + 2, "it looks again", within=30)


@asynccontextmanager
async def telling(pebble: Pebble, shown: Shown, *, gap: float = 0.01) -> AsyncGenerator[None]:
    async with background(Notices(pebble.socket, shown.status, look=0.01, gap=gap).run()):
        yield


async def told(pebble: Pebble, times: int) -> None:
    await until(lambda: pebble.occurrences.get(KEY) == times, f"told {times} times", within=30)


@driven
async def test_a_notice_is_sent_at_the_start_and_after_each_change() -> None:
    shown = Shown()
    async with Pebble() as pebble:
        await pebble.start()
        async with telling(pebble, shown):
            await told(pebble, 1)
            await shown.look_again()
            shown.now = b"something"
            await told(pebble, 2)
            await shown.look_again()
            assert pebble.occurrences == {KEY: 2}


@driven
async def test_a_change_while_pebble_was_away_is_noticed_when_it_is_back() -> None:
    shown = Shown()
    async with Pebble() as pebble, telling(pebble, shown):
        await shown.look_again()
        shown.now = b"something"
        await shown.look_again()
        await pebble.start()
        await told(pebble, 1)
        await shown.look_again()
        assert pebble.occurrences == {KEY: 1}, "it tells once, not of each change"


@driven
async def test_a_refused_notice_is_logged_once_and_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shown = Shown()
    async with Pebble() as pebble:
        await pebble.start()
        pebble.refuses = True
        async with telling(pebble, shown):
            await until(lambda: caplog.records, "it complains", within=30)
            await shown.look_again()
            pebble.refuses = False
            await told(pebble, 1)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"{pebble.socket}: notice not added: 403 ")


@driven
async def test_a_change_that_is_reverted_in_time_sends_no_notice() -> None:
    shown = Shown()
    async with Pebble() as pebble:
        await pebble.start()
        async with telling(pebble, shown):
            await told(pebble, 1)
            pebble.refuses, shown.now = True, b"something"
            await shown.look_again()
            shown.now = b"nothing"
            await shown.look_again()
            pebble.refuses = False
            await shown.look_again()
            assert pebble.occurrences == {KEY: 1}


@driven
async def test_notices_keep_a_gap() -> None:
    """A charm must keep up; a machine that is slow only makes the gaps longer."""

    class Restless(Shown):
        def status(self) -> bytes:
            self.now += b"."
            return super().status()

    began = asyncio.get_running_loop().time()
    async with Pebble() as pebble:
        await pebble.start()
        async with telling(pebble, Restless(), gap=0.2):
            await told(pebble, 3)
    assert asyncio.get_running_loop().time() - began >= 0.4
