"""Heads of requests that llhttp has judged: the same bytes mean the same another time.

Only what makes a request an ordinary review may live here. An API server writes the same head for
every review on a connection, but for the length of the body, and to take a head apart costs as much
as a third of the answer. What the bytes mean is still nobody's word but llhttp's.
"""

from __future__ import annotations

from functools import lru_cache

import httptools

MUTATE = b"/mutate"
INJECT = b"/inject"
PATHS = frozenset({MUTATE, INJECT})
"""What a review is for: how a pod starts, or that it asks for a sidecar."""
JSON = b"application/json"

END = b"\r\n\r\n"
LONGEST = 1 << 10
"""Bytes; the API server's have some 250. What is remembered stays small, whatever comes."""


class _Parts:
    """What llhttp finds in a head. A class because it calls back."""

    def __init__(self) -> None:
        self.path, self.headers = b"", dict[bytes, bytes]()
        self.complete = self.more = False

    def on_url(self, url: bytes) -> None:
        self.path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self.complete = True

    def on_body(self, _part: bytes) -> None:
        self.more = True

    def on_message_complete(self) -> None:
        self.more = True


@lru_cache(maxsize=512)
def review(head: bytes) -> tuple[bytes, int] | None:
    """Return a review's path, and how many bytes of body follow; nothing but these is to be read.

    None for a head that is anything but a review's as API servers send them: it may be as good, but
    somebody has to look at it.
    """
    parts = _Parts()
    parser = httptools.HttpRequestParser(parts)
    try:
        parser.feed_data(head)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        return None
    path = parts.path.partition(b"?")[0]
    # Where llhttp sees the head end earlier, or no body behind it, there is more than a head.
    ordinary = (
        parts.complete
        and not parts.more
        and parser.get_method() == b"POST"
        and parser.get_http_version() == "1.1"
        and parser.should_keep_alive()
        and path in PATHS
        and parts.headers.get(b"content-type") == JSON
        and parts.headers.keys().isdisjoint({b"expect", b"transfer-encoding"})
    )
    length = int(parts.headers.get(b"content-length", 0)) if ordinary else 0
    return (path, length) if length else None
