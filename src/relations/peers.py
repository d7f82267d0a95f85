"""The peer relation: where the leader tells the other units which secret holds the authority.

An application's secret can be found by its label only by the leader; the other units read it by
its id.
"""

from __future__ import annotations

from typing import Final

import ops

ENDPOINT: Final = "peers"
_SECRET_ID: Final = "authority-secret-id"  # noqa: S105  the name of a key, not a secret


def authority_secret_id(model: ops.Model) -> str | None:
    """Return the id of the secret with the authority, None while the leader has not told it."""
    relation = model.get_relation(ENDPOINT)
    return relation.data[relation.app].get(_SECRET_ID) if relation else None


def publish_authority_secret_id(model: ops.Model, secret_id: str) -> None:
    """Tell the other units; only the leader may."""
    if relation := model.get_relation(ENDPOINT):
        relation.data[model.app][_SECRET_ID] = secret_id
