"""Pebble gets a notice of each change, even if it was away meanwhile."""

from __future__ import annotations

import itertools
import re
import tempfile
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Self

import pytest
from aiohttp import web
from istio_aux.model.answers import ProcessStatus
from istio_aux.status import KEY, Notices, Pace
from msgspec.structs import replace
from unit.asynchronous import background, until
from unit.test_status import BEFORE

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


class Watched:
    """The status that the charm would show now, and how often it was read."""

    def __init__(self) -> None:
        self.now = "nothing"
        self.well = True
        self.looks = 0

    async def status(self) -> ProcessStatus:
        self.looks += 1
        return replace(BEFORE, selected_namespaces=[self.now], lost_total=int(not self.well))

    async def look_again(self) -> None:
        """Return after two more reads: the first one may have begun before."""
        seen = self.looks
        await until(lambda: self.looks >= seen + 2, "it looks again", within=30)


QUICK = Pace(gap=0.01, minute=0.1)


@asynccontextmanager
async def telling(pebble: Pebble, shown: Watched, *, pace: Pace = QUICK) -> AsyncGenerator[None]:
    async with background(Notices(pebble.socket, shown.status, poll=0.01, pace=pace).run()):
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
            assert pebble.occurrences == {KEY: 2}


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


def test_the_gap_grows_but_for_a_status_that_turned_bad() -> None:
    pace, sent = Pace(gap=0.2), deque([0.0])
    pauses = list[float]()
    for _ in range(3):
        pauses.append(pace.pause(sent, sent[-1], worse=False))
        assert pace.pause(sent, sent[-1], worse=True) == pytest.approx(0.2)
        sent.append(sent[-1] + pauses[-1])
    assert pauses == pytest.approx([0.2, 0.4, 0.8])
    assert Pace().pause(deque([0.0, 2.0, 6.0]), 66.0, worse=False) == 0, "after a quiet minute"


@pytest.mark.parametrize("worse", [[False], [True], [True, False], [True, False, False, False]])
def test_there_are_at_most_six_notices_in_a_minute_whatever_changes(worse: list[bool]) -> None:
    """An hour in which every look finds another status, half a second apart."""
    pace, sent, every = Pace(), list[float](), deque[float](maxlen=Pace().most)
    turns = itertools.cycle(worse)
    for look in range(7200):
        now = look / 2
        if not pace.pause(every, now, worse=next(turns)):
            sent.append(now)
            every.append(now)

    assert max(sum(0 <= other - first < 60 for other in sent) for first in sent) <= 6
    assert len(sent) > 60 * 3, "nor does it fall asleep"
