"""HTTP/1.1 at the webhook, byte by byte."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.asynchronous import driven, until
from unit.hooked import JSON, chunked, post, review, serving

HEAD = f"POST /mutate HTTP/1.1\r\nHost: x\r\n{JSON}\r\n".encode()


@driven
async def test_a_connection_is_used_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as hook, hook.client() as client:
        answers = [await client.ask(post(review())) for _ in range(3)]
        assert hook.connections == 1
        assert (await client.ask(post(review(), kind="X: y"))).status == 415, "headers end as well"
    assert [answer.status for answer in answers] == [200] * 3
    assert "Connection" not in answers[0].headers


@driven
async def test_pipelined_requests_are_answered_in_order(tmp_path: Path) -> None:
    async with serving(tmp_path) as hook, hook.client() as client:
        await client.send(post(b"{") + post(review()) + post(b"[]"))
        answers = [await client.answer() for _ in range(3)]
    assert [answer.status for answer in answers] == [400, 200, 400]


@driven
async def test_a_request_may_come_byte_by_byte(tmp_path: Path) -> None:
    async with serving(tmp_path) as hook, hook.client() as client:
        for byte in post(review(spec={})):
            await client.send(bytes([byte]))
        assert (await client.answer()).status == 200


@driven
async def test_a_body_may_come_in_chunks_and_with_a_trailer(tmp_path: Path) -> None:
    body = review()
    async with serving(tmp_path) as hook, hook.client() as client:
        answer = await client.ask(chunked(body[:9], body[9:], trailer=b"Checksum: x\r\n"))
        assert (answer.status, answer.response["uid"]) == (200, "u-1")
        assert (await client.ask(post(review()))).status == 200


@driven
async def test_expect_100_continue_is_answered(tmp_path: Path) -> None:
    body = review()
    head = HEAD + b"Content-Length: %d\r\nExpect: 100-Continue\r\n\r\n" % len(body)
    async with serving(tmp_path) as hook, hook.client() as client:
        assert (await client.ask(head)).status == 100
        assert (await client.ask(body)).status == 200


@driven
async def test_http_1_0_is_answered_and_closed(tmp_path: Path) -> None:
    request = post(review(), "Expect: 100-continue").replace(b"HTTP/1.1", b"HTTP/1.0")
    async with serving(tmp_path) as hook, hook.client() as client:
        answer = await client.ask(request)
        assert answer.status == 200
        assert await client.closed()


@driven
async def test_connection_close_is_honoured_after_the_answer(tmp_path: Path) -> None:
    async with serving(tmp_path) as hook, hook.client() as client:
        answer = await client.ask(post(review(), "Connection: close"))
        assert (answer.status, answer.headers["Connection"]) == (200, "close")
        assert await client.closed()


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
        b"POST /mutate HTTP/1.1\nHost: x\n\n",
        HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{",
        HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: gzip\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
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


@pytest.mark.parametrize("claimed", [(4 << 20) + 1, 1 << 60])
@driven
async def test_a_body_over_4_mib_gets_413_before_it_is_read(claimed: int, tmp_path: Path) -> None:
    async with serving(tmp_path) as hook, hook.client() as client:
        answer = await client.ask(HEAD + b"Content-Length: %d\r\n\r\n" % claimed)
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
        HEAD + b"X: y\r\n" * 12_000,
        b"POST /" + b"x" * 70_000,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: " + b"x" * 70_000,
    ],
    ids=["header", "headers", "path", "trailer"],
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
