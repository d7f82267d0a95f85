"""How long to wait after consecutive failures: ever longer, up to a bound, with jitter."""

from __future__ import annotations

import random


class Backoff:
    """Counts consecutive failures. A class because it remembers how many there were."""

    def __init__(self, first: float, longest: float) -> None:
        """Wait about ``first`` seconds after the first failure, never more than ``longest``."""
        self._first, self._longest = first, longest
        self._failures = 0

    def next(self) -> float:
        """Count a failure; returns the seconds to wait, between half the step and all of it."""
        step = min(self._first * 2 ** min(self._failures, 32), self._longest)
        self._failures += 1
        # Jitter keeps those who failed together from coming back together.
        return step * random.uniform(0.5, 1.0)  # noqa: S311  (spreads load, guards nothing)

    def reset(self) -> None:
        """Forget the failures: something succeeded."""
        self._failures = 0


def jittered(seconds: float, part: float = 0.1) -> float:
    """Return ``seconds``, more or less ``part`` of them: what began together drifts apart."""
    return seconds * random.uniform(1 - part, 1 + part)  # noqa: S311  (spreads load, guards nothing)
