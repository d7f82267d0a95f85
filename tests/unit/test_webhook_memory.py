"""What clients cost in memory, and that it is given back (T37)."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from pathlib import Path

import pytest
from istio_aux.serving import Connection
from istio_aux.shedding import STARTED
from istio_aux.telemetry import Closed
from unit.asynchronous import background, descriptors, driven, until
from unit.hooked import BEGUN, Hook, post, raw, review, serving


@driven
async def test_a_handshake_takes_little_memory(tmp_path: Path) -> None:
    """There may be 1,024. asyncio allocates 256 KiB for each by default."""
    async with serving(tmp_path) as hook:
        with ExitStack() as stack:
            listener = hook.webhook._listener
            assert listener
            tracemalloc.start()
            stack.callback(tracemalloc.stop)
            for _ in range(20):
                stack.enter_context(raw(hook)).send(b"\x16")
            await until(
                lambda: sum(one.started is not None for one in listener.connections) == 20,
                "they began",
            )
            await asyncio.sleep(0)  # Each task makes its TLS object in its first turn.
            assert tracemalloc.get_traced_memory()[1] < 20 * (100 << 10)


@driven
async def test_requests_that_take_too_much_memory_together_get_503_the_oldest_first(
    tmp_path: Path,
) -> None:
    """client-go retries within its deadline (rest/with_retry.go)."""
    async with serving(tmp_path, memory=3 * 300_000) as hook, hook.client() as oldest:
        await oldest.send(BEGUN + b" " * 65_300)  # 228,904 bytes, with its buffers.
        await hook.server_side(waits_for="request")
        async with hook.client() as second, hook.client() as third:
            for client in (second, third):
                await client.send(BEGUN + b" " * 65_300)
            await until(lambda: hook.listener.connections.cost > 3 * 220_000, "all has arrived")
            assert hook.ended("limit") == 0
            assert (await hook.ask(post(review()))).status == 200
            async with hook.client() as fourth:
                await fourth.send(BEGUN + b" " * 65_300)
                busy = await oldest.answer()
        assert (busy.status, busy.headers["Retry-After"]) == (503, "1")
        await until(lambda: hook.listener.connections.cost == 0, "all is given back")
        assert hook.reviews("busy") == hook.ended("limit") == 1


@driven
async def test_what_a_request_took_is_given_back_with_its_answer(tmp_path: Path) -> None:
    async with serving(tmp_path) as hook, hook.client() as client:
        await client.ask(post(review(metadata={"annotations": {"note": "x" * 50_000}})))
        assert hook.listener.connections.cost < STARTED + 5_000


@driven
async def test_an_answer_that_is_not_read_is_counted(tmp_path: Path) -> None:
    large = review().replace(b"u-1", b"u" * 400_000)
    async with serving(tmp_path) as hook, hook.client() as client:
        client.pause()
        async with background(client.send(post(large) * 50)):
            await hook.server_side(writing_paused=True)
            assert hook.listener.connections.cost > STARTED + 400_000
        client.leave()


@driven
async def test_hostile_clients_leave_nothing_behind(tmp_path: Path) -> None:
    async def hostile(number: int) -> None:
        with raw(hook) as connection:
            await asyncio.get_running_loop().sock_sendall(connection, b"GET / HTTP/1.1\r\n\r\n")
        async with hook.client() as client:
            await client.send((BEGUN, b"\x00", post(b"{"), BEGUN + b" " * 99_999)[number % 4])
            client.leave()

    async with serving(tmp_path) as hook:
        await hook.ask(post(review()))
        await until(lambda: hook.connections == 0, "the first is gone")
        before, tasks = descriptors(), len(asyncio.all_tasks())
        await asyncio.gather(*(hostile(number) for number in range(40)))
        await until(lambda: hook.connections == 0, "all are gone")
        await until(lambda: len(asyncio.all_tasks()) == tasks, "no task is left")
        assert descriptors() == before
        assert hook.listener.connections.cost == 0
        assert (await hook.ask(post(review()))).status == 200


async def answered(hook: Hook) -> None:
    await hook.ask(post(review()))


async def left(hook: Hook) -> None:
    """The client leaves within its request."""
    async with hook.client() as client:
        await client.send(BEGUN + b"{")
        await hook.server_side(waits_for="request")
        client.leave()


async def closed(hook: Hook) -> None:
    """It is closed within its request, for another one."""
    async with hook.client() as client:
        await client.send(BEGUN + b"{")
        (await hook.server_side(waits_for="request")).end(Closed.LIMIT)
        await client.closed()


async def failed(hook: Hook) -> None:
    """The client leaves within its handshake."""
    with raw(hook) as client:
        client.send(b"\x16\x03\x01\x02\x00")
        await until(lambda: any(one.started for one in hook.listener.connections), "it has begun")


@pytest.mark.parametrize("end", [answered, left, closed, failed])
@driven
async def test_a_connection_is_freed_without_the_garbage_collector(
    end: Callable[[Hook], Coroutine[None, None, None]], tmp_path: Path
) -> None:
    """Otherwise memory grows until the next full collection."""
    async with serving(tmp_path) as hook:
        gc.collect()
        gc.disable()
        try:
            for _ in range(5):
                await end(hook)
            await until(lambda: hook.connections == 0, "all are gone")
            await until(lambda: not kept(), "nothing is kept", within=10)
        finally:
            gc.enable()


def kept() -> list[Connection]:
    """The connections that the garbage collector has not collected yet."""
    return [one for one in gc.get_objects() if isinstance(one, Connection)]
