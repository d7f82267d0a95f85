"""The application's certificate authority, the units' certificates, and when a token is late.

The application has one authority of its own. The leader keeps it in a Juju secret, and each unit
signs its own leaf certificate. Everything is renewed after half its life. With the relation
`certificates`, each unit serves what the provider issues instead. `issuers` decides which one.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import logging
import re
import ssl
from collections.abc import Iterable, Mapping
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
from cryptography import x509
from cryptography.x509 import verification

from relations import write

# The one number for the life of the application's own authority: SECURITY.md says it, too. A leaf
# must expire before its authority, which has a year left when it is replaced. Half of a leaf's life
# leaves a month in which the controller may be away.
AUTHORITY_VALIDITY: Final = timedelta(days=730)
LEAF_VALIDITY: Final = timedelta(days=60)
# A certificate with less than 1/20 of its life left was not renewed in time. The rest is for the
# units to change to another one.
_LAST_PART: Final = 20

PEERS: Final = "peers"
TLS_CERTIFICATE: Final = "/etc/istio-aux/tls/tls.crt"
TLS_KEY: Final = "/etc/istio-aux/tls/tls.key"
# Keys of the application's databag: which secret has the authority, and since when it is lost.
_SECRET_ID: Final = "authority-secret-id"  # noqa: S105 - the name of a key, not a secret
_SECRET_LABEL: Final = "authority-secret-label"  # noqa: S105 - a key, not a secret
_LOST_SINCE: Final = "authority-lost-since"
_LABEL: Final = "certificate-authority"
# How long a lost authority is waited for. Juju forgets the content of a secret for a while, or for
# good: its record stays, and so does its label, which no other secret can have (juju#22310).
PATIENCE: Final = timedelta(hours=1)
_REMOVED: Final = "removed-secret-revisions"
# What one provider may make a unit publish. A chain of RSA certificates has some 6,000 bytes.
_LONGEST_CHAIN: Final = 16_384
_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Authority:
    """What signs leaves. All fields are PEM."""

    certificate: str
    private_key: str = field(repr=False)

    def to_secret(self) -> dict[str, str]:
        """Return the content of the Juju secret that holds this authority."""
        return {"certificate": self.certificate, "private-key": self.private_key}

    @classmethod
    def from_secret(cls, content: Mapping[str, str]) -> Authority:
        """Return the authority that `to_secret` wrote."""
        return cls(content["certificate"], content["private-key"])


@dataclass(frozen=True)
class Unreadable:
    """There is an authority, and Juju does not hand it out now; `reason` is one line.

    It is `lost` if Juju says that the secret has no content. That may pass, or stay for good.
    """

    reason: str
    lost: bool = False


@dataclass(frozen=True)
class Leaf:
    """What a unit serves. Both fields are PEM; the chain is the leaf, then what has signed it."""

    chain: str
    private_key: str = field(repr=False)

    @property
    def issuer(self) -> str:
        """The certificate that has signed the leaf, empty if the chain has none."""
        return next(iter(parse_bundle(self.chain)[1:2]), "")

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the leaf, as the workload reports it; empty if there is no leaf."""
        first = next(iter(parse_bundle(self.chain)), "")
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(first)).hexdigest() if first else ""


def parse_bundle(text: str) -> list[str]:
    """Return the certificates in a PEM text, normalised; what is no certificate is left out."""
    certificates: list[str] = []
    for block in _PEM.findall(text):
        with contextlib.suppress(ValueError):
            parsed = x509.load_pem_x509_certificate(block.encode())
            certificates.append(Certificate(x509_object=parsed).raw)
    return certificates


def read_authority(model: ops.Model, *, leader: bool) -> Authority | Unreadable | None:
    """Return the authority, None while the leader has not made or published it.

    Secret backends fail for a while (juju#22051, juju#22961), also with "not found". So it counts
    as absent only for a leader that has never published an id and has no secret with the label.
    """
    noted = _noted(model)
    known = noted.get(_SECRET_ID)
    if not known and not leader:
        return None
    label = noted.get(_SECRET_LABEL, _LABEL)
    try:
        # Only the leader finds an application's secret by its label.
        secret = model.get_secret(label=label) if leader else model.get_secret(id=known)
        # All units learn of a new authority at once.
        return Authority.from_secret(secret.get_content(refresh=True))
    except (ops.ModelError, KeyError) as error:
        if isinstance(error, ops.SecretNotFoundError) and not known:
            return None
        lost = isinstance(error, (ops.SecretNotFoundError, KeyError))
        why = (str(error).strip() or type(error).__name__)[:100]
        if lost and (since := _lost_since(noted)):
            why += f"; the leader makes another one at {since + PATIENCE:%H:%M}Z"
        reason = f"the secret with the certificate authority cannot be read: {why}"
        return Unreadable(reason, lost=lost)


def keep_authority(model: ops.Model, present: Authority | Unreadable | None, now: datetime) -> bool:
    """Store the first authority, its successor in time, or another one for a lost one; leader only.

    Juju stores a secret when the hook succeeds, so this event goes on with `present`.

    Returns:
        Whether the next event may find another authority.
    """
    relation, noted = model.get_relation(PEERS), _noted(model)
    if relation is None:
        return False
    # A backend that is away for another reason does not take another secret either, and the hook
    # would fail at its end.
    lost = isinstance(present, Unreadable) and present.lost
    since = (_lost_since(noted) or now) if lost else None
    write(relation, model.app, {_LOST_SINCE: since.isoformat(timespec="seconds") if since else ""})
    due = present is None or bool(since and now >= since + PATIENCE)
    try:
        if isinstance(present, Authority):
            due = is_due(present.certificate, now)
            if _SECRET_ID not in noted:
                secret = model.get_secret(label=noted.get(_SECRET_LABEL, _LABEL))
                write(relation, model.app, {_SECRET_ID: secret.id or secret.get_info().id})
        if due:
            replace_authority(model, present, now)
    except ops.ModelError as error:
        logger.warning("certificate authority: not stored: %s", error)
    return due or isinstance(present, Unreadable)


def replace_authority(
    model: ops.Model, present: Authority | Unreadable | None, now: datetime
) -> None:
    """Store another authority; leader only. What the API server trusts stays, as at a renewal.

    Raises:
        ops.ModelError: Juju does not take the secret.
    """
    relation = model.get_relation(PEERS)
    assert relation is not None  # There is one before any authority.
    made = make_authority(model.app.name, model.name).to_secret()
    label = _noted(model).get(_SECRET_LABEL, _LABEL)
    if isinstance(present, Authority):
        model.get_secret(label=label).set_content(made)
        return
    if present is not None:
        label = f"{_LABEL}-{now:%Y%m%d%H%M%S}"
    secret = model.app.add_secret(made, label=label)
    noted = {_SECRET_ID: secret.id or "", _SECRET_LABEL: label, _LOST_SINCE: ""}
    write(relation, model.app, noted)


def _noted(model: ops.Model) -> Mapping[str, str]:
    relation = model.get_relation(PEERS)
    return relation.data[model.app] if relation else {}


def _lost_since(noted: Mapping[str, str]) -> datetime | None:
    text = noted.get(_LOST_SINCE)
    return datetime.fromisoformat(text) if text else None


def remove_revision(model: ops.Model, event: ops.SecretRemoveEvent) -> None:
    """Remove a revision that nobody uses, once.

    Juju asks again, also for secrets and revisions that are gone (juju#19036, juju#20794). Removing
    one that is gone would fail the hook at its end. So removed revisions are noted.
    """
    relation = model.get_relation(PEERS)
    try:
        info = event.secret.get_info()
        if relation is None or event.revision >= info.revision:
            return
        owner = model.app if model.unit.is_leader() else model.unit
        removed = relation.data[owner].get(_REMOVED, "").split()
        name = f"{info.id}/{event.revision}"
        if name not in removed:
            event.remove_revision()
            write(relation, owner, {_REMOVED: " ".join([*removed, name])})
    except ops.ModelError as error:
        logger.info("secret %s: not removed: %s", event.secret.id, error)


def service_names(app: str, model: str) -> tuple[str, ...]:
    """Return the names of the Service; the API server verifies `<app>.<model>.svc`."""
    return (app, f"{app}.{model}", f"{app}.{model}.svc", f"{app}.{model}.svc.cluster.local")


def make_authority(app: str, model: str) -> Authority:
    """Return a new self-signed authority."""
    key = PrivateKey.generate(key_algorithm="ecdsa")
    # X.520 allows 64 characters in a common name; Juju's names can be longer.
    name = CertificateRequestAttributes(common_name=f"istio-aux {model} {app}"[:64])
    certificate = Certificate.generate_self_signed_ca(name, key, AUTHORITY_VALIDITY)
    return Authority(certificate.raw, key.raw)


def issue(authority: Authority, names: tuple[str, ...]) -> Leaf:
    """Return a new leaf for `names`, signed by `authority`."""
    key = PrivateKey.generate(key_algorithm="ecdsa")
    attributes = CertificateRequestAttributes(common_name=names[0], sans_dns=frozenset(names))
    certificate = Certificate.generate(
        CertificateSigningRequest.generate(attributes, key),
        Certificate.from_string(authority.certificate),
        PrivateKey.from_string(authority.private_key),
        LEAF_VALIDITY,
    )
    return Leaf(_chain(certificate.raw, authority.certificate), key.raw)


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
        leaf.chain == _chain(certificate.raw, authority.certificate)
        and certificate.matches_private_key(key)
        and certificate.sans_dns == set(names)
        and not is_due(leaf.chain, now)
    )


def is_valid(leaf: Leaf, names: tuple[str, ...], now: datetime) -> bool:
    """Tell whether the API server accepts `leaf` if it trusts its issuer."""
    certificate, issuer = (*parse_bundle(leaf.chain), "", "")[:2]
    try:
        key = PrivateKey.from_string(leaf.private_key)
    except (ValueError, TLSCertificatesError):
        return False
    return bool(
        issuer
        and Certificate(certificate).matches_private_key(key)
        and not _refusal(certificate, issuer, names, now)
    )


def lasts(leaf: Leaf, now: datetime) -> bool:
    """Tell whether a valid leaf lasts long enough for the units to change to another one."""
    parsed = Certificate(leaf.chain)
    life = parsed.expiry_time - parsed.validity_start_time
    return now < parsed.expiry_time - life / _LAST_PART


def accept(
    offered: str, chain: Iterable[str], key: str, names: tuple[str, ...], now: datetime
) -> Leaf | str:
    """Return the leaf that a provider has issued with its issuer, or why a unit cannot serve it.

    The issuer is the certificate that has signed the leaf, so the API server trusts no more than
    that.
    """
    candidates = list(chain)
    if sum(map(len, (offered, *candidates))) > _LONGEST_CHAIN:
        return f"its chain is longer than {_LONGEST_CHAIN} characters"
    refusals: list[str] = []
    for issuer in candidates:
        if not (why := _refusal(offered, issuer, names, now)):
            leaf = Leaf(_chain(offered, issuer), key)
            return leaf if lasts(leaf, now) else "it is about to expire"
        refusals.append(why)
    return refusals[0] if refusals else "it comes without its issuer"


def _refusal(certificate: str, issuer: str, names: tuple[str, ...], now: datetime) -> str:
    """Return why a client that trusts `issuer` alone refuses `certificate`, or the empty text."""
    try:
        anchor, leaf = (x509.load_pem_x509_certificate(p.encode()) for p in (issuer, certificate))
        # Clients differ in what they accept; this one is as strict as browsers are.
        policy = verification.PolicyBuilder().store(verification.Store([anchor])).time(now)
        # The name that the API server verifies.
        policy.build_server_verifier(x509.DNSName(names[2])).verify(leaf, [])
    except (ValueError, verification.VerificationError) as error:
        return str(error).partition("\n")[0][:100] or type(error).__name__
    return ""


def token_is_late(token: str, now: datetime) -> bool:
    """Tell whether less than a third is left of the life that the API server granted a token."""
    try:
        payload = token.split(".")[1]
        claims: dict[str, Any] = json.loads(
            base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))
        )
        issued, expires = float(claims["iat"]), float(claims["exp"])
    except (IndexError, KeyError, TypeError, ValueError):
        return True
    return expires - now.timestamp() < (expires - issued) / 3


def _chain(certificate: str, issuer: str) -> str:
    return f"{certificate}\n{issuer}\n"
