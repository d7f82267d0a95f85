"""Send random reviews and judge every answer. Case ``n`` of a seed is always the same."""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
from istio_aux.model.policy import StartPolicy
from istio_aux.start import review

from fuzz import bodies, judge, slow
from fuzz.bodies import INJECT, MUTATE, Ask
from fuzz.server import Server

CORPUS = Path(__file__).parent / "corpus"
CONNECTIONS = 16
INJECTS = 0.2
"""Share of cases that go to `/inject`."""
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


Case = tuple[str, Ask]


async def play(
    server: Server, count: int, seed: int, tell: Callable[[str], object] = lambda _: None
) -> tuple[list[str], Counter[int]]:
    """Play the corpus, then ``count`` cases of ``seed``; return findings, and answers by status.

    ``tell`` gets a line of text now and then.
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


def case(seed: int, number: int) -> Ask:
    dice = Random(f"{seed}:{number}")
    return Ask(bodies.make(dice), INJECT if dice.random() < INJECTS else MUTATE)


def _cases(seed: int, numbers: range) -> Iterator[Case]:
    return ((f"{seed}-{number}", case(seed, number)) for number in numbers)


def _kept() -> Iterator[Case]:
    for file in sorted(CORPUS.glob("*.body")):
        for path in (MUTATE, INJECT):
            yield file.stem, Ask(file.read_bytes(), path)


async def least(
    work: Callable[[], Any], clock: Callable[[], float], allowed: float
) -> tuple[float, Any]:
    """The seconds that ``work`` takes by a clock of CPU, and what it returns, awaited.

    The smallest of several measurements counts, because other load only adds to it.
    """
    seconds, found = math.inf, None
    for _ in range(TRIES):
        began = clock()
        found = work()
        if inspect.isawaitable(found):
            found = await found
        seconds = min(seconds, clock() - began)
        if seconds <= allowed:
            break
    return seconds, found


async def _measure(server: Server, findings: list[str], tell: Callable[[str], object]) -> None:
    """Send the slow bodies, one at a time."""
    slowest = (0.0, "")
    for name, ask in slow.asks():
        seconds, answer = await least(partial(server.answer, ask), lambda: server.cpu, BUDGET)
        found = judge.of_slow(slow.UID, answer)
        findings += [f"{name}: {what}" for what in (*found, *_beyond(seconds))]
        slowest = max(slowest, (seconds, name))
    tell(f"the slowest answer took {slowest[0] * 1000:.1f} ms of CPU: {slowest[1]}")


def _beyond(seconds: float) -> list[str]:
    return [f"{seconds:.3f} s of CPU, at most {BUDGET} are allowed"] if seconds > BUDGET else []


def _decide(ask: Ask) -> None:
    with suppress(review.Malformed):
        review.answer(ask.body, lambda _: StartPolicy(), requested=ask.path == INJECT)


async def _run(
    server: Server, cases: Iterator[Case], findings: list[str], answers: Counter[int]
) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(CONNECTIONS):
            group.create_task(_take(server, cases, findings, answers))


async def _take(
    server: Server, cases: Iterator[Case], findings: list[str], answers: Counter[int]
) -> None:
    """Send cases until there are no more, or there is a finding, which is kept in the corpus."""
    for name, ask in cases:
        if findings:
            break
        try:
            async with asyncio.timeout(60):
                found = await _judge(server, ask, answers)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            found = [repr(error)]
        if found:
            (CORPUS / f"{name}.body").write_bytes(ask.body)
            findings += [f"{name}: {what}" for what in found]


async def _judge(server: Server, ask: Ask, answers: Counter[int]) -> list[str]:
    answer = await server.answer(ask)
    answers[answer.status] += 1
    seconds, _ = await least(partial(_decide, ask), time.thread_time, BUDGET)
    found = [*judge.of(ask, answer), *_beyond(seconds)]
    if not found and (again := judge.again(ask.body, answer)) is not None:
        found += judge.of_again(await server.answer(Ask(again, ask.path)))
    return found
