"""Who has a slot for an attempt, and when, among nodes and namespaces that hang."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from istio_aux.quit.attempt import QuitLimits
from istio_aux.tasks import REMEMBERED, Slots
from unit.process import VirtualLoop

LIMITS = QuitLimits()
PROMPT = 0.1  # Seconds of an attempt that is answered.
PROMISED = 10.0
"""Seconds until a pod of a namespace and on a node that answer is attempted."""


@dataclass(frozen=True)
class Finished:
    """A pod that has to be attempted from a time on."""

    at: float
    namespace: str
    node: str


def in_virtual_time(work: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """The work, which has a loop of its own."""

    def run() -> None:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(work())

    return run


def waits(pods: Sequence[Finished], hang: frozenset[str]) -> dict[Finished, float]:
    """The longest wait of pods that answer, by pod; the names in ``hang`` do not answer."""
    found = {pod: 0.0 for pod in pods if not {pod.namespace, pod.node} & hang}

    async def play() -> None:
        slots, clock = Slots(LIMITS.at_once, LIMITS.slot), asyncio.get_running_loop().time

        async def attempt(pod: Finished) -> None:
            await asyncio.sleep(pod.at)
            asked = clock()
            async with slots.take(pod.namespace, pod.node) as slot:
                waited = clock() - asked
                slot.give_back_after(LIMITS.slot, LIMITS.deadline)
                if pod in found:
                    found[pod] = max(waited, found[pod])
                await asyncio.sleep(PROMPT if pod in found else LIMITS.deadline)

        tasks = [(pod, asyncio.create_task(attempt(pod))) for pod in pods]
        await asyncio.gather(*(task for pod, task in tasks if pod in found))

    in_virtual_time(play)()
    return found


@pytest.mark.parametrize("number", [1, 4, 24, 100])
def test_namespaces_that_hang_delay_no_other_one(number: int) -> None:
    """However many they are, and with 100 pods each, on the same node."""
    honest = Finished(20, "team", "node")
    hung = [Finished(0, f"hung-{index}", "node") for index in range(number)] * 100
    hang = frozenset(pod.namespace for pod in hung)
    assert waits([*hung, honest], hang)[honest] <= LIMITS.slot


GOOD, BAD = [f"good-{index}" for index in range(6)], [f"bad-{index}" for index in range(24)]
NODES, HUNG = [f"node-{index}" for index in range(4)], [f"hung-{index}" for index in range(4)]
TIMES = st.sampled_from([0.0, 0.5, 1.0, 3.0, 10.0, 30.0])
ANSWER = st.builds(Finished, TIMES, st.sampled_from(GOOD), st.sampled_from(NODES))
HANG = st.one_of(
    st.builds(Finished, TIMES, st.sampled_from(BAD), st.sampled_from(NODES + HUNG)),
    st.builds(Finished, TIMES, st.sampled_from(GOOD), st.sampled_from(HUNG)),
)


@given(
    st.lists(ANSWER, min_size=1, max_size=40),
    st.lists(st.tuples(HANG, st.sampled_from([1, 30, 110])), max_size=12),
)
def test_a_pod_that_answers_is_attempted_in_the_promised_time_whatever_hangs(
    answer: list[Finished], hang: list[tuple[Finished, int]]
) -> None:
    others = [pod for pod, number in hang for _ in range(number)]
    assert max(waits([*others, *answer], frozenset(BAD + HUNG)).values()) <= PROMISED


@in_virtual_time
async def test_those_that_stop_waiting_leave_nothing() -> None:
    """Whether they are stopped before or after it is their turn."""
    slots = Slots(1, LIMITS.slot)

    async def attempt() -> None:
        async with slots.take("team", "node"):
            await asyncio.sleep(10)

    tasks = [asyncio.create_task(attempt()) for _ in range(4)]
    await asyncio.sleep(1)
    tasks[2].cancel()  # It waits.
    tasks[0].cancel()  # Its slot goes to the next one ...
    await asyncio.sleep(0)
    tasks[1].cancel()  # ... which is stopped before it knows.
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results[:3]] == [asyncio.CancelledError] * 3
    assert results[3] is None
    assert vars(slots) == vars(Slots(1, LIMITS.slot))


@in_virtual_time
async def test_what_namespaces_have_used_is_bounded_while_one_of_them_hangs() -> None:
    slots = Slots(50, LIMITS.slot)
    async with slots.take("hung", "node"):
        for number in range(3 * REMEMBERED):
            async with slots.take(f"team-{number}", "node"):
                pass
        assert len(slots._used) <= REMEMBERED


@in_virtual_time
async def test_a_node_has_half_of_the_slots_and_a_namespace_a_quarter() -> None:
    slots, held = Slots(24, LIMITS.slot), list[tuple[str, str]]()

    async def attempt(namespace: str, node: str) -> None:
        async with slots.take(namespace, node):
            held.append((namespace, node))
            await asyncio.sleep(100)

    pods = [(f"n-{index % 3}", "node") for index in range(60)] + [("n-0", "other")] * 10
    pods += [("n-9", "")] * 10
    tasks = [asyncio.create_task(attempt(*pod)) for pod in pods]
    await asyncio.sleep(1)
    assert sum(node == "node" for _, node in held) == 12
    assert [sum(space == f"n-{index}" for space, _ in held) for index in (0, 1, 2, 9)] == [
        6, 4, 4, 6,
    ]  # fmt: skip
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
