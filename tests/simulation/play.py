"""Plays one seed: some minutes with faults, some without, and then nothing must be left.

What a process still holds of pods that are gone is found by walking through its objects.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import MethodType
from typing import Any

import msgspec

from simulation import ambient, faults
from simulation.ambient import Ambient
from simulation.cluster import Cluster
from simulation.properties import (
    BOUND,
    CROWDED,
    GIVEN_UP,
    GIVEN_UP_BOUND,
    RELISTS,
)
from simulation.unit import Unit
from simulation.world import Violation, World

_UID = re.compile(r"uid-[0-9]+")
_HOLDERS = (dict, list, set, frozenset, tuple, deque, MethodType)
# A controller without pods is remembered for a while: it may have been scaled down.
_REMEMBERED = frozenset({"PodOwner", "Recalled", "Rollout"})
_TASKS = ("quit ", "restart ")


def left(unit: Unit) -> list[str]:
    """What should not be there once no pod is: tasks about pods, and places with their UIDs."""
    process = unit.process
    if process is None:
        return []
    there = {
        found.uid for objects in unit.cluster.server.objects.values() for found in objects.values()
    }
    names = sorted(task.get_name() for task in asyncio.all_tasks(process.loop))
    found = [f"task {name}" for name in names if name.startswith(_TASKS)]
    return found + sorted(set(_places(process.wiring, there)))


def _places(root: object, there: set[str]) -> Iterator[str]:
    seen: set[int] = set()
    todo: deque[tuple[str, Any]] = deque([("wiring", root)])
    while todo:
        path, value = todo.popleft()
        if isinstance(value, str):
            if _UID.fullmatch(value) and value not in there:
                yield f"{path}: {value}"
        elif id(value) not in seen and (isinstance(value, _HOLDERS) or _is_ours(type(value))):
            seen.add(id(value))
            within = f"{path}, {type(value).__name__}"
            # Some structs of the product are none that the collector knows.
            is_struct = isinstance(value, msgspec.Struct)
            held = msgspec.structs.astuple(value) if is_struct else gc.get_referents(value)
            todo += ((within, each) for each in held)


def _is_ours(kind: type) -> bool:
    return kind.__module__.startswith("istio_aux") and kind.__name__ not in _REMEMBERED


EMPTY = 200.0
"""Seconds after the last pod is gone in which it is forgotten. A silent watch is dead
after 70 s."""
READS = frozenset(
    {"reboots", "power cuts", "kubelet upgrades", "restored etcd", "defects", "tampered Lease"}
)
"""Faults after which a decision may rest on what only a read saw, or on none."""
_PRODUCT = logging.getLogger("istio_aux")


@dataclass(frozen=True)
class Result:
    """What became of a seed."""

    seed: int
    faults: frozenset[str]
    violations: tuple[Violation, ...]
    story: tuple[str, ...]
    seconds: float  # Simulated.
    counts: tuple[int, ...]  # Of writes, of requests to exit, of tolerated ones.

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset(violation.kind for violation in self.violations)


class _Listener(logging.Handler):
    """Puts what the product logs into the story."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._cluster = cluster

    def emit(self, record: logging.LogRecord) -> None:
        event, cluster = getattr(record, "event", ""), self._cluster
        if event == "lease" and cluster.acting and not record.__dict__["leader"]:
            cluster.judge.lapsed(cluster.acting, record.getMessage())
        if event == "internal-error":
            error = record.exc_info[1] if record.exc_info else None
            cluster.logged.append(f"{record.getMessage()}: {error!r}")
        if cluster.world.story is not None and (unit := cluster.acting):
            reason = getattr(record, "reason", "")
            text = f"{record.getMessage()} {event} {reason}".replace("{", "{{").replace("}", "}}")
            cluster.world.tell(f"    {unit} says: {text}")


def play(
    seed: int,
    *,
    only: frozenset[str] = frozenset(),
    off: frozenset[str] = frozenset(),
    trace: bool = False,
    first: bool = True,
    meshed: bool = False,
) -> Result:
    """Play a seed, ``meshed`` with an ambient mesh, by default only to the ``first`` violation.

    It has the faults that it chooses, or ``only`` some; those that are ``off`` do not happen.
    """
    random.seed(seed)
    chosen = (ambient.choose if meshed else faults.choose)(seed)
    world = World(seed, (only or chosen) - off, trace=trace)
    dice = world.dice("scenario")
    cluster = Cluster(world, units=dice.choice((1, 2, 2, 2, 3)))
    begin = _begin_ambient if meshed else _begin
    return run(cluster, begin, dice.uniform(60, 150) * (2 if meshed else 1), first=first)


def run(
    cluster: Cluster, begin: Callable[[Cluster, float], None], window: float, *, first: bool = True
) -> Result:
    """Play what ``begin`` plans for ``window`` seconds, and see that all is done afterwards."""
    world = cluster.world
    trace = world.story is not None
    listener = _Listener(cluster)
    level = _PRODUCT.level
    _PRODUCT.addHandler(listener)
    _PRODUCT.setLevel(logging.INFO if trace else logging.ERROR)
    _PRODUCT.getChild("kube.lease").setLevel(logging.INFO)
    _PRODUCT.propagate = False
    try:
        _play(cluster, begin, window, first=first)
    finally:
        for unit in cluster.units:
            if unit.process:
                unit.process.end()
        _PRODUCT.removeHandler(listener)
        _PRODUCT.setLevel(level)
        _PRODUCT.propagate = True
    judge = cluster.judge
    return Result(
        world.seed, world.faults, tuple(world.violations), tuple(world.story or ()), world.now,
        (judge.writes, judge.tells, judge.tolerated),
    )  # fmt: skip


def _play(
    cluster: Cluster, begin: Callable[[Cluster, float], None], window: float, *, first: bool
) -> None:
    world = cluster.world

    def go_on(seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass; whether to go on then."""
        world.run(world.now + seconds, lambda: (first and bool(world.violations)) or until())
        return not (first and world.violations)

    begin(cluster, window)
    if not go_on(window):
        return
    cluster.calm_down()
    if not _finish(cluster, go_on):
        return
    cluster.clear()
    go_on(120.0, lambda: not cluster.server.objects["pods"])
    go_on(EMPTY, lambda: int(world.now) % 10 == 0 and not _left(cluster))
    if _left(cluster) and go_on(RELISTS if world.faults & READS else 0.0):
        for what in _left(cluster):
            world.violate("something is kept", what)


def _finish(cluster: Cluster, go_on: Callable[..., bool]) -> bool:
    """Let everything be done that is to be done, in the time that it may take."""
    world, judge = cluster.world, cluster.judge

    def done() -> bool:
        return not judge.unfinished()

    if not go_on(BOUND, done):
        return False
    if world.faults & READS:
        go_on(RELISTS - BOUND, done)
    if all(kind == GIVEN_UP for kind, _ in judge.unfinished()):
        go_on(GIVEN_UP_BOUND - BOUND, done)
    if "defects" not in world.faults:
        judge.errors()
    for kind, text in judge.unfinished():
        world.violate(kind, text)
    return True


def _left(cluster: Cluster) -> list[str]:
    return [f"{unit}: {what}" for unit in cluster.units for what in left(unit)]


def _begin(cluster: Cluster, window: float) -> None:
    """Start everything, and plan what will happen."""
    world, dice = cluster.world, cluster.world.dice("start")
    faults.populate(cluster)
    for unit in cluster.units:
        world.at(dice.uniform(0.0, 4.0), unit.start)
    world.at(dice.choice((0.1, 0.1, dice.uniform(4, 30))), cluster.install_istio)
    faults.begin(cluster, window)
    faults.grow(cluster, window)
    if world.faults <= faults.QUIET:
        _watch_crowd(cluster, {})


def _begin_ambient(cluster: Cluster, window: float) -> None:
    """Start the units beside an ambient mesh, and plan what will happen."""
    world, dice = cluster.world, cluster.world.dice("start")
    cluster.ambient = Ambient(cluster)
    cluster.ambient.begin(window)
    for unit in cluster.units:
        world.at(dice.uniform(0.0, 4.0), unit.start)
    world.at(0.1, cluster.install_istio)
    faults.begin(cluster, window)


def _watch_crowd(cluster: Cluster, late: dict[str, float]) -> None:
    """While only nodes and agents are out of order, no pod waits for others for long."""
    world = cluster.world
    for box in cluster.nodes.sandboxes.values():
        proxy = box.proxy
        if box.finished is None or not proxy or proxy.state != "running" or box.plan.agent:
            continue
        well = not box.node.hung and box.node.well_since < box.finished
        if not well or world.now < box.finished + CROWDED or box.uid in late:
            continue
        late[box.uid] = world.now
        text = f"{box.name[1]} on {box.node.name} waits for {world.now - box.finished:.0f} s"
        world.violate("a healthy pod is delayed by others", text)
    if not world.calm:
        world.after(1.0, _watch_crowd, cluster, late)


def shrink(seed: int, kind: str) -> frozenset[str]:
    """Return faults of a seed with which it still breaks the property ``kind``, and no fewer.

    Each fault has its own chance, so what is left happens as before, as far as it can.
    """
    off = frozenset[str]()
    for fault in sorted(faults.choose(seed)):
        if kind in play(seed, off=off | {fault}).kinds:
            off |= {fault}
    return faults.choose(seed) - off
