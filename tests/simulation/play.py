"""Plays one seed: some minutes with faults, and some without, after which all must be done."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass

from simulation import faults
from simulation.cluster import Cluster
from simulation.properties import BOUND, GIVEN_UP, GIVEN_UP_BOUND
from simulation.world import Violation, World

_PRODUCT = logging.getLogger("istio_aux")


@dataclass(frozen=True)
class Result:
    """What became of a seed."""

    seed: int
    faults: frozenset[str]
    violations: tuple[Violation, ...]
    story: tuple[str, ...]
    seconds: float  # Simulated.
    writes: int

    @property
    def kinds(self) -> frozenset[str]:
        """The properties that did not hold."""
        return frozenset(violation.kind for violation in self.violations)


class _Listener(logging.Handler):
    """Puts what the product logs into the story."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._cluster = cluster

    def emit(self, record: logging.LogRecord) -> None:
        event, cluster = getattr(record, "event", ""), self._cluster
        if event == "internal-error":
            error = record.exc_info[1] if record.exc_info else None
            cluster.logged.append(f"{record.getMessage()}: {error!r}")
        if cluster.world.story is not None and (unit := cluster.acting):
            reason = getattr(record, "reason", "")
            text = f"{record.getMessage()} {event} {reason}".replace("{", "{{").replace("}", "}}")
            cluster.world.tell(f"    {unit} says: {text}")


def play(
    seed: int, *, off: frozenset[str] = frozenset(), trace: bool = False, first: bool = True
) -> Result:
    """Play a seed, with some of its faults ``off``; by default only to the ``first`` violation."""
    random.seed(seed)
    world = World(seed, faults.choose(seed) - off, trace=trace)
    dice = world.dice("scenario")
    cluster = Cluster(world, units=dice.choice((1, 2, 2, 2, 3)))
    listener = _Listener(cluster)
    level = _PRODUCT.level
    _PRODUCT.addHandler(listener)
    _PRODUCT.setLevel(logging.INFO if trace else logging.ERROR)
    _PRODUCT.propagate = False
    try:
        _play(cluster, dice.uniform(60, 150), first=first)
    finally:
        for unit in cluster.units:
            if unit.process:
                unit.process.end()
        _PRODUCT.removeHandler(listener)
        _PRODUCT.setLevel(level)
        _PRODUCT.propagate = True
    return Result(
        seed, world.faults, tuple(world.violations), tuple(world.story or ()), world.now,
        cluster.judge.writes,
    )  # fmt: skip


def _play(cluster: Cluster, window: float, *, first: bool) -> None:
    world, judge = cluster.world, cluster.judge

    def go_on(seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass; whether to go on then."""
        world.run(world.now + seconds, lambda: (first and bool(world.violations)) or until())
        return not (first and world.violations)

    def done() -> bool:
        return not judge.unfinished()

    _begin(cluster, window)
    if not go_on(window):
        return
    cluster.calm_down()
    if not go_on(BOUND, done):
        return
    if all(kind == GIVEN_UP for kind, _ in judge.unfinished()):
        go_on(GIVEN_UP_BOUND - BOUND, done)
    judge.errors()
    for kind, text in judge.unfinished():
        world.violate(kind, text)


def _begin(cluster: Cluster, window: float) -> None:
    """Start everything, and plan what will happen."""
    world, dice = cluster.world, cluster.world.dice("start")
    faults.populate(cluster)
    for unit in cluster.units:
        world.at(dice.uniform(0.0, 4.0), unit.start)
    world.at(dice.choice((0.1, 0.1, dice.uniform(4, 30))), cluster.install_istio)
    faults.begin(cluster, window)
    faults.grow(cluster, window)


def shrink(seed: int, kind: str) -> frozenset[str]:
    """Return faults of a seed with which it still breaks the property ``kind``, and no fewer.

    Each fault has its own chance, so what is left happens as before, as far as it can.
    """
    off = frozenset[str]()
    for fault in sorted(faults.choose(seed)):
        if kind in play(seed, off=off | {fault}).kinds:
            off |= {fault}
    return faults.choose(seed) - off
