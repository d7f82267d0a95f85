"""The restart of one controller's pods as a world of few states, with two units and one Lease.

The product decides (`repair.rollout`), and this file performs the actions as `repair.controller`
does. `exhaustive` visits every state: each request may be refused, lost, late, or answered to
nobody; a unit may die, or lose the Lease, at any moment; watches lag as they like.

Time is abstract: it passes by itself only when nothing else is left to happen, and ``waits`` times
for longer than the API server works on a request, and than a watch lags.

Not modelled: several controllers, slots, injectors that go, and budgets. A unit that does not lead
and knows of no restart sees what a list shows, at most ``LAG`` changes ago.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from istio_aux.model.election import Replaced
from istio_aux.model.moment import Moment
from istio_aux.repair.rollout import (
    IDLE,
    Replacement,
    Replica,
    Rollout,
    RolloutLimits,
    Sidecar,
)
from istio_aux.repair.rollout import Step as Decision

from simulation.onepod import EPOCH, Violation

REPLICAS, LAG = 3, 1
LIMITS = RolloutLimits(first_retry=1.0, last_retry=1.0)
LATE = 100.0  # Seconds: longer than `RolloutLimits.unconfirmed`, and shorter than its patience.

NEW, READY, ENDING = "new", "ready", "ending"


class Rolling(NamedTuple):
    """A controller whose pods have no sidecar, and how often what may happen."""

    name: str
    numbered: bool = False  # A StatefulSet, which makes a pod once its predecessor is gone.
    stubborn: bool = False  # Whether new pods get no sidecar either.
    deaths: int = 0  # Of units.
    moves: int = 0  # How often a leader loses the Lease, and lives.
    losses: int = 0  # How often a request, or its answer, is lost.
    drains: int = 0  # How many pods another client deletes.
    waits: int = 0  # How often time passes while something is under way.


class Pod(NamedTuple):
    """A pod as the API server has it; each change makes it another version."""

    uid: int  # Also when it was made: a second for each pod.
    slot: int
    sidecar: bool
    state: str = NEW
    deleted: int = 0

    @property
    def name(self) -> str:
        return f"pod-{self.slot}"


Pods = tuple[Pod, ...]


class Task(NamedTuple):
    """What the task of a unit does next about a pod; ``stage`` is the request under way."""

    uid: int
    begun: Replacement
    stage: str = "compare"  # Then `save`, `compare again` and `evict`.


class Left(NamedTuple):
    """What the Lease says for the next leader."""

    failed: float | None = None
    replaced: Replaced | None = None


_NOTHING = Left()


class Unit(NamedTuple):
    """One unit, and what it knows."""

    seen: Pods | None = None  # None: it has not listed yet.
    unseen: tuple[Pods, ...] = ()  # Later ones that the watch has not delivered, the oldest first.
    rollout: Rollout = IDLE
    active: bool = False
    announced: bool = True
    task: Task | None = None
    recalled: Left = Left()
    gone: tuple[tuple[str, float], ...] = ()  # Names of a StatefulSet, and since when.
    decision: Decision | None = None

    @property
    def idle(self) -> bool:
        """Whether it matters only as the one that may lead next."""
        return not self.active and self.task is None


class Step(NamedTuple):
    """What may happen next, and the world after it; ``fair``: it happens if nothing goes wrong."""

    what: str
    world: World
    fair: bool = False


class Evicting(NamedTuple):
    """A request on its way: the pod in its version."""

    uid: int
    state: str


@dataclass(frozen=True, slots=True)
class World:
    """One state of everything."""

    life: Rolling
    pods: Pods
    made: int = REPLICAS
    units: tuple[Unit, ...] = (Unit(), Unit())
    leader: int | None = None
    lease: Left = _NOTHING
    flying: tuple[Evicting, ...] = ()  # Whose sender does not wait any more.
    now: float = 0.0
    # The truth about restarts, for the properties.
    replacing: tuple[int, frozenset[int]] | None = None  # Which pod, beside which others.
    hopeless: bool = False
    spent: Mapping[str, int] = field(default_factory=dict[str, int])

    def may(self, what: str) -> bool:
        return self.spent.get(what, 0) < getattr(self.life, what)

    def spend(self, what: str) -> World:
        return replace(self, spent={**self.spent, what: self.spent.get(what, 0) + 1})

    def unit(self, number: int, **changes: Any) -> World:
        """The same with another unit."""
        units = [*self.units]
        units[number] = units[number]._replace(**changes)
        return replace(self, units=tuple(units))

    def become(self, pods: Pods, **changes: Any) -> World:
        """The truth changes; watches will show it."""
        units = tuple(_shown(unit, pods) for unit in self.units)
        return replace(self, pods=pods, units=units, **changes)

    @property
    def moment(self) -> Moment:
        return Moment(self.now, EPOCH + self.now)


def _shown(unit: Unit, pods: Pods) -> Unit:
    if unit.seen is None:
        return unit
    seen, *rest = (unit.seen, *unit.unseen, pods)
    while unit.idle and len(rest) > LAG:
        seen, *rest = rest
    return unit._replace(seen=seen, unseen=tuple(rest))


def begin(life: Rolling) -> World:
    """All pods run without a sidecar, and no unit has seen them."""
    return World(life, tuple(Pod(n, n - 1, False, READY) for n in range(1, REPLICAS + 1)))


def replicas(life: Rolling, pods: Pods) -> list[Replica]:
    """What the product makes of pods."""
    return [
        Replica(
            name=pod.name if life.numbered else f"pod-{pod.uid}",
            uid=str(pod.uid),
            sidecar=Sidecar.PRESENT if pod.sidecar else Sidecar.MISSING,
            ready=pod.state == READY,
            deleting=pod.state == ENDING,
            restart=not pod.sidecar and pod.state != ENDING,
            ordinal=pod.slot if life.numbered else None,
            created=float(pod.uid),
            deleted=float(pod.deleted),
        )
        for pod in pods
    ]


# The truth: the controller, kubelets, and other clients.


def happens(world: World) -> Iterator[Step]:
    life, pods = world.life, world.pods
    if (slot := _lacks(life, pods)) is not None:
        pod = Pod(world.made + 1, slot, not life.stubborn)
        after = world.become((*pods, pod), made=world.made + 1)
        yield Step(f"the controller makes {pod.uid}", _replaced(after, pod), fair=True)
    for pod in pods:
        others = tuple(each for each in pods if each is not pod)
        if pod.state == NEW:
            ready = pod._replace(state=READY)
            after = world.become(_in_order((*others, ready)))
            yield Step(f"{pod.uid} is Ready", _replaced(after, ready), fair=True)
        elif pod.state == ENDING:
            yield Step(f"{pod.uid} is gone", world.become(others), fair=True)
        if pod.state != ENDING and world.may("drains"):
            after = world.spend("drains").become(deleted(world, pod))
            yield Step(f"another client deletes {pod.uid}", after)


def _lacks(life: Rolling, pods: Pods) -> int | None:
    """The number of the next pod that the controller makes, if it makes one now."""
    if not life.numbered:
        return None if sum(pod.state != ENDING for pod in pods) >= REPLICAS else 0
    by_slot = {pod.slot: pod for pod in pods}
    for slot in range(REPLICAS):
        if slot not in by_slot:
            return slot
        if by_slot[slot].state != READY:
            return None
    return None


def _in_order(pods: Pods) -> Pods:
    return tuple(sorted(pods))


def deleted(world: World, pod: Pod) -> Pods:
    ending = pod._replace(state=ENDING, deleted=world.made)
    return _in_order((*(each for each in world.pods if each is not pod), ending))


def _replaced(world: World, pod: Pod) -> World:
    """Does a restart end with this pod, which is new or Ready?"""
    if world.replacing is None or pod.uid in world.replacing[1]:
        return world
    if not pod.sidecar:
        return replace(world, replacing=None, hopeless=True)
    return replace(world, replacing=None) if pod.state == READY else world


# The properties.


def permitted(world: World, number: int, pod: Pod) -> None:
    """What holds whenever an eviction is about to be sent, by what its unit could know."""
    if world.leader != number:
        raise Violation("it evicts without the Lease")
    if pod.sidecar:
        raise Violation("it evicts a pod that has its sidecar")
    others = [each for each in world.units[number].seen or () if each.uid != pod.uid]
    # How many there should be, it does not know.
    lacking = any(each.state == ENDING or (each.sidecar and each.state == NEW) for each in others)
    if lacking and sum(each.state == READY for each in others) < REPLICAS - 1:
        raise Violation("it evicts a pod beside one that ends, or is not Ready")


def settled(world: World) -> None:
    """What holds once nothing happens by itself any more."""
    if world.hopeless or (world.life.stubborn and world.replacing):
        return
    if world.replacing or not all(pod.sidecar for pod in world.pods):
        raise Violation("a pod without a sidecar is forgotten")


def identity(world: World) -> object:
    """What the future of a world depends on: times count from now."""
    now = world.now
    units = tuple(
        (
            unit.seen, unit.unseen, _of_rollout(unit.rollout, now), unit.active, unit.announced,
            unit.task and (unit.task.uid, unit.task.stage,
                           unit.task.begun is unit.rollout.replacing),
            unit.recalled, tuple((name, since - now) for name, since in unit.gone),
            type(unit.decision), (then := getattr(unit.decision, "until", None)) and then - now,
        )
        for unit in world.units
    )  # fmt: skip
    return (
        world.pods, world.made, units, world.leader, world.lease, world.flying, world.replacing,
        world.hopeless, tuple(sorted(world.spent.items())),
    )  # fmt: skip


def _of_rollout(found: Rollout, now: float) -> object:
    replacing, failure = found.replacing, found.failure
    return (
        replacing and (replacing.old, replacing.known, replacing.ending, replacing.deleted,
                       replacing.sent, replacing.accepted, replacing.since - now),
        failure and (failure.uid, failure.created, failure.until - now),
        max(found.retry_at - now, 0.0),
        tuple((reason, since - now) for reason, since in found.held.items()),
        None if found.empty is None else found.empty - now,
    )  # fmt: skip
