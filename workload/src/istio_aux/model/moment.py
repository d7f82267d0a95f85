"""The present, by the two clocks of a process.

Durations are measured by the monotonic clock. The wall clock may step, so it is only shown, stored,
and compared with times that others have written.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple


class Moment(NamedTuple):
    """A point in time: seconds of the monotonic clock, and seconds since 1970."""

    monotonic: float
    wall: float

    @property
    def date(self) -> datetime:
        """The wall clock's date, in UTC."""
        return datetime.fromtimestamp(self.wall, UTC)


Clock = Callable[[], Moment]
"""Returns the present. Its monotonic clock is the running event loop's, which timeouts use."""
