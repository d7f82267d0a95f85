"""The time of everything, chance, what went wrong, and the story that is told about it.

One heap has all that will happen outside the units, by time and then by order. The world lets the
earliest happen, then each unit do what it can do at that moment. Nothing runs at the same time, and
chance comes from the seed alone, a stream for each purpose: to switch one fault off leaves the
others as they are.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from simulation.unit import Unit

START = 1_790_000_000.0
"""Seconds since 1970 at the beginning of each world, by the API server's clock."""


class Violation(NamedTuple):
    """A property that did not hold: ``kind`` is its name, ``text`` what happened."""

    kind: str
    text: str
    at: float

    def __str__(self) -> str:
        return f"{self.at:.1f} s {self.kind}: {self.text}"


class World:
    """The clock, the dice and the story."""

    def __init__(self, seed: int, faults: frozenset[str], *, trace: bool = False) -> None:
        self.seed, self.faults = seed, faults
        self.now = 0.0
        self.runners: list[Unit] = []
        self.violations: list[Violation] = []
        self.story: list[str] | None = [] if trace else None
        self.calm = False  # Whether faults have stopped.
        self._due: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._dice: dict[str, Random] = {}

    def dice(self, purpose: str) -> Random:
        found = self._dice.get(purpose)
        if found is None:
            found = self._dice[purpose] = Random(f"{self.seed} {purpose}")
        return found

    def happens(self, fault: str, chance: float) -> bool:
        """Whether a fault happens now that happens with this ``chance`` while faults are on."""
        return fault in self.faults and not self.calm and self.dice(fault).random() < chance

    def at(self, when: float, do: Callable[..., None], *args: Any) -> None:
        """Let something happen at a time, not before now."""
        self._count += 1
        heapq.heappush(self._due, (max(when, self.now), self._count, do, args))

    def after(self, seconds: float, do: Callable[..., None], *args: Any) -> None:
        self.at(self.now + seconds, do, *args)

    def run(self, end: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass to ``end``, or until something is true; returns whether it is."""
        due, runners, check = self._due, self.runners, self.now
        while True:
            then = end
            for runner in runners:
                when = runner.next()
                if when is not None and when <= self.now:
                    runner.turn()
                    when = runner.next()
                if when is not None and when < then:
                    then = when
            if self.now >= check:
                if until():
                    return True
                check = self.now + 1.0
            if due and due[0][0] < then:
                then = due[0][0]
            if then >= end:
                self.now = end
                return until()
            self.now = max(self.now, then)
            if due and due[0][0] <= self.now:
                _, _, do, args = heapq.heappop(due)
                do(*args)

    def tell(self, text: str, *args: object) -> None:
        """Add a sentence to the story, if somebody reads it."""
        if self.story is not None:
            self.story.append(f"{self.now:8.2f} s  {text.format(*args) if args else text}")

    def violate(self, kind: str, text: str) -> None:
        self.violations.append(Violation(kind, text, self.now))
        self.tell("VIOLATION: " + kind + ": " + text.replace("{", "{{").replace("}", "}}"))

    @property
    def wall(self) -> float:
        """Seconds since 1970 by the API server's clock."""
        return START + self.now

    def time(self, seconds: float = 0.0) -> str:
        """A metav1.Time, so many seconds from now."""
        return datetime.fromtimestamp(self.wall + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
