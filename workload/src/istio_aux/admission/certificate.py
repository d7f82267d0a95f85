"""The webhook's certificate, which may be replaced while connections are open.

A rotation replaces two files one after the other, and a pair that does not match breaks a live
context. So each pair is loaded into a new one. Expiry is not checked: the client does that.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import ssl
from pathlib import Path

from istio_aux.kube.access import stamps

_log = logging.getLogger(__name__)

POLL = 2.0  # Seconds between two looks at the files.


class CertificateError(Exception):
    """The files are no certificate and its key; ``str()`` is one line."""


class Certificate:
    """A certificate and its key in two files."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Load the pair.

        Raises:
            CertificateError: a file is missing, or the two do not belong together.
        """
        self._files = (certificate, key)
        self._stamps = stamps(self._files)
        self.fingerprint = ""  # SHA-256 of the certificate that is served.
        self._current = self._load()

    def context(self) -> ssl.SSLContext:
        """Return the context for a new handshake.

        `sni_callback` could choose it, but logs a traceback for a name that is not ASCII.
        """
        return self._current

    def reload(self) -> bool:
        """Load the files again if they have changed; return whether a new pair is served."""
        found = stamps(self._files)
        if found == self._stamps:
            return False
        self._stamps = found
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

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # The API server speaks HTTP/1.1 to webhooks (apimachinery util/net/http.go).
        context.set_alpn_protocols(["http/1.1"])
        certificate, key = self._files
        try:
            # Without a password OpenSSL asks a terminal for that of an encrypted key.
            context.load_cert_chain(certificate, key, password="")
        except OSError as error:  # ssl.SSLError is one.
            why = error.strerror or str(error)
            text = f"{certificate}, {key}: no certificate and key: {why}"
            raise CertificateError(text) from error
        self.fingerprint = _fingerprint(certificate)
        return context


def _fingerprint(file: Path) -> str:
    """The SHA-256 of the first certificate in ``file``; empty if it is in another form."""
    with contextlib.suppress(OSError, ValueError):
        before, end, _ = file.read_text().partition("-----END CERTIFICATE-----")
        der = ssl.PEM_cert_to_DER_cert(before[before.index("-----BEGIN CERT") :] + end)
        return hashlib.sha256(der).hexdigest()
    return ""
