"""Turns: bounded in all and in each namespace, fair, the earliest deadline first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from istio_aux.repair.turns import Turns
from unit.asynchronous import driven


class Line:
    """Tasks that want a turn, and those that have one.

    Attributes:
        begun: the deadlines of those that got a turn, by namespace and in order.
    """

    def __init__(self, at_once: int, of_namespace: int) -> None:
        self.turns = Turns(at_once, of_namespace)
        self.begun: list[tuple[str, float]] = []
        self.tasks: dict[tuple[str, float], asyncio.Task[None]] = {}
        self._ends: dict[tuple[str, float], asyncio.Event] = {}

    def want(self, namespace: str, *deadlines: float) -> None:
        for deadline in deadlines:
            who = namespace, deadline
            self._ends[who] = asyncio.Event()
            self.tasks[who] = asyncio.create_task(self._turn(*who))

    async def _turn(self, namespace: str, deadline: float) -> None:
        async with self.turns.take(namespace, deadline):
            self.begun.append((namespace, deadline))
            await self._ends[namespace, deadline].wait()

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def end(self, namespace: str, deadline: float) -> None:
        self._ends[namespace, deadline].set()
        await self.settle()


@asynccontextmanager
async def line(at_once: int, of_namespace: int) -> AsyncGenerator[Line]:
    found = Line(at_once, of_namespace)
    yield found
    for task in found.tasks.values():
        task.cancel()
    await asyncio.gather(*found.tasks.values(), return_exceptions=True)


@driven
async def test_a_namespace_has_no_more_turns_than_its_share() -> None:
    async with line(at_once=3, of_namespace=2) as found:
        found.want("a", 1, 2, 3)
        found.want("b", 1, 2)
        await found.settle()
        assert found.begun == [("a", 1), ("a", 2), ("b", 1)]


@driven
async def test_namespaces_take_turns() -> None:
    async with line(at_once=1, of_namespace=1) as found:
        found.want("a", 1, 2, 3)
        found.want("b", 1)
        await found.settle()
        await found.end("a", 1)
        await found.end("a", 2)
        await found.end("b", 1)
        assert found.begun == [("a", 1), ("a", 2), ("b", 1), ("a", 3)]


@driven
async def test_in_a_namespace_the_earliest_deadline_comes_first() -> None:
    async with line(at_once=1, of_namespace=1) as found:
        found.want("a", 5, 9, 7)
        await found.settle()
        found.want("a", 2)
        await found.settle()
        await found.end("a", 5)
        await found.end("a", 2)
        assert found.begun == [("a", 5), ("a", 2), ("a", 7)]


@driven
async def test_a_task_that_is_cancelled_gives_back_its_turn_and_its_place() -> None:
    async with line(at_once=1, of_namespace=1) as found:
        found.want("a", 1, 2, 3)
        await found.settle()
        found.tasks["a", 2].cancel()  # It waits.
        found.tasks["a", 1].cancel()  # It has its turn.
        await found.settle()
        assert found.begun == [("a", 1), ("a", 3)]
