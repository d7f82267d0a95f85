"""Which issuers the API server trusts, and which certificate a unit serves.

All units share one webhook configuration, which has one caBundle. Their certificates have different
issuers while the application's authority is replaced, and while the relation `certificates` comes,
goes or changes. No unit may serve a certificate that the API server does not trust. A new issuer
takes these steps:

1. A unit publishes two issuers in the peer relation: of the certificate that it serves, and of the
   certificate that it wants to serve.
2. The leader applies a caBundle with the issuers of all units. Then the leader notes these issuers
   as trusted, in the peer relation.
3. The unit serves the new certificate once its issuer is noted.

An old issuer takes two events to go. In the first, no unit publishes it any more, and the leader
removes it from the trusted issuers. In a later event, the leader removes it from the caBundle.

Juju stores a hook's data when the hook succeeds. A hook may change the cluster and then fail. So
each step relies on the data that Juju had when the event began, and not on data that the event
wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import ops
from istio_aux.model.answers import ProcessStatus

import certificates
from certificates import PEERS, Authority, Leaf
from relations import write

_ISSUERS: Final = "issuers"
_TRUSTED: Final = "trusted-issuers"
# Issuers that a unit publishes at most. A unit has two, and three while its wanted one changes.
_MOST: Final = 6


@dataclass(frozen=True)
class Offer:
    """What the relation `certificates` gives to this unit."""

    leaf: Leaf | None
    reason: str = ""  # Why there is no leaf, in one line.


@dataclass(frozen=True)
class Choice:
    """What a unit serves from now on, None if there is nothing; and whose certificate it wants."""

    leaf: Leaf | None
    issuer: str

    @property
    def waits(self) -> bool:
        """Whether the unit does not serve yet what it wants to."""
        return bool(self.issuer) and (self.leaf is None or self.leaf.issuer != self.issuer)


@dataclass(frozen=True)
class Issuers:
    """What a unit knew when the event began, and what follows from it. Certificates are PEM.

    Attributes:
        unit: this unit.
        published: the issuers of each unit that has published some.
        silent: whether a unit has published none. It serves what the authority has signed.
        trusted: what the leader has noted. None until it has noted anything: no configuration
            exists then.
        authority: the application's own, if it is known.
        served: what this unit serves; its fields may be empty.
        wants: what it wants to serve: a leaf, or the issuer of one to be signed, or nothing.
    """

    unit: str
    published: Mapping[str, frozenset[str]]
    silent: bool
    trusted: frozenset[str] | None
    authority: Authority | None
    served: Leaf
    wants: Leaf | str

    def needed(self) -> frozenset[str]:
        """Return the issuers that some unit needs, as far as the leader knows."""
        issuers = frozenset[str]().union(*self.published.values()) | {self._wanted}
        if self.silent:  # Unknown is not unneeded.
            issuers |= {self._own} | (self.trusted or frozenset())
        return issuers - {""}

    def bundle(self) -> tuple[str, ...]:
        """Return the certificates of the caBundle, in a stable order."""
        return tuple(sorted(self.needed() | (self.trusted or frozenset())))

    def choose(self, applied: Iterable[str], names: tuple[str, ...], now: datetime) -> Choice:
        """Return what this unit serves from now on; `applied` is the caBundle if it applied one."""
        if self.wants == self.served:
            return Choice(self.served, self.served.issuer)
        trusted = frozenset(applied) | ({self._own} if self.trusted is None else self.trusted)
        # The next leader knows only what is published.
        known = self.published.get(self.unit, frozenset({self._own}))
        if self._wanted and self._wanted in trusted and self._wanted in known:
            if isinstance(self.wants, Leaf):
                return Choice(self.wants, self._wanted)
            if self.authority:
                return Choice(certificates.issue(self.authority, names), self._wanted)
        valid = certificates.is_valid(self.served, names, now)
        return Choice(self.served if valid else None, self._wanted)

    def next_event_changes(self, choice: Choice, *, leader: bool) -> bool:
        """Tell whether the unit can go on in another event, which Juju does not send by itself."""
        return choice.waits and (leader or choice.issuer in (self.trusted or ()))

    @property
    def _own(self) -> str:
        return self.authority.certificate if self.authority else ""

    @property
    def _wanted(self) -> str:
        return self.wants.issuer if isinstance(self.wants, Leaf) else self.wants


def observe(
    model: ops.Model,
    authority: Authority | None,
    served: Leaf,
    offer: Offer | None,
    *,
    names: tuple[str, ...],
    now: datetime,
) -> Issuers:
    """Read the peer relation.

    Args:
        model: where to read it.
        authority: the application's own, if it is known.
        served: what the unit serves.
        offer: what the relation `certificates` gives, None without it.
        names: of the Service.
        now: the time.
    """
    texts: dict[str, str] = {}
    noted = ""
    if relation := model.get_relation(PEERS):
        texts = {
            unit.name: relation.data[unit].get(_ISSUERS, "")
            for unit in (model.unit, *relation.units)
        }
        noted = relation.data[model.app].get(_TRUSTED, "")
    return Issuers(
        unit=model.unit.name,
        published={name: _parse(text) for name, text in texts.items() if text},
        silent=not texts or not all(texts.values()),
        trusted=_parse(noted) if noted else None,
        authority=authority,
        served=served,
        wants=wanted(offer, served, authority, names, now),
    )


def wanted(
    offer: Offer | None,
    served: Leaf,
    authority: Authority | None,
    names: tuple[str, ...],
    now: datetime,
) -> Leaf | str:
    """Return what a unit wants to serve: a leaf, or the issuer of one to be signed, or nothing.

    Without a usable offer, the unit goes on with what the provider issued earlier, until shortly
    before its end. After that it is the authority's turn, as without the relation.
    """
    if offer and offer.leaf:
        return offer.leaf
    if authority and certificates.usable(served, authority, names, now):
        return served
    valid = certificates.is_valid(served, names, now)
    if authority is None:
        return served if valid else ""
    provided = offer is not None and served.issuer != authority.certificate
    if valid and provided and certificates.lasts(served, now):
        return served
    return authority.certificate


def note_trusted(model: ops.Model, issuers: Issuers, *, applied: bool) -> None:
    """Note which issuers units may use, if the caBundle was `applied`; leader only."""
    relation, needed = model.get_relation(PEERS), issuers.needed()
    if applied and relation and needed and needed != issuers.trusted:
        write(relation, model.app, {_TRUSTED: _text(needed)})


def publish(
    model: ops.Model, issuers: Issuers, choice: Choice, status: ProcessStatus | None
) -> None:
    """Publish the issuers that this unit needs from now on.

    Until the workload's `status` says that it serves the choice, what was published stays.
    """
    relation = model.get_relation(PEERS)
    before = issuers.published.get(issuers.unit, frozenset())
    needs = frozenset({choice.issuer, choice.leaf.issuer if choice.leaf else ""})
    if not (choice.leaf and status and status.certificate == choice.leaf.fingerprint):
        needs |= {issuers.served.issuer, *before}
    needs -= {""}
    if relation and needs and needs != before and len(needs) <= _MOST:
        write(relation, model.unit, {_ISSUERS: _text(needs)})


def _parse(text: str) -> frozenset[str]:
    return frozenset(certificates.parse_bundle(text))


def _text(issuers: Iterable[str]) -> str:
    return "\n".join(sorted(issuers)) + "\n"
