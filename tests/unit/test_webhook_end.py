"""Shutdown of the webhook loses no review."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import pytest
from unit.asynchronous import driven, until
from unit.hooked import Bare, post, review, serving


@driven
async def test_while_draining_each_answer_closes_its_connection(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as hook:
        async with hook.client() as client:
            assert "Connection" not in (await client.ask(post(review()))).headers
            hook.webhook.drain()
            answer = await client.ask(post(review()))
            assert (answer.status, answer.headers["Connection"]) == (200, "close")
            assert await client.closed()
        await until(lambda: hook.ended("drain"), "it is gone")


@driven
async def test_while_draining_new_connections_are_accepted_and_idle_ones_stay(
    tmp_path: Path,
) -> None:
    """An API server learns later than we do that this endpoint ends (kubernetes#127335)."""
    async with serving(tmp_path) as hook, hook.client() as client:
        await client.ask(post(review()))
        hook.webhook.drain()
        assert (await hook.ask(post(review()))).status == 200
        assert (await client.ask(post(review()))).status == 200


@driven
async def test_a_review_that_crosses_the_close_gets_503_with_retry_after(tmp_path: Path) -> None:
    """client-go repeats a POST for this answer, not for a closed connection."""
    async with serving(tmp_path) as hook, hook.client() as client:
        await client.ask(post(review()))
        closing = asyncio.create_task(hook.webhook.close(5))
        answer = await client.answer()
        # Written before the client could know; a reset would take the answer back.
        await client.send(post(review()))
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        assert answer.headers["Connection"] == "close"
        assert await client.closed()
        await client.close()
        await closing
        assert hook.ended("drain") == 1


@driven
async def test_a_review_that_has_begun_is_answered(tmp_path: Path) -> None:
    request = post(review())
    async with serving(tmp_path) as hook, hook.client() as client:
        await client.send(request[:50])
        await until(lambda: hook.connections, "it is there")
        closing = asyncio.create_task(hook.webhook.close(5))
        with pytest.raises(OSError, match="Connect call failed"):
            await hook.connect_on()
        answer = await client.ask(request[50:])
        assert (answer.status, answer.headers["Connection"]) == (200, "close")
        await client.close()
        await closing


@driven
async def test_a_connection_in_the_kernels_queue_is_served(tmp_path: Path) -> None:
    async with serving(tmp_path) as hook:
        with closing(Bare(hook.port, hook.trust)) as client:
            ending = asyncio.create_task(hook.webhook.close(5))
            await client.shake_hands()
            client.write(post(review()))
            await client.flush()
            assert (await client.read()).startswith(b"HTTP/1.1 200")
        await ending


@driven
async def test_close_waits_no_longer_than_its_patience(tmp_path: Path) -> None:
    async with serving(tmp_path) as hook, hook.client() as client:
        await client.send(post(review())[:50])
        await until(lambda: hook.connections, "it is there")
        await hook.webhook.close(0.1)
        assert await client.closed()
        assert hook.connections == 0
