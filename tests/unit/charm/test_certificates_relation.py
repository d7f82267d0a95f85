"""The relation `certificates`: a unit serves what its provider issues once the API server may."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from charmlibs.interfaces.tls_certificates import (
    CertificateSigningRequest,
    PrivateKey,
    TLSCertificatesRequiresV4,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from lab.control_plane import begun, named, usage
from ops import testing

import certificates
from certificates import Leaf

from .conftest import Copies, Unit, active, copies
from .test_certificates import NAMES, handshake, kept, served, trusted

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


def requests_in(data: Mapping[str, str]) -> list[str]:
    """What a unit asks for in its databag."""
    asked = json.loads(data.get("certificate_signing_requests", "[]"))
    return [one["certificate_signing_request"] for one in asked]


def databag_of(*entries: Mapping[str, Any]) -> dict[str, str]:
    """The provider's databag with these certificates."""
    return {"certificates": json.dumps(entries)}


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode().strip()


RELATION = testing.Relation("certificates", remote_app_name="pki")


def relation(unit: Unit) -> testing.Relation:
    (found,) = unit.state.get_relations("certificates")
    assert isinstance(found, testing.Relation)
    return found


def requested(unit: Unit) -> str:
    """The unit's only request."""
    (found,) = requests_in(relation(unit).local_unit_data)
    return found


def write(unit: Unit, data: dict[str, str]) -> Any:
    """The provider writes its databag; returns the unit's status."""
    others = {one for one in unit.state.relations if one.id != RELATION.id}
    changed = dataclasses.replace(relation(unit), remote_app_data=data)
    return unit.run(unit.on.relation_changed(changed), relations={*others, changed})


def settle(unit: Unit) -> None:
    """More events, as the charm's own notices are, until an old issuer is gone."""
    for _ in range(4):
        unit.run()


@pytest.fixture(scope="module")
def provider() -> Provider:
    return Provider()


@pytest.fixture(scope="module")
def related(
    installed: tuple[Copies, Copies], provider: Provider, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Copies, Copies]:
    """The unit that has asked for a certificate, and that which serves it."""
    with installed[1](tmp_path_factory.mktemp("asking")) as unit:
        unit.run()
        unit.relate(RELATION)
        asking = copies(unit)
        write(unit, databag_of(provider.issue(requested(unit))))
        settle(unit)
        return asking, copies(unit)


@pytest.fixture
def asking(related: tuple[Copies, Copies], tmp_path: Path) -> Iterator[Unit]:
    """The unit, which has asked for a certificate."""
    with related[0](tmp_path / "asking") as unit:
        yield unit


@pytest.fixture
def provided(related: tuple[Copies, Copies], tmp_path: Path) -> Iterator[Unit]:
    """The unit, which serves the provider's certificate and needs no other issuer."""
    with related[1](tmp_path / "provided") as unit:
        yield unit


def test_the_unit_asks_for_the_names_of_its_service(asking: Unit) -> None:
    found = CertificateSigningRequest.from_string(requested(asking))

    assert found.sans_dns == set(NAMES)
    assert len(found.common_name) <= 64
    assert "PRIVATE" not in str(relation(asking))


def test_the_issuer_is_trusted_one_event_before_the_unit_serves(
    asking: Unit, provider: Provider
) -> None:
    before = served(asking)

    assert write(asking, databag_of(provider.issue(requested(asking)))) == active()

    assert set(certificates.parse_bundle(trusted(asking.api))) == {before.issuer, provider.ca}
    assert served(asking) == before
    assert asking.wakes

    asking.run()

    assert served(asking).issuer == provider.ca
    assert not asking.wakes


def test_in_the_end_the_api_server_trusts_the_provider_alone(
    provided: Unit, provider: Provider, tmp_path: Path
) -> None:
    assert certificates.parse_bundle(trusted(provided.api)) == [provider.ca]
    assert handshake(served(provided), trusted(provided.api), NAMES[2], tmp_path)
    assert PrivateKey.from_string(served(provided).private_key).key_size == 256
    files, objects, relations = provided.files, dict(provided.api.objects), provided.state.relations
    assert provided.run() == active()
    assert (provided.files, provided.api.objects) == (files, objects)
    assert provided.state.relations == relations


def test_the_old_issuer_stays_until_the_workload_serves_the_new_certificate(
    asking: Unit, provider: Provider, tmp_path: Path
) -> None:
    # What the workload has not read yet.
    asking.process.certificate = tmp_path / "old.crt"
    asking.process.certificate.write_text(served(asking).chain)
    old = served(asking).issuer

    write(asking, databag_of(provider.issue(requested(asking))))
    settle(asking)

    assert served(asking).issuer == provider.ca
    assert old in certificates.parse_bundle(trusted(asking.api))


def test_without_the_relation_the_unit_goes_back_to_its_own_authority(
    provided: Unit, provider: Provider
) -> None:
    own = kept(provided).certificate

    provided.leave(relation(provided))
    assert served(provided).issuer == provider.ca
    assert set(certificates.parse_bundle(trusted(provided.api))) == {own, provider.ca}
    settle(provided)

    assert served(provided).issuer == own
    assert certificates.parse_bundle(trusted(provided.api)) == [own]


def test_a_renewed_certificate_of_the_same_issuer_is_served_at_once(
    provided: Unit, provider: Provider
) -> None:
    before = served(provided)

    write(provided, databag_of(provider.issue(requested(provided))))

    assert served(provided) != before
    assert served(provided).issuer == before.issuer


def of_another_key() -> str:
    other = certificates.make_authority("other", "kubeflow")
    return certificates.parse_bundle(certificates.issue(other, NAMES).chain)[0]


# What the provider issues, or what it changes in an entry of its databag, or all of the databag.
UNUSABLE: dict[
    str, tuple[dict[str, Any] | Callable[[dict[str, Any]], dict[str, Any]] | str, str]
] = {
    "another name": ({"names": ["istio-aux"]}, "the certificate of pki is refused: "),
    "revoked": (lambda _: {"revoked": True}, "pki has revoked the certificate"),
    "an issuer that is no PEM": (lambda _: {"ca": "no PEM"}, "cannot be read"),
    "an issuer that is no authority": (
        lambda entry: {"ca": entry["certificate"], "chain": []},
        "it comes without its issuer",
    ),
    "a certificate for another key": (
        lambda _: {"certificate": of_another_key()},
        "waiting for the certificate of pki",
    ),
    "a chain without end": (
        lambda entry: {"chain": [entry["certificate"], *[entry["ca"]] * 200]},
        "its chain is longer than 16384 characters",
    ),
    "no JSON": ("{", "certificates: "),
    "nested": ("[" * 200_000, "certificates: "),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_what_cannot_be_used_changes_nothing_but_the_status(
    case: str, provided: Unit, provider: Provider
) -> None:
    what, said = UNUSABLE[case]
    before, bundle = served(provided), trusted(provided.api)
    entry = provider.issue(requested(provided), **(what if isinstance(what, dict) else {}))
    changed = what(entry) if callable(what) else {}
    databag = {"certificates": what} if isinstance(what, str) else databag_of({**entry, **changed})

    status = write(provided, databag)

    assert isinstance(status, testing.ActiveStatus)
    assert said in status.message
    assert len(status.message) < 300
    provided.run()
    assert (served(provided), trusted(provided.api)) == (before, bundle)


def test_a_denied_request_is_in_the_status(asking: Unit) -> None:
    error = {"code": 102, "name": "DOMAIN_NOT_ALLOWED", "message": "no .svc\nhere"}

    denied = json.dumps([{"csr": requested(asking), "error": error}])

    assert write(asking, {"request_errors": denied}) == active(
        r'; certificates: pki denies the certificate: "DOMAIN_NOT_ALLOWED: no .svc\nhere"'
    )


def test_before_a_certificate_ends_that_nobody_renewed_the_own_authority_takes_over(
    asking: Unit, provider: Provider
) -> None:
    request = requested(asking)
    life = timedelta(days=100)
    write(asking, databag_of(provider.issue(request, life=life, age=timedelta(days=94))))
    settle(asking)
    assert served(asking).issuer == provider.ca

    late = provider.issue(request, life=life, age=timedelta(days=96))
    leaf = Leaf(f"{late['certificate']}\n{late['ca']}\n", served(asking).private_key)
    (asking.etc / "tls" / "tls.crt").write_text(leaf.chain)
    write(asking, databag_of(late))
    settle(asking)

    assert served(asking).issuer == kept(asking).certificate


def test_a_unit_whose_pod_was_replaced_serves_the_same_certificate_again(
    provided: Unit,
) -> None:
    before = served(provided)

    provided.replace()

    assert served(provided) == before


def test_the_charm_has_each_handler_of_the_library_itself(unit: Unit) -> None:
    """The library observes events by private methods, whose errors would fail the hook.

    Another minor version may have others, or a public way.
    """
    version = importlib.metadata.version("charmlibs-interfaces-tls-certificates")
    assert version.startswith("1.12."), "see whether it has a public way, then move the pin"
    related = dataclasses.replace(unit.state, relations={*unit.state.relations, RELATION})
    with unit.ctx(unit.on.update_status(), related) as manager:
        library = manager.charm._pki
        observed = {
            method
            for observer, method, _, _ in manager.charm.framework._observers
            if observer == library.handle.path
        }
    assert observed >= {"_configure", "_on_secret_expired", "_on_secret_remove"}
    for name in observed | {"_on_relation_broken"}:
        ours, theirs = vars(type(library))[name], getattr(TLSCertificatesRequiresV4, name)
        assert len(signature(theirs).parameters) == len(signature(ours).parameters), name
