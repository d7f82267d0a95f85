"""What a caBundle trusts, and when."""

from __future__ import annotations

import base64
import datetime
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from istio_aux.core.liveness import Certificate
from istio_aux.core.webhooks import ClientConfig
from istio_aux.injector.trust import certificates, context
from unit.core.mesh import DEFAULT, recorded
from unit.tls import certificate

Y1950 = datetime.datetime(1950, 1, 1, tzinfo=datetime.UTC)
Y2049, Y2050 = (datetime.datetime(year, 1, 1, tzinfo=datetime.UTC) for year in (2049, 2050))


def encoded(*parts: bytes) -> str:
    return base64.b64encode(b"\n".join(parts)).decode()


def valid(begin: datetime.datetime, end: datetime.datetime, *, authority: bool = True) -> bytes:
    """A certificate with this validity, PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "istiod")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    )
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def test_the_bundle_of_a_real_istiod_says_when_it_is_valid() -> None:
    webhooks = recorded(DEFAULT).webhooks
    assert webhooks
    [found] = certificates(webhooks[0].client_config.ca_bundle or "")

    assert found.not_after - found.not_before == datetime.timedelta(days=3650)


@pytest.mark.parametrize("authority", [True, False])
@pytest.mark.parametrize(("begin", "end"), [(Y1950, Y2049), (Y2049, Y2050)])
def test_either_way_to_write_a_time_is_read(
    begin: datetime.datetime, end: datetime.datetime, authority: bool
) -> None:
    """RFC 5280, 4.1.2.5: with two digits of the year up to 2049, with four from 2050 on."""
    bundle = encoded(valid(begin, end, authority=authority))

    assert certificates(bundle) == (Certificate(begin, end),)


def test_all_certificates_of_a_bundle_are_read_and_what_is_none_is_passed_over() -> None:
    first, second = valid(Y1950, Y2049), valid(Y1950, Y2050)
    cut = first.replace(b"MII", b"MIIA", 1)
    empty = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"

    found = certificates(encoded(b"# istiod", first, b"garbage", cut, empty, second))

    assert [each.not_after for each in found] == [Y2049, Y2050]


@pytest.mark.parametrize(
    "bundle",
    ["", "Z2FyYmFnZQ==", "no base64!", "ümlaut", encoded(b"\xff\x30\x80"), encoded(b"-----BEGIN")],
)
def test_a_bundle_that_cannot_be_read_holds_nothing(bundle: str) -> None:
    assert certificates(bundle) == ()


def test_bytes_that_look_like_a_certificate_for_a_while_are_none() -> None:
    """Whatever the place at which they are cut, or what a byte becomes."""
    der = ssl.PEM_cert_to_DER_cert(valid(Y1950, Y2049).decode())

    for size in range(0, len(der), 7):
        pem = ssl.DER_cert_to_PEM_cert(der[:size]).encode()
        assert certificates(encoded(pem)) == ()
    for place in range(200):
        broken = der[:place] + bytes([der[place] ^ 0xFF]) + der[place + 1 :]
        certificates(encoded(ssl.DER_cert_to_PEM_cert(broken).encode()))


def loaded(bundle: str | None) -> int:
    return context(ClientConfig(url="https://istiod", ca_bundle=bundle)).cert_store_stats()["x509"]


def test_what_can_be_read_of_a_bundle_is_trusted() -> None:
    """As the API server does; nothing of it is not everything."""
    good = valid(Y1950, Y2049)

    assert loaded(encoded(b"garbage", good.replace(b"MII", b"MIIA", 1), good)) == 1
    assert loaded(encoded(b"garbage")) == 0


def test_without_a_bundle_the_system_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate(tmp_path)[0]))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))

    assert loaded(None) == 1


def test_names_are_checked_and_old_protocols_refused() -> None:
    tls = context(ClientConfig(ca_bundle=encoded(valid(Y1950, Y2049))))

    assert (tls.check_hostname, tls.verify_mode) == (True, ssl.CERT_REQUIRED)
    assert tls.minimum_version is ssl.TLSVersion.TLSv1_2
    assert not tls.hostname_checks_common_name
