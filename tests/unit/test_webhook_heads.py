"""Heads that are known: what they mean, and where what follows them ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from istio_aux.admission import heads
from unit.asynchronous import driven
from unit.hooked import JSON, chunked, post, review, serving

LINE = "POST /mutate?timeout=10s HTTP/1.1"
LENGTH = "Content-Length: 25000"


def head(*headers: str, line: str = LINE) -> bytes:
    return "\r\n".join((line, "Host: x", *headers, "", "")).encode()


@pytest.mark.parametrize(
    "known",
    [
        head(JSON, LENGTH),
        head(LENGTH, JSON, "Accept-Encoding: gzip", "Connection: keep-alive"),
        head(
            "content-length:25000 ", "CONTENT-TYPE: application/json", line="POST /mutate HTTP/1.1"
        ),
    ],
)
def test_a_head_as_api_servers_send_it_says_what_is_asked_and_how_much_follows(
    known: bytes,
) -> None:
    assert heads.review(known) == (b"/mutate", 25000)


def test_the_other_review_has_a_head_of_its_own() -> None:
    inject = head(JSON, LENGTH, line="POST /inject?timeout=10s HTTP/1.1")
    assert heads.review(inject) == (b"/inject", 25000)


@pytest.mark.parametrize(
    "other",
    [
        head(JSON, LENGTH, line="GET /mutate HTTP/1.1"),
        head(JSON, LENGTH, line="POST /mutate/ HTTP/1.1"),
        head(JSON, LENGTH, line="POST /injected HTTP/1.1"),
        head(JSON, LENGTH, line="POST /mutate HTTP/1.0"),
        head(JSON, LENGTH, "Connection: keep-alive", line="POST /mutate HTTP/1.0"),
        head(JSON, LENGTH, "Connection: close"),
        head(JSON, LENGTH, "Expect: 100-continue"),
        head(JSON, LENGTH, "Expect: x"),
        head(JSON, LENGTH, "Connection: upgrade", "Upgrade: h2c"),
        head(JSON, "Transfer-Encoding: chunked"),
        head(JSON, LENGTH, "Transfer-Encoding: chunked"),
        head(JSON, LENGTH, LENGTH),
        head(JSON, "Content-Length: 0"),
        head(JSON, "Content-Length: +5"),
        head(JSON),
        head(LENGTH),
        head("Content-Type: text/plain", LENGTH),
        head("Content-Type: application/json; charset=utf-8", LENGTH),
        head(JSON, LENGTH) + b"{",
        head(JSON, LENGTH, "X: y")[:-1],
        head(JSON, LENGTH, "X: y")[:-4],
        head(JSON, LENGTH) * 2,
        head(JSON, LENGTH).replace(b"Host", b"\r\nHost"),
        head(JSON, LENGTH).replace(b"\r", b""),
        head(JSON, LENGTH, "A: b\n\nPOST / HTTP/1.1"),
        head("Folded: a\r\n b", JSON, LENGTH),
        b"\r\n\r\n",
        b"",
    ],
)
def test_any_other_head_is_looked_at_each_time(other: bytes) -> None:
    assert heads.review(other) is None


@pytest.mark.parametrize("size", [1, 100, 400, 5000])
@driven
async def test_reviews_are_told_apart_wherever_their_pieces_end(size: int, tmp_path: Path) -> None:
    """Of those with a known head, and of others between them."""
    one, other = review(), review(spec={"hostNetwork": True})
    inject = post(one, path="/inject")
    known = [post(one), inject, post(other)]
    talk = b"".join([*known, chunked(one), inject, post(other), b"\r\n", post(one)])
    async with serving(tmp_path) as hook, hook.client() as client:
        for _ in range(2):
            for start in range(0, len(talk), size):
                await client.send(talk[start : start + size])
            patched = ["patch" in (await client.answer()).response for _ in range(7)]
            assert patched == [True, True, False, True, True, False, True]
    assert (hook.reviews("hold"), hook.reviews("labelled")) == (6, 4)


@driven
async def test_a_body_that_ends_too_early_is_no_review(tmp_path: Path) -> None:
    """The client's next request is a part of it then, as it is for every other server."""
    body = review()
    known = head(JSON, f"Content-Length: {len(body) + 9}")
    async with serving(tmp_path) as hook, hook.client() as client:
        answer = await client.ask(known + body + known)
        assert (answer.status, answer.body[:9]) == (400, b"malformed")
        assert (await client.answer()).body.startswith(b"no HTTP/1.1: ")
        assert await client.closed()


@driven
async def test_a_known_head_lifts_no_limit(tmp_path: Path) -> None:
    body = review()
    async with serving(tmp_path, body=len(body) - 1) as hook:
        assert (await hook.ask(post(body))).status == 413
    async with serving(tmp_path, head=100) as hook, hook.client() as client:
        await client.send(head(JSON, LENGTH, "X: " + "x" * 100) + b"{")
        assert (await client.answer()).status == 431
