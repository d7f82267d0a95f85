"""Pebble's API for notices on a unix socket."""

from __future__ import annotations

import asyncio
import re
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from aiohttp import web

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
        times: when, by the loop's clock.
        refuses: answer every request with 403.
    """

    def __init__(self) -> None:
        self.occurrences: dict[str, int] = {}
        self.times: list[float] = []
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
        self.times.append(asyncio.get_running_loop().time())
        self.occurrences[notice["key"]] = self.occurrences.get(notice["key"], 0) + 1
        return _answer(200, {"id": "1"})
