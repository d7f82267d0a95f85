"""One connection of a client: bytes from and to its socket, deadlines, the end.

Only the moves between the stages of a connection may live here: handshake, waiting for a request,
reading one, and, after the last answer, dropping what still comes. A look at the clock now and
then, by whoever holds all connections, keeps the deadlines; there is no task and no timer here.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from contextlib import suppress
from typing import Protocol, cast

from istio_aux.admission import http1
from istio_aux.admission.tls import Channel
from istio_aux.serving import Guest
from istio_aux.telemetry import Closed

_log = logging.getLogger(__name__)

_BUFFER = memoryview(bytearray(64 << 10))
"""Where all connections read into, in turn: what is read is dealt with before the next read."""


class Owner(http1.Desk, Protocol):
    """Who holds all connections."""

    def admit(self, connection: Connection) -> None:
        """Take a connection whose handshake begins."""
        ...

    def welcome(self, connection: Connection) -> None:
        """Count it among those whose handshake is over."""
        ...

    def forget(self, connection: Connection, why: Closed) -> None:
        """Let a connection go; it is closed."""
        ...

    def hand_out(self, connection: Connection, *, at_once: bool) -> None:
        """Call `Connection.send` now, or before anything else is read from it."""
        ...


class Connection(asyncio.BufferedProtocol):
    """A connection. A class because asyncio calls back.

    Attributes:
        address: the client's.
        deadline: when `expire` is due (monotonic, in seconds).
    """

    def __init__(self, owner: Owner, context: ssl.SSLContext, guest: Guest) -> None:
        self.address, self._guest = guest.address, guest
        self.deadline = time.monotonic() + owner.limits.handshake
        self._owner, self._limits = owner, owner.limits
        self._tls = Channel(context)
        self._http = http1.Conversation(owner)
        self._closed: Closed | None = None
        self._welcome = self._unread = False
        self._rested: float | None = None  # When the client got its last answer.
        self._transport: asyncio.Transport

    @property
    def established(self) -> bool:
        """Whether the handshake is over."""
        return self._tls.established

    @property
    def idle(self) -> bool:
        """Whether its end would cost nobody an answer."""
        waiting = self.established and self._http.began is None and not self._unread
        return self._closed is not None or waiting

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the client has connected. TCP_NODELAY is set by asyncio."""
        self._transport = cast("asyncio.Transport", transport)
        self._guest.end = self.abort
        self._owner.admit(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio names it
        """asyncio: where to read into."""
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        """asyncio: something came."""
        if self._closed:
            return
        try:
            self._tls.receive(_BUFFER[:nbytes])
            if self._tls.established and not self._welcome:
                self._welcome = True
                self._guest.known()
                self._owner.welcome(self)
            for plaintext in self._tls.read():
                if plaintext:
                    self._http.receive(plaintext)
                else:
                    self._http.end()
                if self._http.over:
                    break
        except ssl.SSLError as error:
            self._broken(error)
        else:
            self._say()

    def eof_received(self) -> bool:
        """asyncio: nothing more will come; what had come is answered, so asyncio may close."""
        self._closed = self._closed or Closed.PEER
        return False

    def pause_writing(self) -> None:
        """asyncio: the client does not take what is sent. Then nothing more is read from it."""
        self._unread = True
        self._transport.pause_reading()
        self.deadline = time.monotonic() + self._limits.unread

    def resume_writing(self) -> None:
        """asyncio: the client has taken nearly all."""
        self._unread = False
        if not self._closed:
            self._transport.resume_reading()
            self._await()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio names it
        """asyncio: it is closed."""
        self._http.release()
        self._owner.forget(self, self._closed or Closed.PEER)
        self._guest.gone()

    def expire(self) -> None:
        """Do what is due: the deadline has passed."""
        if self._closed or self._unread or not self._tls.established:
            self.abort(Closed.UNREAD if self._unread else Closed.HANDSHAKE)
        elif self._http.began is None:
            self.dismiss(Closed.IDLE)
        else:
            self._http.expire()
            self._say()

    def dismiss(self, why: Closed) -> None:
        """Close an idle connection so that a review that is on its way to it is not lost."""
        if not self._closed:
            self._http.dismiss(why)
            self._say()

    def send(self) -> None:
        """Let the client have what there is for it."""
        if outgoing := self._tls.outgoing():
            self._transport.write(outgoing)

    def abort(self, why: Closed) -> None:
        """Close it now, whatever is under way."""
        self._closed = self._closed or why
        self._transport.abort()

    def _say(self) -> None:
        """Say what there is to say, and wait for more unless that was the last."""
        answered = bool(answers := self._http.answers)
        try:
            if answered:
                self._tls.write(answers[0] if len(answers) == 1 else b"".join(answers))
                answers.clear()
                self._rested = time.monotonic()
            if self._http.over:
                self._tls.close()
        except ssl.SSLError as error:
            self._broken(error)
            return
        if answered:
            self._owner.hand_out(self, at_once=self._http.over is not None)
        else:
            self.send()
        if self._http.over:
            self._finish(self._http.over)
        else:
            self._await()

    def _await(self) -> None:
        """Set the deadline of what is waited for. Bytes that are no request yet change nothing."""
        if self._unread or not self._tls.established:
            return
        if self._http.began is not None:
            self.deadline = self._http.began + self._limits.request
        else:
            self._rested = self._rested or time.monotonic()
            self.deadline = self._rested + self._limits.idle

    def _finish(self, why: Closed) -> None:
        """Drop what still comes until the client has closed its end, too."""
        self._closed = why
        with suppress(OSError):  # The client is gone.
            self._transport.write_eof()
        self._transport.resume_reading()
        waiting = self._transport.get_write_buffer_size()
        limit = self._limits.unread if waiting else self._limits.linger
        self.deadline = time.monotonic() + limit

    def _broken(self, error: ssl.SSLError) -> None:
        """End a connection whose client does not speak TLS, or does not like ours."""
        self._closed = Closed.PEER if self._tls.established else Closed.HANDSHAKE
        peer = self._transport.get_extra_info("peername")
        _log.warning("%s: %s", peer, error, extra={"event": "connection", "outcome": self._closed})
        self._transport.write(self._tls.outgoing())  # The alert that says why.
        self._transport.close()
