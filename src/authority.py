"""Where the certificate authority is kept: a Juju secret of the application, found by its label."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import ops

import certificates
from certificates import Authority
from relations import peers

_LABEL: Final = "certificate-authority"


def read(model: ops.Model, *, leader: bool) -> Authority | None:
    """Return the authority, None while the leader has not made it or not told of it."""
    try:
        if leader:
            secret = model.get_secret(label=_LABEL)
        elif secret_id := peers.authority_secret_id(model):
            secret = model.get_secret(id=secret_id)
        else:
            return None
        # Always the newest revision: all units have to follow a new authority.
        return Authority.from_secret(secret.get_content(refresh=True))
    except ops.SecretNotFoundError:
        return None


def ensure(model: ops.Model, present: Authority | None, now: datetime) -> Authority:
    """Return `present` or what replaces it, kept and told to the other units; leader only."""
    app = model.app
    if present is None:
        authority = certificates.make_authority(app.name, model.name)
        secret = app.add_secret(authority.to_secret(), label=_LABEL)
    else:
        authority = present
        secret = model.get_secret(label=_LABEL)
        if certificates.is_due(present.certificate, now):
            authority = certificates.make_authority(app.name, model.name, replaces=present)
            secret.set_content(authority.to_secret())
    peers.publish_authority_secret_id(model, secret.id or secret.get_info().id)
    return authority
