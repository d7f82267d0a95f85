"""When a ServiceAccount token is to be replaced: pure, by what the token says about itself."""

from __future__ import annotations

import base64
import json
from datetime import datetime
from typing import Any


def is_due(token: str, account_uid: str, now: datetime) -> bool:
    """Tell whether `token` is to be replaced.

    It is when it is none, when it belongs to another ServiceAccount than the one with
    `account_uid` (the account was deleted and made anew, which voids its tokens), or when more
    than half of its life is used up. The signature is not checked: that is the API server's part.
    """
    try:
        payload = token.split(".")[1]
        claims: dict[str, Any] = json.loads(
            base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))
        )
        uid, issued, expires = (
            claims["kubernetes.io"]["serviceaccount"]["uid"],
            float(claims["iat"]),
            float(claims["exp"]),
        )
    except (IndexError, KeyError, TypeError, ValueError):  # It is not a token of a ServiceAccount.
        return True
    return uid != account_uid or now.timestamp() > (issued + expires) / 2
