"""A connection with full control over its TLS records."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress

from fuzz.judge import Answer


class Garbled(Exception):  # noqa: N818 - it says what the answer is
    """The server did not send a sequence of HTTP answers."""


class Connection:
    """One TLS connection."""

    def __init__(self, address: tuple[str, int], trust: ssl.SSLContext) -> None:
        self._address = address
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = trust.wrap_bio(self._in, self._out, server_hostname=address[0])
        self._socket = socket.socket()
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._loop = asyncio.get_running_loop()
        self._got = b""
        self.over = False

    async def open(self) -> None:
        """Connect and do the TLS handshake."""
        await self._loop.sock_connect(self._socket, self._address)
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await self._flush()
                await self._receive()
        await self._flush()

    async def send(self, data: bytes) -> None:
        """Send ``data``; a server that has closed the connection is no error."""
        self._tls.write(data)
        await self._flush()

    async def finish(self) -> None:
        """Close our side of the TLS connection."""
        with suppress(ssl.SSLError):
            self._tls.unwrap()
        await self._flush()

    async def answer(self) -> Answer | None:
        """The next answer; None if the server ended the connection instead.

        Raises:
            Garbled: the answer is no HTTP, or incomplete.
        """
        while b"\r\n\r\n" not in self._got:
            if not await self._more():
                if self._got:
                    raise Garbled(f"half an answer: {self._got[:200]!r}")
                return None
        head, _, rest = self._got.partition(b"\r\n\r\n")
        try:
            line, *lines = head.decode("ascii").split("\r\n")
            version, status, _ = line.split(" ", 2)
            headers = {key.lower(): value for key, value in (line.split(": ", 1) for line in lines)}
            if status == "100":
                self._got = rest
                return await self.answer()
            length = int(headers["content-length"] if version[:5] == "HTTP/" else version)
        except (ValueError, KeyError) as error:
            raise Garbled(f"no head of an answer: {head[:200]!r}") from error
        while len(rest) < length:
            self._got = b""
            if not await self._more():
                raise Garbled(f"half an answer: {head!r}")
            rest += self._got
        self._got = rest[length:]
        return Answer(int(status), headers, rest[:length])

    def leave(self) -> None:
        """Close the socket without TLS's close_notify."""
        self._socket.close()

    async def _more(self) -> bool:
        """Read more; return whether there was anything."""
        while not self.over:
            try:
                if more := self._tls.read(1 << 20):
                    self._got += more
                    return True
                self.over = True
            except ssl.SSLWantReadError:
                await self._receive()
            except ssl.SSLError:
                self.over = True
        return False

    async def _flush(self) -> None:
        with suppress(ConnectionError):
            await self._loop.sock_sendall(self._socket, self._out.read())

    async def _receive(self) -> None:
        try:
            got = await self._loop.sock_recv(self._socket, 1 << 18)
        except ConnectionError:
            got = b""
        if got:
            self._in.write(got)
        else:
            self._in.write_eof()
