"""The certificates of a cluster: one authority and what it signs, valid for as long as it lives."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes as PublicKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# A cluster left running by hand may see a weekend; none sees a month.
LIFETIME = datetime.timedelta(days=30)


@dataclass(frozen=True)
class KeyPair:
    """A PEM certificate and its private key, as files."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority whose files live in one folder."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        """Make the authority and write `<name>.crt` and `<name>.key` to `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = named(f"lab {name}")
        certificate = (
            self._builder(self._subject, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage(signs_certificates=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.pair = _write(folder, name, certificate, self._key)

    def issue(
        self,
        name: str,
        common_name: str,
        *,
        organizations: Sequence[str] = (),
        hosts: Sequence[str] = (),
    ) -> KeyPair:
        """Write `<name>.crt` and `<name>.key`, good for a client and for a server at `hosts`.

        Kubernetes takes `common_name` for the user and `organizations` for the groups.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, o) for o in organizations]
        attributes.append(x509.NameAttribute(NameOID.COMMON_NAME, common_name))
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        builder = (
            self._builder(x509.Name(attributes), key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        )
        if hosts:
            names = x509.SubjectAlternativeName([general_name(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        return _write(self._folder, name, builder.sign(self._key, hashes.SHA256()), key)

    def _builder(self, subject: x509.Name, public_key: PublicKey) -> x509.CertificateBuilder:
        begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
        # Python 3.13 verifies strictly: RFC 5280 wants both key identifiers.
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            begun(subject, self._subject, public_key, begin, LIFETIME)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(authority, critical=False)
        )


def begun(
    subject: x509.Name,
    issuer: x509.Name,
    key: PublicKey,
    begin: datetime.datetime,
    life: datetime.timedelta,
) -> x509.CertificateBuilder:
    """A certificate that has no extension yet."""
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + life)
    )


def signing_key(path: Path) -> Path:
    return _write_key(path, ec.generate_private_key(ec.SECP256R1()))


def named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _write(
    folder: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> KeyPair:
    path = folder / f"{name}.crt"
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return KeyPair(path, _write_key(folder / f"{name}.key", key))


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> Path:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            # SEC 1: the API server finds the public key in it as well.
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    return path
