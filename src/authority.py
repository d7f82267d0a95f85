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


def choose(
    present: Authority | None, app: str, model: str, *, renew_at: datetime | None
) -> Authority:
    """Return the authority to use: `present`, or a new one when there is none or it got old.

    Args:
        present: the authority that is kept.
        app: name of the application.
        model: name of the model.
        renew_at: the time at which to judge its age, None to leave it as it is.
    """
    if present is None:
        return certificates.make_authority(app, model)
    if renew_at and certificates.is_due(present.certificate, renew_at):
        return certificates.make_authority(app, model, replaces=present)
    return present


def keep(model: ops.Model, present: Authority | None, authority: Authority) -> None:
    """Keep `authority` where `present` was, and tell the other units; leader only."""
    if present is None:
        secret = model.app.add_secret(authority.to_secret(), label=_LABEL)
    else:
        secret = model.get_secret(label=_LABEL)
        if authority != present:
            secret.set_content(authority.to_secret())
    peers.publish_authority_secret_id(model, secret.id or secret.get_info().id)
