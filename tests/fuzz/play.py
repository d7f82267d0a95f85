"""Send random cases and judge every answer.

Case ``n`` of a seed is always the same, on whichever connection it is sent.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

from istio_aux.model.policy import Start
from istio_aux.start import review

from fuzz import bodies, judge, requests, slow
from fuzz.client import Connection, Garbled
from fuzz.judge import Answer
from fuzz.requests import INJECT, MUTATE, Ask, Talk
from fuzz.server import Server

CORPUS = Path(__file__).parent / "corpus"
CONNECTIONS = 16
TALKS = 0.04
"""Share of cases that need a connection of their own."""
INJECTS = 0.2
"""Share of the other cases that go to `/inject`."""
PARTS = 10
GROWTH = 10.0
"""MiB. 200,000 bodies that leave 60 bytes each behind would exceed it."""
ENOUGH = 100_000
"""Bodies. With fewer, the first large ones may come late, and with them their buffers."""
BUDGET = 0.1
"""Seconds of CPU for one answer with TLS and HTTP. All other reviews wait that long.

Linear code took 21 ms on a slow machine, for 2 MiB; quadratic code takes seconds.
"""
TRIES = 8
"""The smallest of so many measurements counts, because other load only adds to it."""


Case = tuple[str, Ask | Talk]


async def play(
    server: Server, count: int, seed: int, tell: Callable[[str], object] = lambda _: None
) -> tuple[list[str], Counter[int]]:
    """Play the corpus, then ``count`` cases of ``seed``; return findings, and answers by status.

    ``tell`` gets a line of text now and then. A case that causes a finding is kept in the corpus.
    """
    findings, answers, memory = list[str](), Counter[int](), list[float]()
    await _run(server, _kept(), findings, answers)
    await _measure(server, findings, tell)
    for part in range(PARTS):
        numbers = range(count * part // PARTS, count * (part + 1) // PARTS)
        await _run(server, _cases(seed, numbers), findings, answers)
        if findings or not server.alive:
            break
        memory.append(server.memory)
        by_status = "  ".join(f"{status}: {n}" for status, n in sorted(answers.items()))
        tell(f"{numbers.stop:>9} cases {memory[-1]:>8.1f} MiB  answers by status: {by_status}")
    if not server.alive:
        findings.append(f"the end: it exited: {server.process.returncode}")
    elif server.faults:
        findings.append(f"the end: {server.faults} internal errors")
    # The second part has filled all buffers and caches.
    if len(memory) == PARTS and count >= ENOUGH and (grown := memory[-1] - memory[1]) > GROWTH:
        findings.append(f"memory grew by {grown:.1f} MiB, at most {GROWTH:.0f} are allowed")
    return findings, answers


def keep(name: str, sent: Ask | Talk) -> None:
    """Add a case to the corpus."""
    if isinstance(sent, Talk):
        (CORPUS / f"{name}.talk").write_bytes(b"".join(sent.pieces))
    else:
        (CORPUS / f"{name}.body").write_bytes(sent.body)


def case(seed: int, number: int) -> Ask | Talk:
    """A request, or a talk on a connection of its own."""
    dice = Random(f"{seed}:{number}")
    if dice.random() < TALKS:
        return requests.make(dice)
    return Ask(bodies.make(dice), INJECT if dice.random() < INJECTS else MUTATE)


def _cases(seed: int, numbers: range) -> Iterator[Case]:
    return ((f"{seed}-{number}", case(seed, number)) for number in numbers)


def _kept() -> Iterator[Case]:
    for file in sorted(CORPUS.glob("*.body")):
        for path in (MUTATE, INJECT):
            yield file.name, Ask(file.read_bytes(), path)
    for file in sorted(CORPUS.glob("*.talk")):
        yield file.name, Talk([file.read_bytes()])


async def _measure(server: Server, findings: list[str], tell: Callable[[str], object]) -> None:
    """Send the slow bodies, one at a time."""
    slowest = (0.0, "")
    for name, ask in slow.asks():
        least, answer = math.inf, None
        for _ in range(TRIES):
            connection = await _connect(server)
            before = server.cpu
            await connection.send(ask.data)
            answer = await connection.answer()
            least = min(least, server.cpu - before)
            connection.close()
            if least < BUDGET:
                break
        found = list(judge.of_slow(slow.UID, answer)) if answer else ["no answer"]
        findings += [f"{name}: {what}" for what in (*found, *_beyond(least))]
        slowest = max(slowest, (least, name))
    tell(f"the slowest answer took {slowest[0] * 1000:.1f} ms of CPU: {slowest[1]}")


def _beyond(seconds: float) -> list[str]:
    return [f"{seconds:.3f} s of CPU, at most {BUDGET} are allowed"] if seconds > BUDGET else []


def cost(ask: Ask) -> float:
    """Seconds of CPU that the core takes for an answer: the smallest of several measurements."""
    least = math.inf
    for _ in range(TRIES):
        began = time.thread_time()
        with suppress(review.Malformed):
            review.answer(ask.body, Start(), inject=ask.path == INJECT)
        least = min(least, time.thread_time() - began)
        if least < BUDGET:
            break
    return least


async def _run(
    server: Server, cases: Iterator[Case], findings: list[str], answers: Counter[int]
) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(CONNECTIONS):
            group.create_task(_Player(server, findings, answers).take(cases))


class _Player:
    """Plays cases one after another."""

    def __init__(self, server: Server, findings: list[str], answers: Counter[int]) -> None:
        self._server, self._findings, self._answers = server, findings, answers
        self._connection: Connection | None = None

    async def take(self, cases: Iterator[Case]) -> None:
        """Play cases until there are no more, or there is a finding."""
        for name, sent in cases:
            if self._findings:
                break
            found: list[str] = []
            try:
                async with asyncio.timeout(60):
                    if isinstance(sent, Talk):
                        await self._talk(sent, found)
                    else:
                        await self._ask(sent, found)
            except (Garbled, OSError, TimeoutError) as error:
                found.append(repr(error))
            if found:
                keep(name, sent)
                self._findings += [f"{name}: {what}" for what in found]
        if self._connection:
            self._connection.close()

    async def _ask(self, ask: Ask, found: list[str]) -> None:
        answer = await self._answer(ask)
        found += judge.of(ask, answer)
        found += _beyond(cost(ask))
        if not found and (again := judge.again(ask.body, answer)) is not None:
            found += judge.of_again(await self._answer(Ask(again, ask.path)))

    async def _answer(self, ask: Ask) -> Answer:
        """Ask on the lasting connection; replace it when the answer closes it."""
        if self._connection is None:
            self._connection = await _connect(self._server)
        connection = self._connection
        await connection.send(ask.data)
        answer = await connection.answer()
        if answer is None:
            self._connection = None
            raise Garbled("the connection was closed without an answer")
        self._answers[answer.status] += 1
        if answer.closes:
            self._connection = None
            await _end(connection)
        return answer

    async def _talk(self, talk: Talk, found: list[str]) -> None:
        connection = await _connect(self._server)
        for piece in talk.pieces:
            await connection.send(piece)
        statuses: list[int] = []
        if not talk.answered:
            await connection.end()
        while (answer := await connection.answer()) is not None:
            statuses.append(answer.status)
            self._answers[answer.status] += 1
            found += judge.of_any(answer)
            if answer.closes:
                await _end(connection)
                break
            if len(statuses) == len(talk.answered):  # With TLS, asyncio answers nothing later.
                await connection.end()
        connection.close()
        if statuses[: len(talk.answered)] != talk.answered:
            found.append(f"answered {statuses}, expected {talk.answered}")


async def _connect(server: Server) -> Connection:
    connection = Connection(server.port, server.trust)
    await connection.shake_hands()
    return connection


async def _end(connection: Connection) -> None:
    if (more := await connection.answer()) is not None:
        raise Garbled(f"another answer after the last one: {more}")
    connection.close()
