"""A provider of certificates, and what it writes into the relation `certificates`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from lab.control_plane import begun, named, usage

YEAR = timedelta(days=365)


class Provider:
    """A PKI with one root, `ca`."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = named("root of pki")
        self._identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        now = datetime.now(UTC)
        root = (
            begun(self._subject, self._subject, self._key.public_key(), now, 10 * YEAR)
            .add_extension(self._identifier, critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage(signs_certificates=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.ca = _pem(root)

    def issue(
        self,
        request: str,
        *,
        names: Iterable[str] | None = None,
        age: timedelta = timedelta(0),
        life: timedelta = YEAR,
    ) -> dict[str, Any]:
        """Return the entry of the databag for a request; by default with the names it asks for."""
        asked = x509.load_pem_x509_csr(request.encode())
        if names is None:
            wanted = asked.extensions.get_extension_for_class(x509.SubjectAlternativeName)
            names = wanted.value.get_values_for_type(x509.DNSName)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._identifier)
        begin = datetime.now(UTC) - age
        certificate = (
            begun(named("istio-aux"), self._subject, asked.public_key(), begin, life)
            .add_extension(x509.SubjectAlternativeName(map(x509.DNSName, names)), critical=False)
            .add_extension(issuer, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        leaf = _pem(certificate)
        return {
            "certificate": leaf,
            "certificate_signing_request": request,
            "ca": self.ca,
            "chain": [leaf, self.ca],
        }


def requests(data: Mapping[str, str]) -> list[str]:
    """What a unit asks for in its databag."""
    asked = json.loads(data.get("certificate_signing_requests", "[]"))
    return [one["certificate_signing_request"] for one in asked]


def databag(*entries: Mapping[str, Any]) -> dict[str, str]:
    """The provider's databag with these certificates."""
    return {"certificates": json.dumps(entries)}


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode().strip()
