"""The relation `certificates` (interface `tls-certificates`): each unit's certificate of a PKI.

The library asks for the certificate, keeps the unit's key in a Juju secret, and renews both. Bad
data of a provider, or a failing secret, makes it raise errors, which would fail the hook until the
other side changes. Here such an error becomes the reason in the status, and the next event tries
again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Final

import ops
from charmlibs.interfaces.tls_certificates import (
    CertificateRequestAttributes,
    TLSCertificatesRequiresV4,
)

import certificates
import cluster
from issuers import Offer
from relations import active, shown

ENDPOINT: Final = "certificates"
# Characters of a provider's databag that is read.
_LONGEST_DATABAG: Final = 2**20

logger = logging.getLogger(__name__)


class Requirer(TLSCertificatesRequiresV4):
    """The library's requirer in the mode UNIT, whose handlers end no hook in an error."""

    def __init__(self, charm: ops.CharmBase) -> None:
        self._failure = ""
        self._names = certificates.service_names(charm.app.name, cluster.namespace())
        # X.520 allows 64 characters in a common name; the longer names are alternative names.
        self._request = CertificateRequestAttributes(
            common_name=self._names[0][:64], sans_dns=frozenset(self._names)
        )
        super().__init__(charm, ENDPOINT, [self._request], key_algorithm="ecdsa")

    def offer(self, now: datetime) -> Offer | None:
        """Return what the provider gives to this unit, None without the relation."""
        relations = active(self.model, ENDPOINT)
        if not relations:
            return None
        offers: list[Offer] = []
        if not self._failure:
            self._attempt(lambda: offers.append(self._offer(relations[-1].app.name, now)))
        return offers[0] if offers else Offer(None, self._failure)

    def _offer(self, provider: str, now: datetime) -> Offer:
        given, key = self.get_assigned_certificate(self._request)
        if given and given.revoked:
            return Offer(None, f"{provider} has revoked the certificate")
        if given and key:
            # The issuer is mostly `ca`. Of a chain that is longer, it is the second certificate.
            chain = [one.raw for one in (given.ca, *given.chain) if one != given.certificate]
            leaf = certificates.accept(given.certificate.raw, chain, key.raw, self._names, now)
            if isinstance(leaf, str):
                return Offer(None, f"the certificate of {provider} is refused: {leaf}")
            return Offer(leaf)
        for request in self.get_csrs_from_requirer_relation_data():
            if denied := self.get_request_error(request.certificate_signing_request):
                why = f"{denied.error.name}: {denied.error.message}"
                return Offer(None, f"{provider} denies the certificate: {shown(why)}")
        return Offer(None, f"waiting for the certificate of {provider}")

    def _configure(self, _: ops.EventBase | None = None) -> None:
        self._attempt(super()._configure)

    def _on_relation_broken(self, event: ops.RelationBrokenEvent) -> None:
        self._attempt(lambda: super(Requirer, self)._on_relation_broken(event))

    def _on_secret_expired(self, event: ops.SecretExpiredEvent) -> None:
        self._attempt(lambda: super(Requirer, self)._on_secret_expired(event))

    def _on_secret_remove(self, event: ops.SecretRemoveEvent) -> None:
        """Leave it to `certificates.remove_revision`, which removes a revision once."""

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            self._check_size()
            work()
        # The library parses what the provider writes, and raises errors of several libraries. An
        # exception would put this unit into an error state that only the provider can end.
        except Exception as error:
            self._failure = f"the certificate cannot be read: {shown(str(error) or repr(error))}"
            logger.warning("%s: %s", ENDPOINT, self._failure)
        else:
            self._failure = ""

    def _check_size(self) -> None:
        databags = [each.data[each.app] for each in active(self.model, ENDPOINT)]
        size = sum(len(value) for databag in databags for value in databag.values())
        if size > _LONGEST_DATABAG:
            raise ValueError(f"{size} characters: expected at most {_LONGEST_DATABAG}")
