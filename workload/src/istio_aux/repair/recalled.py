"""What earlier leaders left in the Lease about controllers that this process has not looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from istio_aux.core import rollout
from istio_aux.core.election import FAILED, Replaced
from istio_aux.core.moment import Clock
from istio_aux.core.rollout import Failure, RolloutLimits


class Recalled:
    """Failures and replaced pods, by the key of the `PodOwner`. Both are bounded."""

    def __init__(self, limits: RolloutLimits, clock: Clock) -> None:
        self._limits, self._now = limits, clock
        self._failures: dict[str, Failure] = {}
        self._replaced: dict[str, Replaced] = {}
        self._read = 0.0  # When `_replaced` was read, by the monotonic clock.

    def __contains__(self, key: str) -> bool:
        return key in self._failures or key in self._replaced

    def update(self, failed: Mapping[str, datetime], replaced: Mapping[str, Replaced]) -> None:
        """Take what the Lease says now.

        What is ``replaced`` is a state, so the last one counts. A failure is kept for its time: a
        leader that knows of it may be unable to say so.
        """
        now = self._now()
        for key, created in failed.items():
            failure, known = rollout.recalled(created, now, self._limits), self._failures.get(key)
            if known is None or known.created < failure.created:
                self._failures[key] = failure
        newest = sorted(self.failures.items(), key=lambda item: (item[1].created, item[0]))
        self._failures = dict(newest[-FAILED:])
        self._replaced, self._read = dict(replaced), now.monotonic

    def take(self, key: str) -> Iterator[Failure | Replaced]:
        """Yield what is known of a controller, and forget it."""
        if key in self:
            found = self.failures.get(key), self.replaced.get(key)
            self._failures.pop(key, None)
            self._replaced.pop(key, None)
            yield from filter(None, found)

    @property
    def failures(self) -> dict[str, Failure]:
        """The restarts that did not help, if that is not too long ago."""
        now = self._now().monotonic
        return {key: failure for key, failure in self._failures.items() if now < failure.until}

    @property
    def replaced(self) -> dict[str, Replaced]:
        """The pods that were being replaced, if that is not too long ago."""
        late = self._now().monotonic >= self._read + self._limits.unreplaced
        return {} if late else dict(self._replaced)
