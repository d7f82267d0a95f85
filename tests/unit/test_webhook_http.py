"""HTTP/1.1 at the webhook, byte by byte."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.asynchronous import driven, until
from unit.hooked import JSON, chunked, post, review, serving

HEAD = f"POST /mutate HTTP/1.1\r\nHost: x\r\n{JSON}\r\n".encode()


@driven
async def test_a_body_may_come_in_chunks_and_with_a_trailer(tmp_path: Path) -> None:
    body = review()
    async with serving(tmp_path) as hook, hook.client() as client:
        answer = await client.ask(chunked(body[:9], body[9:], trailer=b"Checksum: x\r\n"))
        assert (answer.status, answer.response["uid"]) == (200, "u-1")
        assert (await client.ask(post(review()))).status == 200


@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
@driven
async def test_another_protocol_is_not_switched_to(protocol: str, tmp_path: Path) -> None:
    upgrade = ("Connection: Upgrade", f"Upgrade: {protocol}")
    async with serving(tmp_path) as hook, hook.client() as client:
        assert (await client.ask(post(review(), *upgrade))).status == 200
        assert (await client.ask(post(review()))).status == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\x01\x02\x03\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Folded: a\r\n b\r\n\r\n",
    ],
)
@driven
async def test_malformed_http_gets_400(sent: bytes, tmp_path: Path) -> None:
    """Request smuggling above all: what two parsers could read in two ways."""
    async with serving(tmp_path) as hook, hook.client() as client:
        answer = await client.ask(sent)
        assert await client.closed()
        await until(lambda: hook.ended("refused") == 1, "it is closed")
    assert (answer.status, answer.headers["Connection"]) == (400, "close")
    assert answer.body.startswith(b"no HTTP/1.1: ")
    assert hook.reviews("malformed") == 1


@driven
async def test_a_request_without_a_version_gets_400(tmp_path: Path) -> None:
    """A parser may read it as HTTP/0.9, which has no headers."""
    async with serving(tmp_path) as hook, hook.client() as client:
        answer = await client.ask(post(review()).replace(b" HTTP/1.1", b"", 1))
        assert await client.closed()
    assert answer.status == 400
    assert hook.reviews("malformed") == 1


@driven
async def test_a_body_over_4_mib_gets_413_before_it_is_read(tmp_path: Path) -> None:
    async with serving(tmp_path) as hook, hook.client() as client:
        answer = await client.ask(HEAD + b"Content-Length: %d\r\n\r\n" % ((4 << 20) + 1))
        assert await client.closed()
    assert (answer.status, answer.body) == (413, b"body over 4194304 bytes\n")
    assert hook.reviews("too-large") == 1


@driven
async def test_a_client_that_sends_the_whole_of_a_too_large_body_reads_413(tmp_path: Path) -> None:
    """After a reset the client would report a network error."""
    async with serving(tmp_path, linger=30) as hook:
        answer = await hook.insist(post(b" " * (5 << 20)))
    assert answer.status == 413


@driven
async def test_chunks_over_4_mib_get_413(tmp_path: Path) -> None:
    async with serving(tmp_path, linger=30) as hook:
        answer = await hook.insist(chunked(*[b" " * (1 << 20)] * 5))
    assert answer.status == 413
    assert hook.listener.connections.cost == 0


@pytest.mark.parametrize(
    "sent",
    [
        HEAD + b"X: " + b"x" * 70_000,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: " + b"x" * 70_000,
    ],
    ids=["header", "trailer"],
)
@driven
async def test_a_large_head_gets_400(sent: bytes, tmp_path: Path) -> None:
    async with serving(tmp_path, linger=30) as hook, hook.client() as client:
        answer = await client.ask(sent)
    assert answer.status == 400
    assert answer.body.startswith(b"no HTTP/1.1: ")
    assert hook.reviews("malformed") == 1


@driven
async def test_a_header_of_4_kib_is_read(tmp_path: Path) -> None:
    """Such as a token."""
    async with serving(tmp_path) as hook, hook.client() as client:
        for _ in range(3):
            assert (await client.ask(post(review(), "X: " + "x" * 4000))).status == 200
