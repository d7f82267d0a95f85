"""The relation `certificates` (interface `tls-certificates`): a certificate of a PKI."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import ops
from charmlibs.interfaces.tls_certificates import (
    CertificateRequestAttributes,
    TLSCertificatesRequiresV4,
)
from istio_aux.model.text import quoted

import cluster
from certificates import ENDPOINT, Offer, service_names, verified
from relations import active

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Requirer(TLSCertificatesRequiresV4):
    """Asks for the certificate, keeps the unit's key in a Juju secret, and renews both.

    Bad data of a provider, or a failing secret, makes the library raise errors, which would fail
    the hook until the other side changes. Here such an error becomes the reason.
    """

    def __init__(self, charm: ops.CharmBase) -> None:
        self._failure = ""
        names = service_names(charm.app.name, cluster.namespace())
        self._request = CertificateRequestAttributes(common_name=names[0], sans_dns=names)
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
            # The issuer is mostly `ca`. Of a chain that is longer, it is the second certificate.
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
