"""Slots for what may be under way at once, shared so that one node or namespace cannot take all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary


class Places:
    """So many slots: half of them at most for the pods of one node, a quarter for a namespace's.

    A node may hang, and a tenant may have pods whose agents hang. On a cluster of one node the
    other tenants still have a share. A slot is held until the request has really ended, so that a
    slow API server never sees more of them at once; deadlines bound that.
    """

    def __init__(self, number: int) -> None:
        """Have ``number`` slots."""
        self._number, self._free = number, asyncio.Semaphore(number)
        # A share is forgotten with the last pod that waits for it.
        self._shares = WeakValueDictionary[str, asyncio.Semaphore]()

    @asynccontextmanager
    async def take(self, namespace: str, node: str) -> AsyncGenerator[None]:
        """Hold a slot for a pod while the body runs; ``node`` is empty if it is unknown."""
        of_namespace = self._share(f"namespace {namespace}", 4)
        of_node = self._share(f"node {node}", 2 if node else 1)
        async with of_namespace, of_node, self._free:
            yield

    def _share(self, name: str, part: int) -> asyncio.Semaphore:
        return self._shares.setdefault(name, asyncio.Semaphore(max(1, self._number // part)))
