"""The server's TLS: the certificate can be replaced while connections are open.

Only that may live here. New files are tried in a context of their own first: `load_cert_chain` with
a pair that does not match leaves a live context broken, and a rotation replaces two files, one
after the other. A pair that loads serves every handshake from then on; another changes nothing.
Whether a pair has expired is not looked at: that is for the client to judge, by its own clock.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

_log = logging.getLogger(__name__)

POLL = 2.0
"""Seconds between looks at the files."""


class CertificateError(Exception):
    """The files do not make a certificate and its key; ``str()`` is one line."""


class Certificate:
    """A certificate and its key in files. A class because it remembers which contents it serves."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Load the pair.

        Raises:
            CertificateError: a file is missing, or the two do not belong together.
        """
        self._files = (certificate, key)
        self._seen = self._look()
        self._current = self._load()

    def context(self) -> ssl.SSLContext:
        """For a handshake that begins now.

        Not chosen by `sni_callback`: a name that is not ASCII makes it write a traceback.
        """
        return self._current

    def reload(self) -> bool:
        """Serve the files' present contents if they have changed and load; returns whether so."""
        seen = self._look()
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            self._current = self._load()
        except CertificateError as error:
            _log.error("%s", error, extra={"event": "certificate", "outcome": "kept"})
            return False
        _log.info("%s", self._files[0], extra={"event": "certificate", "outcome": "reloaded"})
        return True

    async def follow(self, interval: float = POLL) -> None:
        """Reload whenever the files change, until cancelled."""
        while True:
            await asyncio.sleep(interval)
            self.reload()

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        """What shows a change: also a link that leads elsewhere, as in a mounted Secret."""
        return tuple(_identity(file) for file in self._files)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # The API server speaks HTTP/1.1 to webhooks (apimachinery util/net/http.go).
        context.set_alpn_protocols(["http/1.1"])
        certificate, key = self._files
        try:
            # OpenSSL would ask a terminal for the password of an encrypted key, and wait.
            context.load_cert_chain(certificate, key, password="")
        except OSError as error:  # ssl.SSLError is one, too.
            why = error.strerror or str(error)
            raise CertificateError(
                f"{certificate}, {key}: no certificate and key: {why}"
            ) from error
        return context


def _identity(file: Path) -> tuple[int, int, int] | None:
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
