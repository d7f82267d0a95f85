"""A provider of certificates, and what it writes into the relation `certificates`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from charmlibs.interfaces.tls_certificates import (
    Certificate,
    CertificateRequestAttributes,
    PrivateKey,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID
from ops import testing

import certificates
from certificates import Authority

YEAR = timedelta(days=365)


def aged(age: timedelta, life: timedelta) -> Authority:
    """An authority of the charm's that was made some time ago."""
    now = datetime.now(UTC)
    made = certificates.make_authority("istio-aux", "kubeflow")
    parsed = x509.load_pem_x509_certificate(made.certificate.encode())
    key = serialization.load_pem_private_key(made.private_key.encode(), None)
    builder = (
        x509.CertificateBuilder()
        .subject_name(parsed.subject)
        .issuer_name(parsed.issuer)
        .public_key(parsed.public_key())
        .serial_number(parsed.serial_number)
        .not_valid_before(now - age)
        .not_valid_after(now - age + life)
    )
    for extension in parsed.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    signed = builder.sign(key, hashes.SHA256())  # pyright: ignore[reportArgumentType] - its kind is wider
    return Authority(Certificate(x509_object=signed).raw, made.private_key)


class Provider:
    """A PKI with one root. Each request gets a certificate, unless the caller says otherwise."""

    def __init__(self, name: str = "pki") -> None:
        self.name = name
        self._key = PrivateKey.generate(key_algorithm="ecdsa")
        attributes = CertificateRequestAttributes(common_name=f"root of {name}")
        self.ca = Certificate.generate_self_signed_ca(attributes, self._key, 10 * YEAR)

    def issue(
        self,
        request: str,
        *,
        names: Iterable[str] = certificates.service_names("istio-aux", "kubeflow"),
        age: timedelta = timedelta(0),
        life: timedelta = YEAR,
    ) -> dict[str, Any]:
        """Return the entry of the databag for a request."""
        asked = x509.load_pem_x509_csr(request.encode())
        authority = x509.load_pem_x509_certificate(self.ca.raw.encode())
        key = serialization.load_pem_private_key(self._key.raw.encode(), None)
        begin = datetime.now(UTC) - age
        identifier = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "istio-aux")]))
            .issuer_name(authority.subject)
            .public_key(asked.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(begin + life)
            .add_extension(x509.SubjectAlternativeName(map(x509.DNSName, names)), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier),
                critical=False,
            )
        )
        leaf = Certificate(x509_object=builder.sign(key, hashes.SHA256()))  # pyright: ignore[reportArgumentType] - its kind is wider
        return {
            "certificate": leaf.raw,
            "certificate_signing_request": request,
            "ca": self.ca.raw,
            "chain": [leaf.raw, self.ca.raw],
        }


def requests(relation: testing.Relation) -> list[str]:
    """What the unit asks for."""
    asked = json.loads(relation.local_unit_data.get("certificate_signing_requests", "[]"))
    return [one["certificate_signing_request"] for one in asked]


def databag(*entries: Mapping[str, Any]) -> dict[str, str]:
    """The provider's databag with these certificates."""
    return {"certificates": json.dumps(entries)}
