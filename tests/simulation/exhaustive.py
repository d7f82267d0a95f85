"""Every order of events around the quit of one pod.

A breadth-first search over the states of `onepod`: the truth, what the watch has delivered of it,
the task of the unit with its request under way, and who leads. The decisions are the product's.
Each state is visited once. One that breaks a property is told as the shortest story to it.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from istio_aux.model import sidecars
from istio_aux.model.moment import Moment
from istio_aux.model.pod import PROXY
from istio_aux.model.policy import DeadProxy, QuitMode, QuitPolicy

from simulation.onepod import RUNGS, Life, Violation, World, begin, settled, steps


class Found(NamedTuple):
    """What a search has visited, and the story of what breaks a property, if anything does."""

    states: int
    broken: str = ""
    story: tuple[str, ...] = ()


def search(life: Life) -> Found:
    """Visit every state, and follow from each what happens if nothing goes wrong any more."""
    first = begin(life)
    came_from: dict[object, tuple[object, str]] = {identity(first): (None, "")}
    calm: dict[object, object] = {}
    waiting_worlds = deque([first])

    def story(key: object) -> tuple[str, ...]:
        told = list[str]()
        while key is not None:
            key, what = came_from[key]
            told.append(what)
        return tuple(filter(None, reversed(told)))

    while waiting_worlds:
        world = waiting_worlds.popleft()
        key, fair = identity(world), None
        try:
            for step in steps(world):
                after = identity(step.world)
                if after not in came_from:
                    came_from[after] = key, step.what
                    waiting_worlds.append(step.world)
                if step.fair and fair is None:
                    fair = after
            if fair is None:
                settled(world)
        except Violation as error:
            return Found(len(came_from), str(error), story(key))
        calm[key] = fair
    if (trapped := endless(calm)) is not None:
        return Found(len(came_from), "it never ends although nothing goes wrong", story(trapped))
    return Found(len(came_from))


def endless(calm: dict[object, object]) -> object | None:
    """A state from which fair steps never end; None: there is none."""
    good = set[object]()
    for start in calm:
        path = dict[object, None]()
        key: object | None = start
        while key is not None and key not in good:
            if key in path:
                return key
            path[key] = None
            key = calm[key]
        good.update(path)
    return None


def identity(world: World) -> object:
    """What the future of a world depends on. Times count from now, and old ones are alike."""
    pod, task = world.pod, world.pod.task if world.pod else None
    known = pod and (
        pod.decision.action, pod.until is None and pod.decision.reason, pod.settled, pod.target,
        pod.decision.blocked_by,
        pod.unwatched, pod.version - world.truth.version,
        _since(pod.until, world.now, 0),
        # A proxy without a grace period is told to exit at once.
        pod.decision.action != "quit" and pod.asks_for and _since(pod.first_seen, world.now, 3),
        _since(pod.version_seen, world.now, 30) == 30,
    )  # fmt: skip
    done = task and (
        task.due, task.told, task.target, task.exit and task.exit.outcome,
        task.attempts > 0, task.attempts % RUNGS,
    )  # fmt: skip
    flags = world.leading, world.selected, world.stopping
    return _numbered(world), flags, repr(world.action), known, done


def _numbered(world: World) -> object:
    """The truths, with versions that count from the newest one."""
    newest = world.truth.version
    truths = (world.truth, *world.unseen, *filter(None, [world.basis]))
    return tuple((*truth[:-1], truth.version - newest) for truth in truths), len(world.unseen)


def _since(time: Moment | float | None, now: float, most: float) -> float | None:
    """Seconds from ``time``, at most ``most``: longer ago is all the same."""
    if time is None:
        return None
    return min(now - (time.monotonic if isinstance(time, Moment) else time), most)


_JOB = ("batch/v1", "Job")
LIVES = (
    Life("a payload that ends", stops=True),
    Life("a payload that is started again after a failure", restart="OnFailure", restarts=1),
    Life("two payload containers", ("main", "logger", PROXY), deletes=False),
    Life("a grace period", policy=QuitPolicy(grace=2.0)),
    Life("a container that does not count", ("main", "logger", PROXY), deletes=False,
         policy=QuitPolicy(sidecars=sidecars.parse("logger=ignore")), kept=frozenset({"logger"})),
    Life("a proxy that crashes", crashes=True, owner=_JOB),
    Life("a proxy that crashes, and its pod is deleted", crashes=True, owner=_JOB,
         policy=QuitPolicy(dead_proxy=DeadProxy.DELETE)),
    Life("a proxy that crashes and is started again", restart="OnFailure", restarts=1,
         crashes=True, deletes=False),
    Life("another sidecar goes first", ("main", "sql", PROXY), deletes=False,
         policy=QuitPolicy(sidecars=sidecars.parse("sql=9091/quit"))),
    Life("a dry run", mode=QuitMode.DRY_RUN),
    Life("a payload that is held", (PROXY, "main"), held=True),
)  # fmt: skip
