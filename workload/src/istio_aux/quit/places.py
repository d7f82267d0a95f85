"""Slots for what may be under way at once, shared by nodes: one that hangs cannot take them all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext
from weakref import WeakValueDictionary


class Places:
    """So many slots, of which the pods of one node have a quarter at most.

    A slot is held until the request has really ended, so that a slow API server never sees more of
    them at once; deadlines bound that.
    """

    def __init__(self, number: int) -> None:
        """Have ``number`` slots."""
        self._free, self._share = asyncio.Semaphore(number), max(1, number // 4)
        # A node is forgotten with the last of its pods that waits.
        self._nodes = WeakValueDictionary[str, asyncio.Semaphore]()

    @asynccontextmanager
    async def take(self, node: str) -> AsyncGenerator[None]:
        """Hold a slot for a pod of ``node``, empty if that is unknown, while the body runs."""
        share = self._nodes.setdefault(node, asyncio.Semaphore(self._share)) if node else None
        async with share or nullcontext(), self._free:
            yield
