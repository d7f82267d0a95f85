"""What a caBundle trusts: when its certificates are valid, and a TLS context that obeys it.

Only the reading of bundles may live here. It follows what the API server makes of one (Go
crypto/x509 AppendCertsFromPEM, Verify): what is no certificate is passed over, every certificate is
an anchor whether it is an authority's or not, and what RFC 5280 wants of authorities beyond that is
not asked.
"""

from __future__ import annotations

import base64
import binascii
import re
import ssl
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime

from istio_aux.core.liveness import Certificate
from istio_aux.core.webhooks import ClientConfig

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _VERSION, _UTC_TIME = 0x30, 0xA0, 0x17


def certificates(bundle: str) -> tuple[Certificate, ...]:
    """Read a caBundle, base64 of PEM; what cannot be read is not in the result."""
    found: list[Certificate] = []
    for der in _ders(bundle):
        with suppress(ValueError, IndexError):
            found.append(_certificate(der))
    return tuple(found)


def context(target: ClientConfig) -> ssl.SSLContext:
    """Make what a client needs that trusts whom the API server would trust at this endpoint.

    Without a caBundle that is the system. It asks for no client certificate of ours, and has none.
    """
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.minimum_version = ssl.TLSVersion.TLSv1_2
    tls.hostname_checks_common_name = False
    # The API server speaks HTTP/1.1 to webhooks (apimachinery util/net/http.go).
    tls.set_alpn_protocols(["http/1.1"])
    if not target.ca_bundle:
        tls.load_default_certs()
        return tls
    tls.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    for der in _ders(target.ca_bundle):
        with suppress(ssl.SSLError, ValueError):
            tls.load_verify_locations(cadata=der)
    return tls


def _ders(bundle: str) -> Iterator[bytes]:
    try:
        text = base64.b64decode(bundle)
    except ValueError:
        return
    for body in _PEM.findall(text):
        with suppress(binascii.Error):
            yield base64.b64decode(body)


def _certificate(der: bytes) -> Certificate:
    """Find the validity (RFC 5280, 4.1); the standard library shows it of authorities' only.

    Raises:
        ValueError, IndexError: these bytes are no certificate.
    """
    [(tag, signed)] = _items(der)
    if tag != _SEQUENCE:
        raise ValueError("not a sequence")
    fields = [content for tag, content in _items(_items(signed)[0][1]) if tag != _VERSION]
    _serial, _algorithm, _issuer, validity = fields[:4]
    not_before, not_after = (_time(*item) for item in _items(validity))
    return Certificate(not_before, not_after)


def _items(der: bytes) -> list[tuple[int, bytes]]:
    """Tags and contents of what stands side by side (X.690, 8.1: tag, length, content)."""
    found: list[tuple[int, bytes]] = []
    while der:
        tag, length, start = der[0], der[1], 2
        if length & 0x80:
            start += length & 0x7F
            length = int.from_bytes(der[2:start])
        if len(der) < start + length:
            raise ValueError("cut off")
        found.append((tag, der[start : start + length]))
        der = der[start + length :]
    return found


def _time(tag: int, content: bytes) -> datetime:
    text = content.decode("ascii")
    if tag == _UTC_TIME:  # Two digits of the year, from 1950 on.
        text = ("19" if text >= "5" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
