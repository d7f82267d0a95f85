"""The webhook's TLS: an authority of the application's own, and a leaf for each unit.

Pure but for randomness and the clock inside the certificate library. One webhook configuration
has one caBundle for all units, so there is one authority, which the leader keeps in a Juju
secret; each unit signs its own leaf. A certificate is replaced long before it expires, and an
authority that was replaced stays in the bundle until it expires, so that leaves of both are
accepted while the units follow one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from charmlibs.interfaces.tls_certificates import (
    Certificate,
    CertificateRequestAttributes,
    CertificateSigningRequest,
    PrivateKey,
    TLSCertificatesError,
)

# A leaf must expire before its authority, which is replaced after half its life: a year is left
# then, and a leaf lives for 60 days.
AUTHORITY_VALIDITY: Final = timedelta(days=730)
LEAF_VALIDITY: Final = timedelta(days=60)

# Half of a life leaves the charm a month of update-status events to be late in.
_RENEW_AFTER: Final = 0.5


@dataclass(frozen=True)
class Authority:
    """What signs leaves. All fields are PEM.

    Attributes:
        certificate: the authority's own certificate.
        private_key: its key.
        previous: the certificate of the authority that this one replaced, or nothing.
    """

    certificate: str
    private_key: str = field(repr=False)
    previous: str = ""

    def bundle(self, now: datetime) -> str:
        """Return the PEM certificates that a client has to accept at `now`."""
        if self.previous and Certificate.from_string(self.previous).expiry_time > now:
            return f"{self.certificate}\n{self.previous}\n"
        return f"{self.certificate}\n"

    def to_secret(self) -> dict[str, str]:
        """Return the content of the Juju secret that holds this authority."""
        content = {"certificate": self.certificate, "private-key": self.private_key}
        return {**content, "previous": self.previous} if self.previous else content

    @classmethod
    def from_secret(cls, content: Mapping[str, str]) -> Authority:
        """Return the authority that `to_secret` wrote."""
        return cls(content["certificate"], content["private-key"], content.get("previous", ""))


@dataclass(frozen=True)
class Leaf:
    """What a unit serves. Both fields are PEM; the chain is the leaf, then its authority."""

    chain: str
    private_key: str = field(repr=False)


def service_names(app: str, model: str) -> tuple[str, ...]:
    """Return the names of the Service; the API server verifies `<app>.<model>.svc`."""
    return (app, f"{app}.{model}", f"{app}.{model}.svc", f"{app}.{model}.svc.cluster.local")


def make_authority(
    app: str,
    model: str,
    replaces: Authority | None = None,
    validity: timedelta = AUTHORITY_VALIDITY,
) -> Authority:
    """Return a new self-signed authority."""
    key = PrivateKey.generate(key_algorithm="ecdsa")
    # X.520 allows 64 characters in a common name, and Juju's names may fill it twice over.
    name = CertificateRequestAttributes(common_name=f"istio-aux {model} {app}"[:64])
    certificate = Certificate.generate_self_signed_ca(name, key, validity)
    return Authority(certificate.raw, key.raw, replaces.certificate if replaces else "")


def issue(
    authority: Authority, names: tuple[str, ...], validity: timedelta = LEAF_VALIDITY
) -> Leaf:
    """Return a new leaf for `names`, signed by `authority`."""
    key = PrivateKey.generate(key_algorithm="ecdsa")
    attributes = CertificateRequestAttributes(common_name=names[0], sans_dns=frozenset(names))
    certificate = Certificate.generate(
        CertificateSigningRequest.generate(attributes, key),
        Certificate.from_string(authority.certificate),
        PrivateKey.from_string(authority.private_key),
        validity,
    )
    return Leaf(_chain(certificate, authority), key.raw)


def is_due(certificate: str, now: datetime) -> bool:
    """Tell whether a PEM certificate is old enough to be replaced."""
    parsed = Certificate.from_string(certificate)
    life = parsed.expiry_time - parsed.validity_start_time
    return now >= parsed.validity_start_time + life * _RENEW_AFTER


def usable(leaf: Leaf, authority: Authority, names: tuple[str, ...], now: datetime) -> bool:
    """Tell whether a unit may go on serving `leaf`."""
    if not (leaf.chain and leaf.private_key):
        return False
    try:
        certificate = Certificate.from_string(leaf.chain)
        key = PrivateKey.from_string(leaf.private_key)
    except (ValueError, TLSCertificatesError):  # What is in the container is no PEM.
        return False
    return (
        leaf.chain == _chain(certificate, authority)
        and certificate.matches_private_key(key)
        and certificate.sans_dns == set(names)
        and not is_due(leaf.chain, now)
    )


def _chain(certificate: Certificate, authority: Authority) -> str:
    return f"{certificate.raw}\n{authority.certificate}\n"
