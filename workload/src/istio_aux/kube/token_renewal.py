"""Renews the bearer token of the process's own ServiceAccount, in the file that a kubeconfig names.

The first token is given. After half its life, the process uses it to request the next one
(TokenRequest API), and writes that to the same file, where it is found after a restart.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec

from istio_aux.kube import actions
from istio_aux.kube.access import Access
from istio_aux.kube.client import Client
from istio_aux.kube.errors import AccessError, Backoff, KubeError, asked

_log = logging.getLogger(__name__)

LIFE = 24 * 60 * 60
"""Seconds that are asked for. The API server may grant less, and the charm's policy no more."""

LOOK = 60.0
"""Seconds between two looks at the token: others may replace it, and clocks may be set. While a
clock is wrong by half a token's life, each look costs a request."""

RETRY = (5.0, 300.0)  # Seconds until a renewal that failed is tried again, at first and at most.

# To the end of the year 9999: Python's `datetime` has no later time.
_Seconds = Annotated[float, msgspec.Meta(ge=0, lt=253_402_300_800)]
_ACCOUNT = re.compile(r"system:serviceaccount:([^:]+):([^:]+)")


class TokenClaims(msgspec.Struct, frozen=True):
    """What a ServiceAccount's token says of itself; the times are seconds since 1970."""

    sub: str
    iat: _Seconds
    exp: _Seconds

    @property
    def account(self) -> tuple[str, str]:
        """Namespace and name of the ServiceAccount; `AccessError` if the token is of none."""
        if (match := _ACCOUNT.fullmatch(self.sub)) is None:
            raise AccessError(f'token: sub: "{self.sub[:80]}": expected that of a ServiceAccount')
        return match[1], match[2]

    @property
    def due(self) -> float:
        """When the token is to be renewed: after half its life."""
        return (self.iat + self.exp) / 2


def read_claims(token: str) -> TokenClaims:
    """Decode the claims of a token, without verifying its signature.

    Raises:
        AccessError: it is not the token of a ServiceAccount.
    """
    try:
        payload = token.split(".")[1]
        text = base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))
        return msgspec.json.decode(text, type=TokenClaims)
    except (IndexError, ValueError) as error:
        raise AccessError("token: expected a JSON Web Token of a ServiceAccount") from error


class TokenRenewal:
    """Renews the token, as an endless task.

    Attributes:
        expires: when the present token expires; None: not known.
        trouble: why it is not renewed although it is due, in one line; empty if all is well.
    """

    def __init__(
        self,
        client: Client,
        access: Access,
        *,
        counted: Callable[[bool], None] = lambda _renewed: None,
        clock: Callable[[], float] = time.time,
        look: float = LOOK,
        retry: tuple[float, float] = RETRY,
    ) -> None:
        """Prepare to renew the token of ``access``; ``counted`` is called with each result."""
        self.expires: datetime | None = None
        self.trouble = ""
        self._client, self._access, self._counted, self._clock = client, access, counted, clock
        self._look, self._backoff = look, Backoff(*retry)

    async def run(self) -> None:
        """Keep the token good, until cancelled."""
        while True:
            pause = await self._renew_if_due()
            await asyncio.sleep(pause)

    async def _renew_if_due(self) -> float:
        """Return the seconds until the next look."""
        try:
            access = await self._access.current()
            token = access.token() or ""
            claims = self._note(token)
            due = claims.due - self._clock()
            if due <= 0:
                await self._renew(access, token, claims)
                self._counted(True)
        except (KubeError, OSError) as error:
            self._counted(False)
            self._tell(str(error))
            return max(self._backoff.next(), asked(error))
        self._tell("")
        self._backoff.reset()
        return min(due, self._look) if due > 0 else self._look

    async def _renew(self, access: Access, old: str, claims: TokenClaims) -> None:
        if access.token_file is None:
            raise AccessError("token: the kubeconfig has no tokenFile to renew")
        token = await actions.request_token(self._client, *claims.account, seconds=LIFE)
        # Another one may have come meanwhile: the next look judges it.
        if access.token() == old:
            replace(access.token_file, token)
            expires = self._note(token).exp
            _log.info("token renewed", extra={"event": "token", "expires": _time(expires)})

    def _note(self, token: str) -> TokenClaims:
        claims = read_claims(token)
        self.expires = _time(claims.exp)
        return claims

    def _tell(self, why: str) -> None:
        # Log only changes: the API server may refuse for long.
        if why and why != self.trouble:
            facts = {"event": "token", "expires": self.expires}
            _log.warning("token not renewed: %s", why, extra=facts)
        self.trouble = why


def replace(file: Path, token: str) -> None:
    """Write ``token`` into ``file``, for its owner only. Readers see the old one or the new one."""
    new = file.with_name(f".{file.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as written:
        written.write(token)
    new.replace(file)


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
