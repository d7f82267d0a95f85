"""Pebble gets a notice of each change, even if it was away meanwhile."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Self

import pytest
from aiohttp import web
from istio_aux.model.answers import ProcessStatus
from istio_aux.status import GAP, KEY, send_notices
from msgspec.structs import replace
from unit.asynchronous import background, until
from unit.test_status import BEFORE


class Pebble:
    """Pebble's API for notices on a unix socket, which counts them.

    Attributes:
        socket: where it listens after `start`.
        occurrences: how often each key was sent.
        refuses: answer every request with 403.
    """

    def __init__(self) -> None:
        self.occurrences = Counter[str]()
        self.refuses = False
        self._stack = AsyncExitStack()
        # A socket's path has less than 108 bytes; pytest's own folders may need more.
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp"))
        self.socket = Path(folder) / "pebble.socket"

    async def __aenter__(self) -> Self:
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
        notice = await request.json()
        assert (notice["action"], notice["type"]) == ("add", "custom")
        self.occurrences[notice["key"]] += not self.refuses
        return web.Response(status=403 if self.refuses else 200)


class Watched:
    """The status that the charm would show now, and how often it was read."""

    def __init__(self) -> None:
        self.now = "nothing"
        self.looks = 0

    async def status(self) -> ProcessStatus:
        self.looks += 1
        return replace(BEFORE, selected_namespaces=[self.now])

    async def look_again(self) -> None:
        """Return after two more reads: the first one may have begun before."""
        seen = self.looks
        await until(lambda: self.looks >= seen + 2, "it looks again", within=30)


@asynccontextmanager
async def telling(pebble: Pebble, shown: Watched, *, gap: float = 0.01) -> AsyncGenerator[None]:
    async with background(send_notices(pebble.socket, shown.status, poll=0.01, gap=gap)):
        yield


async def told(pebble: Pebble, times: int) -> None:
    await until(lambda: pebble.occurrences.get(KEY) == times, f"told {times} times", within=30)


async def test_a_notice_is_sent_at_the_start_and_after_each_change() -> None:
    shown = Watched()
    async with Pebble() as pebble:
        await pebble.start()
        async with telling(pebble, shown):
            await told(pebble, 1)
            await shown.look_again()
            shown.now = "something"
            await told(pebble, 2)
            await shown.look_again()
            assert +pebble.occurrences == {KEY: 2}


async def test_a_change_while_pebble_was_away_is_noticed_when_it_is_back() -> None:
    shown = Watched()
    async with Pebble() as pebble, telling(pebble, shown):
        await shown.look_again()
        shown.now = "something"
        await shown.look_again()
        await pebble.start()
        await told(pebble, 1)
        await shown.look_again()
        assert pebble.occurrences == {KEY: 1}, "it tells once, not of each change"


async def test_a_refused_notice_is_logged_once_and_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shown = Watched()
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


async def test_there_are_at_most_six_notices_in_a_minute_whatever_changes() -> None:
    """The next one comes after the gap, and says what is so then."""
    shown = Watched()
    async with Pebble() as pebble:
        await pebble.start()
        async with telling(pebble, shown, gap=600):
            await told(pebble, 1)
            shown.now = "something"
            await shown.look_again()
            assert pebble.occurrences == {KEY: 1}
    assert GAP >= 60 / 6
