"""The present, by the two clocks of a process, and the life of a token.

Durations are measured by the monotonic clock. The wall clock may step, so it is only shown, stored,
and compared with times that others have written.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, NamedTuple

import msgspec

from istio_aux.model.text import UNDECODABLE


class Moment(NamedTuple):
    """A point in time: seconds of the monotonic clock, and seconds since 1970."""

    monotonic: float
    wall: float

    @property
    def date(self) -> datetime:
        """The wall clock's date, in UTC."""
        return datetime.fromtimestamp(self.wall, UTC)


# Returns the present. Its monotonic clock is the running event loop's, which timeouts use.
Clock = Callable[[], Moment]

# Seconds up to the end of the year 9999, the last of Python's `datetime`.
Seconds = Annotated[float, msgspec.Meta(ge=0, lt=253_402_300_800)]


def in_utc(date: datetime) -> datetime:
    """The date in UTC; one that would leave the years 1 to 9999 keeps its hour."""
    try:
        return date.astimezone(UTC)
    except OverflowError:
        return date.replace(tzinfo=UTC)


def zoned(at: datetime | None) -> datetime | None:
    """A time without a zone, from a person's file, counts as UTC."""
    return at and at.replace(tzinfo=at.tzinfo or UTC)


class TokenLife(msgspec.Struct, frozen=True):
    """When a bearer token was issued, and when it expires, in seconds since 1970 (RFC 7519)."""

    iat: Seconds
    exp: Seconds


def token_life(token: str | None) -> TokenLife | None:
    """Read the life of a JSON Web Token, without verifying it; None if the token does not say."""
    try:
        claims = (token or "").split(".")[1]
        return msgspec.json.decode(
            base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)), type=TokenLife
        )
    except (IndexError, *UNDECODABLE):
        return None
