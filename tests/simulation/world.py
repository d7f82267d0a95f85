"""The time of everything, chance, what went wrong, and the story that is told about it.

One heap has all that will happen outside the units, by time and then by order. The world lets the
earliest happen, then each unit do what it can do at that moment. Nothing runs at the same time, and
chance comes from the seed alone, a stream for each purpose: to switch one fault off leaves the
others as they are. By chance, too, is what becomes of requests between units and API server.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from istio_aux.kube.errors import ApiError

if TYPE_CHECKING:
    from simulation.client import Request
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


Lost = Literal["", "unconnected", "before", "after", "reset"]

Verb = tuple[str, str, str]
"""A method, a resource, and a part of it."""

_ERRORS = (
    (500, "InternalError", "etcdserver: request timed out"),
    (503, "ServiceUnavailable", "apiserver is shutting down"),
    (504, "Timeout", "request did not complete within the allotted timeout"),
)


class Refusal(NamedTuple):
    """An error that the API server answers, ``after`` it did what was asked, or instead."""

    error: ApiError
    after: bool = False


class Network:
    """Delays, losses and refusals. A partition cuts one unit off, and no other."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._slow_until = 0.0
        self._ways = world.dice("ways")
        self.forbidden: set[Verb] = set()

    def slow(self, seconds: float) -> None:
        self._slow_until = self._world.now + seconds
        self._world.tell("the API server is slow for {:.0f} s", seconds)

    def way(self, request: Request) -> float:
        """Seconds until a request arrives; a proxy on the way may have kept it."""
        late = request.writes and request.to.part not in {"exec", "portforward"}
        if late and self._world.happens("late requests", 0.04):
            seconds = self._world.dice("late requests").uniform(3, 40)
            self._world.tell("{} arrives after {:.1f} s", request, seconds)
            if self._world.dice("late requests").random() < 0.1:
                self._world.after(1.0, request.process.unit.crash)
            return seconds
        return self.latency()

    def latency(self) -> float:
        """Seconds of one way."""
        if self._world.now < self._slow_until:
            return self._ways.choice((0.01, 0.3, 2.0, 6.0))
        if self._world.happens("slow answers", 0.05):
            return self._world.dice("slow answers").uniform(0.5, 8.0)
        return 0.001 + 0.004 * self._ways.random()

    def lag(self) -> float:
        """Seconds from a change to its line in a watch."""
        if self._world.happens("watch lag", 0.1):
            dice = self._world.dice("watch lag")
            return dice.uniform(0.1, 40.0 if dice.random() < 0.02 else 8.0)
        return 0.002

    def lost(self, request: Request) -> Lost:
        """What is lost of a request."""
        world = self._world
        if request.process.unit.partitioned:
            return "unconnected" if self._ways.random() < 0.5 else "before"
        if world.happens("lost requests", 0.02):
            found = world.dice("lost requests").choice(("unconnected", "before"))
            world.tell("{} never arrives", request)
            return found
        if world.happens("lost answers", 0.03):
            found = world.dice("lost answers").choice(("after", "reset", "reset"))
            world.tell("the answer to {} is lost", request)
            return found
        return ""

    def refusal(self, request: Request) -> Refusal | None:
        world, to = self._world, request.to
        if (request.method, to.resource, to.part) in self.forbidden:
            error = ApiError(403, f"{to.resource} is forbidden", reason="Forbidden")
        elif request.path == request.process.unit.deaf:
            error = ApiError(500, "the watch cache is not ready", reason="InternalError")
        elif world.happens("throttling", 0.02):
            after = world.dice("throttling").choice((1.0, 1.0, 3.0, 8.0, None))
            error = ApiError(429, "too many requests", reason="TooManyRequests", retry_after=after)
        elif world.happens("server errors", 0.02):
            code, reason, text = world.dice("server errors").choice(_ERRORS)
            error = ApiError(code, text, reason=reason)
        elif request.writes and world.happens("late errors", 0.05):
            world.tell("{} is performed, and answered with an error", request)
            code, reason, text = world.dice("late errors").choice(_ERRORS)
            return Refusal(ApiError(code, text, reason=reason), after=True)
        else:
            return None
        world.tell("{} is answered with {}", request, error)
        return Refusal(error)
