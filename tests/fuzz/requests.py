"""Random requests, byte by byte: valid ones as Go sends them, and invalid ones. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from fuzz import bodies

MUTATE, INJECT = b"/mutate", b"/inject"
_JSON = b"Content-Type: application/json"


@dataclass(frozen=True)
class Ask:
    """A complete request."""

    body: bytes
    path: bytes = MUTATE

    @property
    def data(self) -> bytes:
        return post(self.body, line=b"POST %b HTTP/1.1" % self.path)


@dataclass(frozen=True)
class Talk:
    """Pieces to write on one connection; then the client closes its end."""

    pieces: list[bytes]
    answered: list[int] = field(default_factory=list)
    """Statuses of the answers that are certain; more answers may follow."""


def make(dice: Random) -> Talk:
    """One talk."""
    return dice.choice(_MAKERS)(dice)


def post(body: bytes, *headers: bytes, line: bytes = b"POST /mutate HTTP/1.1") -> bytes:
    """A request; a Content-Length is added unless the headers give a length."""
    if not any(header.lower().startswith((b"content-length", b"transfer-")) for header in headers):
        headers = (*headers, b"Content-Length: %d" % len(body))
    if not any(header.lower().startswith(b"content-type") for header in headers):
        headers = (*headers, _JSON)
    return b"\r\n".join((line, b"Host: x", *headers, b"", body))


def _review(dice: Random) -> bytes:
    return json.dumps(bodies.review(dice)).encode()


def _in_pieces(dice: Random, data: bytes) -> list[bytes]:
    cuts = sorted(dice.randrange(len(data)) for _ in range(dice.choice([0, 1, 2, 5, 30])))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b]


def _pipelined(dice: Random) -> Talk:
    count = dice.randint(1, 20)
    data = b"".join(Ask(_review(dice), dice.choice([MUTATE, INJECT])).data for _ in range(count))
    return Talk(_in_pieces(dice, data), [200] * count)


def _chunked(dice: Random) -> Talk:
    parts = _in_pieces(dice, _review(dice))
    extension = dice.choice([b"", b";a=b", b';a="b"'])
    data = b"".join(b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts)
    data += b"0\r\n" + dice.choice([b"", b"Trailer: x\r\n"]) + b"\r\n"
    return Talk(_in_pieces(dice, post(data, b"Transfer-Encoding: chunked")), [200])


def _half(dice: Random) -> Talk:
    """An incomplete request, perhaps after a complete one."""
    whole = dice.choice([b"", post(_review(dice))])
    half = post(_review(dice), *dice.choice([(), (b"Expect: 100-continue",)]))
    data = whole + half[: dice.randrange(len(half))]
    return Talk(_in_pieces(dice, data) if data else [], [200] if whole else [])


def _elsewhere(dice: Random) -> Talk:
    line, headers, status = dice.choice([
        (b"POST /mutate/ HTTP/1.1", (), 404), (b"POST //mutate HTTP/1.1", (), 404),
        (b"POST /%6dutate HTTP/1.1", (), 404), (b"POST / HTTP/1.1", (), 404),
        (b"POST /mutate?timeout=10s HTTP/1.1", (), 200), (b"POST /mutate HTTP/1.0", (), 200),
        (b"POST /inject?timeout=10s HTTP/1.1", (), 200), (b"POST /injec HTTP/1.1", (), 404),
        (b"POST /inject/mutate HTTP/1.1", (), 404), (b"PUT /inject HTTP/1.1", (), 405),
        (b"GET /mutate HTTP/1.1", (), 405),
        (b"PUT /mutate HTTP/1.1", (), 405), (b"CONNECT x:1 HTTP/1.1", (), 0),
        (b"post /mutate HTTP/1.1", (), 400), (b"POST /mutate HTTP/9.9", (), 400),
        (b"POST /mutate", (), 0), (b"POST  /mutate HTTP/1.1", (), 0),
        (b"PRI * HTTP/2.0", (), 400), (b"\x00\x01\x02", (), 400), (b"", (), 0),
        (b"POST /mutate HTTP/1.1", (b"Content-Type: text/plain",), 415),
        (b"POST /mutate HTTP/1.1", (b"Content-Type: application/json; charset=utf-8",), 200),
        (b"POST /mutate HTTP/1.1", (b"Upgrade: websocket", b"Connection: upgrade"), 200),
    ])  # fmt: skip
    # 0: llhttp's own leniency decides.
    return Talk([post(_review(dice), *headers, line=line)], [status] if status else [])


def _misframed(dice: Random) -> Talk:
    """Lengths that are wrong, repeated or missing, and heads that are too large."""
    body = _review(dice)
    headers = dice.choice([
        (b"Content-Length: -1",), (b"Content-Length: +5",), (b"Content-Length: 0x10",),
        (b"Content-Length: 99999999999999999999999",), (b"Content-Length: 9000000",),
        (b"Content-Length: 10",), (b"Content-Length: %d" % (len(body) + 9),),
        (b"Content-Length: 5", b"Content-Length: 6"), (b"Content-Length: ",),
        (b"Content-Length: 5", b"Transfer-Encoding: chunked"),
        (b"Transfer-Encoding: gzip",), (b"Transfer-Encoding: chunked, chunked",),
        (b"X: " + b"y" * dice.choice([1000, 60_000, 100_000, 1 << 20]),),
        tuple(b"X-%d: y" % n for n in range(dice.choice([10, 1000, 20_000]))),
        (b"X\x00Y: z",), (b"X: a\x00b",), (b"X: a\r\n b",), (b"X : y",), (b": y",), (b"no colon",),
        (b"Expect: 100-continue",), (b"Expect: a miracle",), (b"Connection: close",),
        (b"Content-Length: %d" % len(body), b"\r\n" * 100),
    ])  # fmt: skip
    return Talk(_in_pieces(dice, post(body, *headers)))


def _damaged(dice: Random) -> Talk:
    data = bytearray(b"".join(post(_review(dice)) for _ in range(dice.randint(1, 3))))
    for _ in range(dice.randint(1, 5)):
        at = dice.randrange(dice.choice([200, len(data)]))
        junk = [b"", b"\r\n", b"\r", b"\x00", b" ", b"\xff", b"0\r\n\r\n", dice.randbytes(4)]
        data[at : at + dice.choice([0, 1, 50])] = dice.choice(junk)
    return Talk(_in_pieces(dice, bytes(data)))


_MAKERS: list[Callable[[Random], Talk]] = [
    _pipelined, _chunked, _half, _elsewhere, _misframed, _damaged,
]  # fmt: skip
