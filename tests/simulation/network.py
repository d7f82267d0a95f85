"""What becomes of requests between the units and the API server, by chance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from istio_aux.kube.errors import ApiError

from simulation.world import World

if TYPE_CHECKING:
    from simulation.client import Request

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
