"""The units' certificates: who issues them, what a unit serves, and which issuers are trusted.

Two providers each make a unit an `Offer`: the application's own authority and, with the relation
`certificates`, a PKI, which comes first.

All units share one caBundle, and have different issuers while the authority or the PKI changes. No
unit may serve a certificate that the API server does not trust. A new issuer takes these steps:

1. A unit publishes two issuers in the peer relation: of the certificate that it serves, and of the
   certificate that it wants to serve.
2. The leader applies a caBundle with the issuers of all units. Then the leader notes these issuers
   as trusted, in the peer relation.
3. The unit serves the new certificate once its issuer is noted.

An old issuer takes two events to go: when no unit publishes it any more, the leader removes it from
the trusted issuers, and in a later event from the caBundle.

Juju stores a hook's data when the hook succeeds, and a hook may change the cluster and then fail.
So each step relies on the data that Juju had when the event began.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

import ops
from charmlibs.interfaces import tls_certificates as tls
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509 import verification
from istio_aux.model.answers import ProcessStatus
from istio_aux.model.text import one_line, quoted

import cluster
from container import PEBBLE_FAILS
from relations import PEERS, active, note, noted, peers

ENDPOINT: Final = "certificates"
TLS_CERTIFICATE: Final = "/etc/istio-aux/tls/tls.crt"
TLS_KEY: Final = "/etc/istio-aux/tls/tls.key"

# A leaf must expire before its authority, which has a year left when it is replaced. Half of a
# leaf's life leaves a month in which the controller may be away.
AUTHORITY_VALIDITY: Final = timedelta(days=730)
LEAF_VALIDITY: Final = timedelta(days=60)
# Part of a certificate's life that is left when our own is renewed, and when the PKI's counts as
# not renewed in time: the units use the rest to change to another issuer.
_RENEWED: Final = 1 / 2
_LATE: Final = 1 / 20
# Characters of a provider's chain that a unit publishes. An RSA chain has some 6,000 bytes.
_LONGEST_CHAIN: Final = 16_384
# How long the leader waits for a lost authority. Juju loses the content of a secret for a while, or
# for good; its record stays, with a label that no other secret can have (juju#22310).
_PATIENCE: Final = timedelta(hours=1)

# A secret whose backend is unknown is not lost (juju#21936; juju domain/secretbackend errors.go,
# juju 3 secrets/client.go).
_NO_BACKEND: Final = re.compile(r"backend[^:]* not found")

# Keys of the application's databag in the peer relation: which secret has the authority, since when
# that is lost, and which issuers units may use.
_SECRET_ID: Final = "authority-secret-id"  # noqa: S105 - the name of a key, not a secret
_LOST_SINCE: Final = "authority-lost-since"
_TRUSTED: Final = "trusted-issuers"
_ISSUERS: Final = "issuers"  # A key of units.
_REMOVED: Final = "removed-secret-revisions"  # A key of the application and of units.
_LABEL: Final = "certificate-authority"  # How the labels of an authority's secret begin.

T = TypeVar("T")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Authority:
    """What signs leaves, in PEM. Its fields are those of the Juju secret that holds it.

    ValueError: one of them cannot be read.
    """

    certificate: str
    key: str = field(repr=False)

    def __post_init__(self) -> None:
        x509.load_pem_x509_certificate(self.certificate.encode())
        load_pem_private_key(self.key.encode(), None)


@dataclass(frozen=True)
class Leaf:
    """What a unit serves, in PEM: the leaf, then what has signed it. It may be empty."""

    chain: str = ""
    private_key: str = field(default="", repr=False)

    def __bool__(self) -> bool:
        return bool(self.chain)

    @property
    def issuer(self) -> str:
        """The certificate that has signed the leaf, empty if the chain has none."""
        return next(iter(parse_bundle(self.chain)[1:2]), "")

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the leaf, as the workload reports it."""
        return x509.load_pem_x509_certificate(self.chain.encode()).fingerprint(SHA256()).hex()


@dataclass(frozen=True)
class Offer:
    """A leaf, or the reason why there is none; a provider that is not there has neither."""

    leaf: Leaf = Leaf()
    reason: str = ""


def parse_bundle(text: str) -> list[str]:
    """Return the certificates in a PEM text, normalised; none if one of them cannot be read."""
    try:
        parsed = x509.load_pem_x509_certificates(text.encode())
    except ValueError:
        return []
    return [_pem(each) for each in parsed]


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode().strip()


def service_names(app: str, model: str) -> tuple[str, ...]:
    """Return the names of the Service; the API server verifies `<app>.<model>.svc`."""
    return (app, f"{app}.{model}", f"{app}.{model}.svc", f"{app}.{model}.svc.cluster.local")


def make_authority(app: str, model: str) -> Authority:
    """Return a new self-signed authority."""
    key = tls.PrivateKey.generate(key_algorithm="ecdsa")
    # X.520 allows 64 characters in a common name; Juju's names can be longer.
    certificate = tls.Certificate.generate_self_signed_ca(
        tls.CertificateRequestAttributes(common_name=f"istio-aux {model} {app}"[:64]),
        key,
        AUTHORITY_VALIDITY,
    )
    return Authority(certificate.raw, key.raw)


def issue(authority: Authority, names: tuple[str, ...]) -> Leaf:
    """Return a new leaf for `names`, signed by `authority`."""
    key = tls.PrivateKey.generate(key_algorithm="ecdsa")
    attributes = tls.CertificateRequestAttributes(common_name=names[0], sans_dns=names)
    certificate = tls.Certificate.generate(
        tls.CertificateSigningRequest.generate(attributes, key),
        tls.Certificate.from_string(authority.certificate),
        tls.PrivateKey.from_string(authority.key),
        LEAF_VALIDITY,
    )
    return Leaf(f"{certificate}\n{authority.certificate}\n", key.raw)


def renewed(
    served: Leaf,
    authority: Authority,
    names: tuple[str, ...],
    now: datetime,
) -> Leaf:
    """Return `served` for half its life if `authority` has signed it, or a new leaf."""
    good = served.issuer == authority.certificate and life_left(served.chain, now) > _RENEWED
    return served if good else issue(authority, names)


def verified(
    chain: str,
    key: str,
    names: tuple[str, ...],
    now: datetime,
) -> Leaf:
    """Return the leaf of a chain with what has signed it.

    Raises:
        ValueError: no client would accept it.
    """
    if len(chain) > _LONGEST_CHAIN:
        raise ValueError(f"its chain is longer than {_LONGEST_CHAIN} characters")
    leaf, *issuers = x509.load_pem_x509_certificates(chain.encode())
    if not issuers:
        raise ValueError("it comes without its issuer")
    # As strict as browsers are.
    policy = verification.PolicyBuilder().store(verification.Store(issuers)).time(now)
    try:
        # The name that the API server verifies.
        found = policy.build_server_verifier(x509.DNSName(names[2])).verify(leaf, [])
    except verification.VerificationError as error:
        raise ValueError(str(error).partition("\n")[0][:100]) from error
    if load_pem_private_key(key.encode(), None).public_key() != leaf.public_key():
        raise ValueError("it has another key")
    return Leaf("".join(f"{_pem(each)}\n" for each in found), key)


def life_left(certificate: str, now: datetime) -> float:
    """Return which part of the life of a PEM certificate is left."""
    parsed = x509.load_pem_x509_certificate(certificate.encode())
    return (parsed.not_valid_after_utc - now) / (
        parsed.not_valid_after_utc - parsed.not_valid_before_utc
    )


def _time(text: str) -> datetime | None:
    """Read a time that another revision may have noted; None if it is none, or has no zone."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else None


class OwnAuthority:
    """The application's own authority, which the leader keeps in a Juju secret.

    Secret backends fail for a while (juju#22051, juju#22961), also with "not found". So there is no
    authority only while no secret is noted.
    """

    def __init__(self, model: ops.Model) -> None:
        self._model = model
        known = noted(model, model.app)
        self._lost_since = _time(known.get(_LOST_SINCE, ""))
        self._lost = False  # Juju says that the secret has no content: for a while, or for good.
        self.secret_id = known.get(_SECRET_ID, "")  # Empty while the leader has not made one.
        self.present: Authority | None = None  # At the event's start; None: unreadable.
        # Why it is not present, in one line.
        self.reason = "" if self.secret_id else "waiting for the leader's certificate authority"
        if not self.secret_id:
            return
        try:
            # All units learn of a new authority at once.
            content = model.get_secret(id=self.secret_id).get_content(refresh=True)
            self.present = Authority(**content)
        except (ops.ModelError, TypeError, ValueError) as error:
            # For a secret that is not found, only the cause of the error has Juju's message.
            said = getattr(error.__cause__, "stderr", "") or str(error) or type(error).__name__
            why = one_line(said, 100)
            missing = isinstance(error, (ops.SecretNotFoundError, TypeError, ValueError))
            self._lost = missing and not _NO_BACKEND.search(why)
            do = f"if that lasts: juju run {model.app.name}/leader replace-authority"
            if self._lost and self._lost_since:
                do = f"the leader makes another one at {self._lost_since + _PATIENCE:%H:%M}Z"
            self.reason = f"certificate authority cannot be read; {do} ({why})"

    def offer(self, served: Leaf, names: tuple[str, ...], now: datetime) -> Offer:
        """Return what the unit, which serves `served`, may serve."""
        if not self.present:
            return Offer(reason=self.reason)
        return Offer(renewed(served, self.present, names, now))

    def keep(self, now: datetime) -> bool:
        """Store the first authority, a successor in time, or another for a lost one; leader only.

        Juju stores a secret when the hook succeeds, so this event goes on with the present one.

        Returns:
            Whether the next event may find another authority.
        """
        if not self._model.get_relation(PEERS):
            return False
        # Only a lost secret is replaced. A backend that is away for another reason would not store
        # a new one either, and the hook would fail at its end.
        since = (self._lost_since or now) if self._lost else None
        note(
            self._model,
            self._model.app,
            {_LOST_SINCE: since.isoformat(timespec="seconds") if since else ""},
        )
        if self.present:
            due = life_left(self.present.certificate, now) <= _RENEWED
        else:
            due = not self.secret_id or bool(since and now >= since + _PATIENCE)
        if due:
            try:
                self.replace(now)
            except ops.ModelError as error:
                logger.warning("certificate authority: not stored: %s", error)
        return due or not self.present

    def replace(self, now: datetime) -> None:
        """Store another authority; leader only. What the API server trusts stays, as at a renewal.

        Raises:
            ops.ModelError: Juju does not take the secret.
        """
        app = self._model.app
        made = asdict(make_authority(app.name, self._model.name))
        if self.present:
            self._model.get_secret(id=self.secret_id).set_content(made)
            return
        secret = app.add_secret(made, label=f"{_LABEL}-{now:%Y%m%d%H%M%S%f}")
        note(self._model, app, {_SECRET_ID: secret.id or "", _LOST_SINCE: ""})


@dataclass(frozen=True)
class Issuers:
    """What a unit knew when the event began, and what follows from it. Certificates are PEM."""

    before: frozenset[str] = frozenset()  # What this unit has published.
    others: frozenset[str] = frozenset()  # What other units have published.
    silent: bool = False  # A unit has published nothing. It serves what `own` has signed.
    # Issuers that the leader has noted as trusted. None: none yet, so there is no webhook.
    trusted: frozenset[str] | None = None
    own: str = ""  # The application's own authority, empty while it is unknown.
    served: Leaf = Leaf()  # Empty unless a client may accept it.
    wants: Leaf = Leaf()
    missing: str = ""  # Why the own authority offers nothing, in one line.
    refused: str = ""  # Why the PKI offers nothing, in one line.

    def needed(self) -> frozenset[str]:
        """Return the issuers that some unit needs, as far as the leader knows."""
        issuers = self.before | self.others | {self.wants.issuer}
        if self.silent:  # Unknown is not unneeded.
            issuers |= {self.own} | (self.trusted or frozenset())
        return issuers - {""}

    def bundle(self) -> tuple[str, ...]:
        """Return the certificates of the caBundle, in a stable order."""
        return tuple(sorted(self.needed() | (self.trusted or frozenset())))

    def choose(self, *, applied: bool) -> Leaf:
        """Return what this unit serves from now on; it may have `applied` the caBundle itself."""
        own = frozenset({self.own})
        trusted = own if self.trusted is None else self.trusted
        if applied:
            trusted = trusted.union(self.bundle())
        # Only published issuers are used: the next leader knows no others.
        known = self.before or own
        return self.wants if self.wants.issuer in trusted & known else self.served


def observe(
    model: ops.Model,
    container: ops.Container,
    own: OwnAuthority,
    pki: Requirer | None,
    now: datetime,
) -> Issuers:
    """Read what the units have published, what this one serves, and what providers offer to it.

    While the PKI offers nothing, the unit keeps a certificate of another issuer until shortly
    before it expires. Then the own authority issues one, as without the relation.
    """
    names = service_names(model.app.name, cluster.namespace())
    served = _served(container, names, now)
    ours = own.offer(served, names, now)
    theirs = pki.offer(names, now) if pki else Offer()
    wants = theirs.leaf or ours.leaf or served
    if theirs.reason and served and served.issuer != ours.leaf.issuer:
        wants = served if life_left(served.chain, now) > _LATE else wants
    texts = [noted(model, unit).get(_ISSUERS, "") for unit in (model.unit, *peers(model))]
    before, *others = (frozenset(parse_bundle(text)) for text in texts)
    trusted = noted(model, model.app).get(_TRUSTED)
    return Issuers(
        before=before,
        others=frozenset[str]().union(*others),
        silent=not all(texts),
        trusted=frozenset(parse_bundle(trusted)) if trusted else None,
        own=ours.leaf.issuer,
        served=served,
        wants=wants,
        missing=ours.reason,
        refused=theirs.reason,
    )


def note_trusted(model: ops.Model, issuers: Issuers) -> None:
    """Note that the caBundle has the issuers that units need; leader only."""
    if needed := issuers.needed():
        note(model, model.app, {_TRUSTED: "\n".join(sorted(needed))})


def publish(
    model: ops.Model,
    issuers: Issuers,
    leaf: Leaf,
    process: ProcessStatus | None,
) -> None:
    """Publish the issuers that this unit needs from now on.

    Until the workload's `process` has answered with the fingerprint of `leaf`, what was published
    stays.
    """
    needs = frozenset({issuers.wants.issuer, leaf.issuer})
    if not (leaf and process) or process.certificate != leaf.fingerprint:
        needs |= {issuers.served.issuer, *issuers.before}
    if needs := needs - {""}:
        note(model, model.unit, {_ISSUERS: "\n".join(sorted(needs))})


def remove_revision(model: ops.Model, event: ops.SecretRemoveEvent) -> None:
    """Remove a revision that is not used, once.

    Juju asks again (juju#19036, juju#20794), and removing one that is gone fails the hook at its
    end. So removed revisions are noted.
    """
    try:
        info = event.secret.get_info()
        owner = model.app if (info.label or "").startswith(_LABEL) else model.unit
        removed = noted(model, owner).get(_REMOVED, "").split()
        name = f"{info.id}/{event.revision}"
        if event.revision < info.revision and name not in removed:
            event.remove_revision()
            note(model, owner, {_REMOVED: " ".join([*removed, name])})
    except ops.ModelError as error:
        logger.info("secret %s: not removed: %s", event.secret.id, error)


def _served(container: ops.Container, names: tuple[str, ...], now: datetime) -> Leaf:
    try:
        with container.pull(TLS_CERTIFICATE) as chain, container.pull(TLS_KEY) as key:
            return verified(chain.read(), key.read(), names, now)
    except (*PEBBLE_FAILS, ValueError):
        return Leaf()


class Requirer(tls.TLSCertificatesRequiresV4):
    """Asks for the certificate, keeps the unit's key in a Juju secret, and renews both.

    Bad data of a provider, or a failing secret, makes the library raise errors, which would fail
    the hook until the other side changes. Here such an error becomes the reason.
    """

    def __init__(self, charm: ops.CharmBase) -> None:
        self._failure = ""
        names = service_names(charm.app.name, cluster.namespace())
        self._request = tls.CertificateRequestAttributes(common_name=names[0], sans_dns=names)
        super().__init__(charm, ENDPOINT, [self._request], key_algorithm="ecdsa")

    def offer(self, names: tuple[str, ...], now: datetime) -> Offer:
        """Return what the PKI has issued to this unit, or why that cannot be served."""
        if not (relations := active(self.model, ENDPOINT)):
            return Offer()
        provider = relations[-1].app.name
        found = None if self._failure else self._attempt(self._offer, provider, names, now)
        return found or Offer(reason=self._failure)

    def _offer(self, provider: str, names: tuple[str, ...], now: datetime) -> Offer:
        given, key = self.get_assigned_certificate(self._request)
        if given and given.revoked:
            return Offer(reason=f"{provider} has revoked the certificate")
        if given and key:
            # The issuer is mostly `ca`; in a longer chain it is the second certificate.
            issuers = [one for one in (given.ca, *given.chain) if one != given.certificate]
            chain = "\n".join(map(str, (given.certificate, *issuers)))
            try:
                return Offer(verified(chain, key.raw, names, now))
            except ValueError as error:
                return Offer(reason=f"the certificate of {provider} is refused: {error}")
        for request in self.get_csrs_from_requirer_relation_data():
            if denied := self.get_request_error(request.certificate_signing_request):
                why = quoted(f"{denied.error.name}: {denied.error.message}")
                return Offer(reason=f"{provider} denies the certificate: {why}")
        return Offer(reason=f"waiting for the certificate of {provider}")

    def _configure(self, _: ops.EventBase | None = None) -> None:
        self._attempt(super()._configure)

    def _on_relation_broken(self, event: ops.RelationBrokenEvent) -> None:
        self._attempt(super()._on_relation_broken, event)

    def _on_secret_expired(self, event: ops.SecretExpiredEvent) -> None:
        self._attempt(super()._on_secret_expired, event)

    def _on_secret_remove(self, event: ops.SecretRemoveEvent) -> None:
        """Leave it to `remove_revision`, which removes a revision once."""

    def _attempt(self, work: Callable[..., T], *given: Any) -> T | None:
        try:
            return work(*given)
        except Exception as error:  # Of several libraries.
            self._failure = f"the certificate cannot be read: {quoted(str(error) or repr(error))}"
            logger.warning("%s: %s", ENDPOINT, self._failure)
            return None
