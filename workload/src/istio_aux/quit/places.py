"""Bounded concurrency that those who hang cannot use up.

Only the counting of places may live here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Places:
    """A number of places for things to be done at once. A class because it counts them."""

    def __init__(self, number: int, slow: float) -> None:
        """Have ``number`` places; whoever holds one longer than ``slow`` seconds loses it."""
        self._free, self._slow = asyncio.Semaphore(number), slow

    @asynccontextmanager
    async def take(self) -> AsyncGenerator[None]:
        """Hold a place as long as the body runs, at most ``slow`` seconds; the body goes on."""
        await self._free.acquire()
        held = True

        def give_back() -> None:
            nonlocal held
            if held:
                held = False
                self._free.release()

        slow = asyncio.get_running_loop().call_later(self._slow, give_back)
        try:
            yield
        finally:
            slow.cancel()
            give_back()
