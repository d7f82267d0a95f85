"""The application's certificate authority, the units' certificates, and when a token is late.

One webhook configuration has one caBundle for all units, so the application has one authority.
The leader keeps it in a Juju secret, and each unit signs its own leaf certificate. Everything is
renewed after half its life. A replaced authority stays in the bundle until it expires, so the API
server accepts leaves of both while the units follow.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import ops
from charmlibs.interfaces.tls_certificates import (
    Certificate,
    CertificateRequestAttributes,
    CertificateSigningRequest,
    PrivateKey,
    TLSCertificatesError,
)

# A leaf must expire before its authority, which has a year left when it is replaced. Half of a
# leaf's life leaves a month of update-status events to renew it.
AUTHORITY_VALIDITY: Final = timedelta(days=730)
LEAF_VALIDITY: Final = timedelta(days=60)

PEERS: Final = "peers"
_SECRET_ID: Final = "authority-secret-id"  # noqa: S105 - the name of a key, not a secret
_LABEL: Final = "certificate-authority"


@dataclass(frozen=True)
class Authority:
    """What signs leaves. All fields are PEM."""

    certificate: str
    private_key: str = field(repr=False)
    previous: str = ""  # The certificate of the authority that this one replaced.

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


def read_authority(model: ops.Model, *, leader: bool) -> Authority | None:
    """Return the authority, None while the leader has not made or published it."""
    try:
        if leader:
            secret = model.get_secret(label=_LABEL)
        else:
            # Only the leader finds an application's secret by its label.
            relation = model.get_relation(PEERS)
            secret_id = relation.data[relation.app].get(_SECRET_ID) if relation else None
            if not secret_id:
                return None
            secret = model.get_secret(id=secret_id)
        # All units follow a new authority at once.
        return Authority.from_secret(secret.get_content(refresh=True))
    except ops.SecretNotFoundError:
        return None


def keep_authority(model: ops.Model, present: Authority | None, authority: Authority) -> None:
    """Store `authority` in the place of `present`, and tell the other units; leader only."""
    if present is None:
        secret = model.app.add_secret(authority.to_secret(), label=_LABEL)
    else:
        secret = model.get_secret(label=_LABEL)
        if authority != present:
            secret.set_content(authority.to_secret())
    if relation := model.get_relation(PEERS):
        relation.data[model.app][_SECRET_ID] = secret.id or secret.get_info().id


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
    # X.520 allows 64 characters in a common name; Juju's names can be longer.
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
    """Tell whether more than half of a PEM certificate's life is over."""
    parsed = Certificate.from_string(certificate)
    life = parsed.expiry_time - parsed.validity_start_time
    return now >= parsed.validity_start_time + life / 2


def usable(leaf: Leaf, authority: Authority, names: tuple[str, ...], now: datetime) -> bool:
    """Tell whether a unit may go on serving `leaf`."""
    if not (leaf.chain and leaf.private_key):
        return False
    try:
        certificate = Certificate.from_string(leaf.chain)
        key = PrivateKey.from_string(leaf.private_key)
    except (ValueError, TLSCertificatesError):  # The container's file is not PEM.
        return False
    return (
        leaf.chain == _chain(certificate, authority)
        and certificate.matches_private_key(key)
        and certificate.sans_dns == set(names)
        and not is_due(leaf.chain, now)
    )


def token_is_late(token: str, now: datetime) -> bool:
    """Tell whether three quarters of a token's life are over.

    The workload renews its token after half its life; here, it has failed for long.
    """
    try:
        payload = token.split(".")[1]
        claims: dict[str, Any] = json.loads(
            base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))
        )
        issued, expires = float(claims["iat"]), float(claims["exp"])
    except (IndexError, KeyError, TypeError, ValueError):
        return True
    return now.timestamp() > issued + (expires - issued) * 3 / 4


def _chain(certificate: Certificate, authority: Authority) -> str:
    return f"{certificate.raw}\n{authority.certificate}\n"
