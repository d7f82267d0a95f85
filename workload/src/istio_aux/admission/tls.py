"""TLS of one connection without its socket: what came in, what is to go out, and the reverse.

Only TLS may live here. asyncio's own layer takes 256 KiB a connection and shows it to nobody before
the handshake is over (docs/decisions/0004).
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import suppress

RECORD = 16 << 10
"""Bytes of plaintext that a TLS record holds at most (RFC 8446, 5.1)."""


class Channel:
    """The server's end of a TLS connection. A class because OpenSSL keeps the state.

    Every method but `close` may raise `ssl.SSLError`: the peer broke the protocol, or refused ours.

    Attributes:
        established: whether the handshake is over.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        """Await a client's hello."""
        self.established = False
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._in, self._out, server_side=True)

    def receive(self, ciphertext: memoryview) -> None:
        """Take what came, and go on with the handshake if it is not over yet."""
        self._in.write(ciphertext)
        if not self.established:
            try:
                self._ssl.do_handshake()
            except ssl.SSLWantReadError:
                return
            self.established = True

    def read(self) -> Iterator[bytes]:
        """Yield the plaintext of each record that is complete; b"" at the end of all."""
        # An exception costs more than decrypting a record does: ask first.
        while self._in.pending:
            try:
                record = self._ssl.read(RECORD)
            except ssl.SSLWantReadError:
                return
            yield record

    def write(self, plaintext: bytes) -> None:
        """Encrypt; `outgoing` has the result."""
        while (written := self._ssl.write(plaintext)) < len(plaintext):
            plaintext = plaintext[written:]

    def close(self) -> None:
        """Say that nothing more will be written."""
        with suppress(ssl.SSLError):  # The peer's own word, or data of his, is not waited for.
            self._ssl.unwrap()

    def outgoing(self) -> bytes:
        """Take what is to be sent."""
        return self._out.read()
