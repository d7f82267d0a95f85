"""One HTTP request to an endpoint, over a TLS connection of its own that stays open afterwards.

Only the protocol may live here, not what is asked. No proxy, no redirect, no credentials of ours:
they belong to the API server, and istiod asks for none. Everything is bounded, because the other
side may be anything. That a TCP connection cannot be had is told apart from all that goes wrong
later: then nothing is known of the other side.
"""

from __future__ import annotations

import asyncio
import http.client
import io
import os
import ssl
from typing import NamedTuple

from istio_aux.core.webhooks import Address

CONNECT = 1.0
"""Seconds for a TCP connection. One SYN is lost for good in a network that drops them."""

DEADLINE = 3.0
"""Seconds for all of it; istiod takes milliseconds."""

LARGEST = 4 << 20
"""Bytes of an answer; istiod's have tens of thousands."""

_HEAD = 64 << 10
"""Bytes of the head of an answer, and of any other line."""

_NO_HTTP = (http.client.HTTPException, asyncio.LimitOverrunError)


class UnreachableError(Exception):
    """There is no TCP connection: whoever is there has not been asked."""


class BrokenError(Exception):
    """There was a connection, and no HTTP answer came of it."""


class Connection:
    """What is left of an exchange. That it ends tells that the other side ends, or has had enough.

    A class because asyncio's two ends of a stream belong together.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ended(self) -> None:
        """Return when the other side has closed it, or said what nobody asked for."""
        try:
            await self._reader.read(1)
        except OSError:
            return

    def close(self) -> None:
        """Drop it."""
        self._writer.transport.abort()


class Answer(NamedTuple):
    """What came back."""

    code: int
    body: bytes
    connection: Connection


async def post(address: Address, tls: ssl.SSLContext, name: str, path: str, body: bytes) -> Answer:
    """Send JSON to the server ``name`` at ``address``; the caller closes the answer's connection.

    Raises:
        UnreachableError, BrokenError: one line that says why.
    """
    try:
        async with asyncio.timeout(CONNECT):
            reader, writer = await asyncio.open_connection(*address, limit=_HEAD)
    except TimeoutError as error:
        raise UnreachableError(f"no connection within {CONNECT:g} s") from error
    except (OSError, UnicodeError) as error:  # A name may be none that DNS knows, or could know.
        raise UnreachableError(_why(error)) from error
    connection = Connection(reader, writer)
    try:
        async with asyncio.timeout(DEADLINE):
            # Until it is over the writer has nobody to tell that the other side is gone.
            await writer.start_tls(tls, server_hostname=name)
            writer.write(_request(name, path, body))
            await writer.drain()
            code, answer = await _read(reader)
    except TimeoutError as error:
        connection.close()
        raise BrokenError(f"no complete answer within {DEADLINE:g} s") from error
    except (OSError, EOFError, ValueError, *_NO_HTTP) as error:
        connection.close()
        raise BrokenError(_why(error)) from error
    except BaseException:
        connection.close()
        raise
    return Answer(code, answer, connection)


def _request(name: str, path: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1",
        f"Host: {name}",
        "User-Agent: istio-aux",
        "Accept: application/json",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    )
    return "\r\n".join((*head, "", "")).encode() + body


async def _read(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Read one response (RFC 9112)."""
    head = io.BytesIO(await reader.readuntil(b"\r\n\r\n"))
    version, _, rest = head.readline().partition(b" ")
    code = rest[:3]
    if not version.startswith(b"HTTP/1.") or not code.isdigit():
        raise ValueError("it speaks no HTTP/1.1")
    headers = http.client.parse_headers(head)
    if (headers["Transfer-Encoding"] or "").lower() == "chunked":
        return int(code), await _chunks(reader)
    if (length := headers["Content-Length"]) is not None:
        return int(code), await reader.readexactly(_bounded(length, 10))
    return int(code), await _rest(reader)


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while size := _bounded((await _line(reader)).partition(b";")[0].decode(), 16):
        _bounded(f"{len(body) + size}", 10)
        body += await reader.readexactly(size)
        await _line(reader)
    while await _line(reader):  # Trailers mean nothing to us.
        pass
    return bytes(body)


async def _line(reader: asyncio.StreamReader) -> bytes:
    return (await reader.readuntil(b"\n")).strip()


async def _rest(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while part := await reader.read(_HEAD):
        body += part
        _bounded(f"{len(body)}", 10)
    return bytes(body)


def _bounded(number: str, base: int) -> int:
    found = int(number, base)
    if not 0 <= found <= LARGEST:
        raise ValueError(f"its answer is larger than {LARGEST >> 20} MiB")
    return found


def _why(error: Exception) -> str:
    match error:
        case ssl.SSLCertVerificationError():
            return f"its certificate is not trusted: {error.verify_message}"
        case ssl.SSLError() if error.reason:
            return f"TLS: {error.reason.lower().replace('_', ' ')}"
        case asyncio.IncompleteReadError():
            return "the connection ended before the answer"
        case ConnectionError() if error.errno:
            return os.strerror(error.errno)
        case OSError() if error.strerror:
            return error.strerror
        case _:
            return " ".join(str(error).split()) or type(error).__name__
