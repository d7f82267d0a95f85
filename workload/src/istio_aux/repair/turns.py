"""Turns: who may send requests now, when many want to.

The bound in all protects the API server. The bound for each namespace protects the others: a tenant
with a thousand Jobs, or with requests that hang, delays only itself.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Turns:
    """Gives namespaces their turn one after another; in each, the earliest deadline comes first."""

    def __init__(self, at_once: int, of_namespace: int) -> None:
        """Bound how many have their turn ``at_once``, and how many of them in one namespace."""
        self._free, self._each = at_once, of_namespace
        self._taken = Counter[str]()
        self._waiting: dict[str, list[tuple[float, int, asyncio.Future[None]]]] = {}
        self._numbers = itertools.count()

    @asynccontextmanager
    async def take(self, namespace: str, deadline: float) -> AsyncGenerator[None]:
        """Wait for a turn, which lasts as long as the context."""
        turn = asyncio.get_running_loop().create_future()
        entry = deadline, next(self._numbers), turn
        heapq.heappush(self._waiting.setdefault(namespace, []), entry)
        self._grant()
        try:
            await turn
            yield
        finally:
            # A task that is cancelled while it waits cancels its future, which stays in the line.
            if not turn.cancelled():
                self._free += 1
                self._taken[namespace] -= 1
                self._taken += Counter[str]()  # Drops zeros.
                self._grant()

    def _grant(self) -> None:
        """Let the next ones begin."""
        while self._free:
            below = (name for name in self._waiting if self._taken[name] < self._each)
            if (namespace := next(below, None)) is None:
                return
            line = self._waiting.pop(namespace)
            _, _, turn = heapq.heappop(line)
            if line:
                self._waiting[namespace] = line  # Behind the others.
            if not turn.cancelled():
                turn.set_result(None)
                self._free -= 1
                self._taken[namespace] += 1
