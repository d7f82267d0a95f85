"""HTTP/1.1 of one connection without its socket: plaintext in, answers out.

Only HTTP may live here; the grammar is llhttp's. What is refused before its end is the last that
the connection hears: nobody knows where the next request would begin.
"""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Protocol

import httptools

from istio_aux.admission import heads
from istio_aux.admission.heads import INJECT, JSON, MUTATE, PATHS
from istio_aux.admission.limits import UNCOUNTED, Budget, Limits
from istio_aux.telemetry import Closed

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_READ = frozenset({b"content-type", b"content-length", b"expect"})
"""Headers that we look at; llhttp looks at the others that matter."""


class Refusal(Exception):  # noqa: N818 - it ends the parsing of a request, and is then an answer
    """An answer that is no review.

    Attributes:
        status: HTTP status code.
        outcome: as it is counted; the error's text is the reason, in one line.
    """

    def __init__(self, status: HTTPStatus, outcome: str, why: str) -> None:
        super().__init__(" ".join(why.split())[:500])
        self.status, self.outcome = status, outcome


class Desk(Protocol):
    """Who answers, for all connections.

    Attributes:
        draining: whether each answer is the last on its connection.
    """

    limits: Limits
    budget: Budget
    draining: bool

    def answer(self, path: bytes, body: bytes) -> tuple[HTTPStatus, bytes]:
        """Answer one complete request to one of `PATHS`.

        JSON with 200, a line of text with any other status.
        """
        ...

    def refuse(self, refusal: Refusal) -> None:
        """Take note of a request that is not answered with a review."""
        ...


class Conversation:
    """Requests and answers. A class because llhttp keeps the state and calls back.

    Attributes:
        answers: what is to be sent, in order; whoever sends it empties the list.
        began: when the request that is still arriving began (monotonic, in seconds); None if none.
        over: why nothing more is read, once that is so; the last answer says so to the client.
    """

    def __init__(self, desk: Desk) -> None:
        self.answers: list[bytes] = []
        self.began: float | None = None
        self.over: Closed | None = None
        self._desk = desk
        self._parser = httptools.HttpRequestParser(self)
        self._path = self._method = b""
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._size = self._taken = self._overhead = 0
        self._missing = 0  # Of the body of an ordinary review, which needs no parser.
        self._longest_head = min(heads.LONGEST, desk.limits.head)
        self._longest_body = min(UNCOUNTED, desk.limits.body)

    def receive(self, plaintext: bytes) -> None:
        """Read on; every request that has become complete is answered."""
        if self._missing:
            plaintext = self._read_ordinary(plaintext)
        # Between requests the parser has seen nothing of the next one, and need not.
        while plaintext and self.began is None and not self.over:
            end = plaintext.find(heads.END, 0, self._longest_head) + len(heads.END)
            review = heads.review(plaintext[:end]) if end >= len(heads.END) else None
            if review is None or review[1] > self._longest_body:
                break
            self._path, self._missing = review
            plaintext = self._read_ordinary(plaintext[end:])
        if plaintext and not self.over:
            self._parse(plaintext)

    def _read_ordinary(self, plaintext: bytes) -> bytes:
        """Take the rest of an ordinary review's body, or a part of it; return what follows."""
        if len(plaintext) < self._missing:
            self._missing -= len(plaintext)
            self._body.append(plaintext)
            if self.began is None:
                self.began = time.monotonic()
            return b""
        self._body.append(plaintext[: self._missing])
        plaintext = plaintext[self._missing :]
        self._answer(keep=True)
        return plaintext

    def _parse(self, plaintext: bytes) -> None:
        """Have the parser read on, which calls back."""
        self._overhead += len(plaintext)
        try:
            self._parser.feed_data(plaintext)
            if self._overhead > self._desk.limits.head:
                what = f"over {self._desk.limits.head} bytes beside the body"
                status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
                self._refuse(Refusal(status, "too-large", what))
        except httptools.HttpParserCallbackError as error:
            if not isinstance(error.__context__, Refusal):
                raise
            self._refuse(error.__context__)
        except httptools.HttpParserError as error:
            what = f"no HTTP/1.1: {error}"
            self._refuse(Refusal(HTTPStatus.BAD_REQUEST, "malformed", what))

    def expire(self) -> None:
        """Refuse the request that is still arriving: it has had its time."""
        what = f"no complete request in {self._desk.limits.request:g} s"
        self._refuse(Refusal(HTTPStatus.REQUEST_TIMEOUT, "timeout", what), Closed.TIMEOUT)

    def dismiss(self, why: Closed) -> None:
        """Ask a client that sends nothing to send its next request on another connection.

        If a review is on its way already, this is the answer to it: the API server repeats what was
        answered so (client-go rest/with_retry.go), and only that. Go's client drops an idle
        connection that says something (net/http transport.go, readLoopPeekFailLocked).
        """
        self._last(HTTPStatus.SERVICE_UNAVAILABLE, "connection closed, come again", why)

    def end(self) -> None:
        """Nothing more will come; if a request was arriving, that is all there will be of it."""
        if self.began is not None and not self.over:
            why = "the client left before the request was complete"
            self._desk.refuse(Refusal(HTTPStatus.BAD_REQUEST, "malformed", why))
        self.over = self.over or Closed.PEER
        self._forget()

    def release(self) -> None:
        """Let go of everything; nothing is asked of this any more."""
        self.end()
        # Its callbacks refer to this: a circle that only the garbage collector would notice.
        del self._parser

    def on_message_begin(self) -> None:
        """llhttp: a request begins."""
        if self.over:  # Another one behind a last one.
            raise Refusal(HTTPStatus.BAD_REQUEST, "malformed", "")
        self.began = time.monotonic()

    def on_url(self, url: bytes) -> None:
        """llhttp: a part of the path."""
        self._path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """llhttp: a header, or a trailer."""
        name = name.lower()
        if name in _READ:
            self._headers[name] = value

    def on_headers_complete(self) -> None:
        """llhttp: the head is complete. What can be refused is, before its body is read."""
        self._method = self._parser.get_method()
        path = self._path.partition(b"?")[0]
        if path not in PATHS:
            what = f"{_text(self._path)}: expected {_text(MUTATE)} or {_text(INJECT)}"
            raise Refusal(HTTPStatus.NOT_FOUND, "not-allowed", what)
        self._path = path
        if self._method != b"POST":
            what = f"{_text(self._method)}: expected POST"
            raise Refusal(HTTPStatus.METHOD_NOT_ALLOWED, "not-allowed", what)
        kind = self._headers.get(b"content-type", b"")
        if kind != JSON and kind.partition(b";")[0].strip().lower() != JSON:
            what = f'content-type "{_text(kind)}": expected {_text(JSON)}'
            raise Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "not-allowed", what)
        if int(self._headers.get(b"content-length", 0)) > self._desk.limits.body:
            raise self._too_large()
        if self._parser.should_upgrade():  # llhttp would take the body for the other protocol's.
            raise Refusal(HTTPStatus.BAD_REQUEST, "not-allowed", "upgrade: expected HTTP/1.1")
        expect = self._headers.get(b"expect")
        if expect and expect.lower() == b"100-continue" and self._parser.get_http_version() > "1.0":
            self.answers.append(_CONTINUE)

    def on_body(self, part: bytes) -> None:
        """llhttp: a part of the body."""
        self._body.append(part)
        self._size += len(part)
        self._overhead -= len(part)
        if self._size <= UNCOUNTED:
            return
        if self._size > self._desk.limits.body:
            raise self._too_large()
        more = self._size - self._taken
        if not self._desk.budget.take(more):
            what = f"{self._desk.limits.bodies} bytes of bodies are arriving"
            raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "busy", what)
        self._taken += more

    def on_message_complete(self) -> None:
        """llhttp: the request is complete."""
        self._answer(keep=self._parser.should_keep_alive())

    def _answer(self, *, keep: bool) -> None:
        """Answer the request that is complete; the last one unless the client may ``keep`` on."""
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        path = self._path
        self._forget()
        status, text = self._desk.answer(path, body)
        if not keep:
            self.over = Closed.PEER
        elif self._desk.draining:
            self.over = Closed.DRAIN
        self.answers.append(_response(status, text, close=self.over is not None))

    def _forget(self) -> None:
        self.began = None
        self._path = b""
        self._headers.clear()
        self._body = []
        if self._taken:
            self._desk.budget.give_back(self._taken)
        self._size = self._taken = self._overhead = self._missing = 0

    def _too_large(self) -> Refusal:
        what = f"body over {self._desk.limits.body} bytes"
        return Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too-large", what)

    def _refuse(self, refusal: Refusal, why: Closed = Closed.REFUSED) -> None:
        if not self.over:
            self._desk.refuse(refusal)
            self._last(refusal.status, str(refusal), why)

    def _last(self, status: HTTPStatus, line: str, why: Closed) -> None:
        bodiless = self._method == b"HEAD"
        self._forget()
        self.over = why
        self.answers.append(
            _response(status, b"" if bodiless else f"{line}\n".encode(), close=True)
        )


def _response(status: HTTPStatus, body: bytes, *, close: bool) -> bytes:
    return b"%b%b%d\r\n\r\n%b" % (_HEADS[status], _CLOSE if close else _KEEP, len(body), body)


def _head(status: HTTPStatus) -> bytes:
    kind = JSON if status is HTTPStatus.OK else b"text/plain; charset=utf-8"
    more = {
        HTTPStatus.METHOD_NOT_ALLOWED: b"Allow: POST\r\n",
        HTTPStatus.SERVICE_UNAVAILABLE: b"Retry-After: 1\r\n",
    }.get(status, b"")
    line = f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode()
    return b"%bContent-Type: %b\r\n%b" % (line, kind, more)


def _text(wire: bytes) -> str:
    return wire.decode("ascii", "backslashreplace")


_KEEP = b"Content-Length: "
_CLOSE = b"Connection: close\r\nContent-Length: "
_HEADS = {status: _head(status) for status in HTTPStatus}
