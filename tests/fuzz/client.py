"""A connection with full control over its TLS records, which reads answers one after another."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress

from unit.hooked import Bare

from fuzz.judge import Answer


class Garbled(Exception):  # noqa: N818 - it says what the answer is
    """The server did not send a sequence of HTTP answers."""


class Connection(Bare):
    """One TLS connection."""

    def __init__(self, port: int, trust: ssl.SSLContext) -> None:
        super().__init__(port, trust)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._got = b""

    async def send(self, data: bytes) -> None:
        """Send ``data``; a server that has closed the connection is no error."""
        self.write(data)
        with suppress(ConnectionError):
            await self.flush()

    async def end(self) -> None:
        """Close our side of the TLS connection."""
        with suppress(ssl.SSLError, ConnectionError):
            self.finish()
            await self.flush()

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
        head, _, self._got = self._got.partition(b"\r\n\r\n")
        try:
            line, *lines = head.decode("ascii").split("\r\n")
            version, status, _ = line.split(" ", 2)
            headers = {key.lower(): value for key, value in (line.split(": ", 1) for line in lines)}
            if status == "100":
                return await self.answer()
            length = int(headers["content-length"] if version[:5] == "HTTP/" else version)
        except (ValueError, KeyError) as error:
            raise Garbled(f"no head of an answer: {head[:200]!r}") from error
        while len(self._got) < length:
            if not await self._more():
                raise Garbled(f"half an answer: {head!r}")
        body, self._got = self._got[:length], self._got[length:]
        return Answer(int(status), headers, body)

    async def _more(self) -> bool:
        """Read more; return whether there was anything."""
        while True:
            try:
                more = self._tls.read(1 << 20)
            except ssl.SSLWantReadError:
                with suppress(ConnectionError):
                    if await self._receive():
                        continue
                return False
            except ssl.SSLError:
                return False
            self._got += more
            return bool(more)
