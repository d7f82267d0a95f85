"""The webhook's end: reviews that are under way when it is told to stop are not lost."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import pytest
from unit.asynchronous import driven, until
from unit.hooked import Bare, post, review, serving


@driven
async def test_a_server_that_is_about_to_stop_answers_and_asks_for_a_new_connection(
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
async def test_a_server_that_is_about_to_stop_still_takes_new_connections(tmp_path: Path) -> None:
    """An API server hears later than we do that this endpoint ends (kubernetes#127335)."""
    async with serving(tmp_path) as hook:
        hook.webhook.drain()
        assert (await hook.ask(post(review()))).status == 200


@driven
async def test_an_idle_connection_is_not_closed_before_the_end(tmp_path: Path) -> None:
    async with serving(tmp_path) as hook, hook.client() as client:
        await client.ask(post(review()))
        hook.webhook.drain()
        assert (await hook.ask(post(review()))).status == 200
        assert (await client.ask(post(review()))).status == 200


@driven
async def test_a_review_that_races_with_the_end_is_asked_to_come_again(tmp_path: Path) -> None:
    """client-go repeats a POST for this answer, and for no closed connection."""
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
async def test_a_review_that_is_arriving_is_still_answered(tmp_path: Path) -> None:
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
async def test_a_connection_that_waits_in_the_kernel_is_still_served(tmp_path: Path) -> None:
    async with serving(tmp_path) as hook:
        with closing(Bare(hook.port, hook.trust)) as client:
            ending = asyncio.create_task(hook.webhook.close(5))
            await client.shake_hands()
            client.write(post(review()))
            await client.flush()
            assert (await client.read()).startswith(b"HTTP/1.1 200")
        await ending


@driven
async def test_the_end_does_not_wait_longer_than_it_is_told(tmp_path: Path) -> None:
    async with serving(tmp_path) as hook, hook.client() as client:
        await client.send(post(review())[:50])
        await until(lambda: hook.connections, "it is there")
        await hook.webhook.close(0.1)
        assert await client.closed()
        assert hook.connections == 0


@driven
async def test_a_port_that_is_taken_is_an_os_error(tmp_path: Path) -> None:
    async with serving(tmp_path) as hook:
        with pytest.raises(OSError, match="address already in use"):
            await hook.webhook.listen("127.0.0.1", hook.port, lambda: hook.trust)


@driven
async def test_what_never_listened_is_closed_without_further_ado(tmp_path: Path) -> None:
    async with serving(tmp_path) as hook:
        await hook.webhook.close(0)
        await hook.webhook.close(0)
