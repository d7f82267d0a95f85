"""Two units restart the pods of `onerestart`: each performs what the product decides, as
`repair.controller` does. Their requests may be lost, late, or answered to nobody."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

from istio_aux.model.election import Replaced
from istio_aux.model.moment import Moment
from istio_aux.repair import rollout
from istio_aux.repair.rollout import IDLE, Defer, Failure, Next

from simulation.onepod import Violation
from simulation.onerestart import (
    ENDING,
    LATE,
    LIMITS,
    Evicting,
    Left,
    Pod,
    Pods,
    Step,
    Task,
    Unit,
    World,
    deleted,
    happens,
    permitted,
    replicas,
)


def observed(world: World, number: int) -> World:
    """`RepairController._observe`, then `_start_next`."""
    unit, life, now = world.units[number], world.life, world.moment
    assert unit.seen is not None
    leads, pods = world.leader == number, replicas(life, unit.seen)
    found, recalled = unit.rollout, unit.recalled
    if not (leads or unit.active):
        return world
    if leads and pods:
        for left in _left(recalled, now):
            found = rollout.restored(found, pods, now, left)
            unit = unit._replace(announced=True)
        recalled = Left()
    found = rollout.observed(found, pods, now, LIMITS, dict(unit.gone))
    decision = rollout.next_step(found, pods, now, LIMITS)
    active = not (decision is None or (found.idle and not leads))
    if not active:
        found, decision = IDLE, None
    unit = unit._replace(rollout=found, active=active, recalled=recalled, decision=decision)
    if leads and isinstance(decision, Next) and unit.task is None:
        found = rollout.started(found, pods, decision.pod, now, sent=False)
        assert found.replacing
        task = Task(int(decision.pod.uid), found.replacing)
        unit = unit._replace(rollout=found, announced=False, task=task)
    after = world.unit(number, **unit._asdict())
    return observed(after, number) if unit.task and not world.units[number].task else after


def _left(recalled: Left, now: Moment) -> Iterator[Failure | Replaced]:
    """`Recalled.take`."""
    if recalled.failed is not None:
        created = datetime.fromtimestamp(recalled.failed, UTC)
        yield rollout.recalled(created, now, LIMITS)
    if recalled.replaced:
        yield recalled.replaced


def known(unit: Unit) -> Left:
    """What a leader writes to the Lease: `RepairController.failed` and `replaced`."""
    failure, replacing = unit.rollout.failure, unit.rollout.replacing
    failed = failure.created if unit.active and failure else unit.recalled.failed
    own = unit.active and unit.announced and replacing
    return Left(failed, unit.recalled.replaced or (replacing.old if own and replacing else None))


def learns(world: World, number: int) -> Iterator[Step]:
    """What a unit lists, or its watch delivers."""
    unit = world.units[number]
    if unit.seen is None:
        yield Step(f"unit {number} lists", world.unit(number, seen=world.pods), fair=True)
    elif unit.unseen and (world.leader == number or not unit.idle):
        now = world.now
        pods, *rest = unit.unseen
        names = {pod.name for pod in pods}
        before = {pod.name for pod in unit.seen}
        gone = {name: since for name, since in unit.gone if name not in names}
        if world.life.numbered:
            gone |= {name: gone.get(name, now) for name in sorted(before - names)}
        after = world.unit(number, seen=pods, unseen=tuple(rest), gone=tuple(sorted(gone.items())))
        yield Step(f"the watch of unit {number} shows {_told(pods)}", observed(after, number), True)


def acts(world: World, number: int) -> Iterator[Step]:
    """What the task of a unit may do next, and what becomes of its request."""
    unit = world.units[number]
    if (task := unit.task) is None:
        return
    who = f"unit {number}"
    if task.stage in {"compare", "compare again"}:
        if why := _differs(world, unit):
            yield Step(f"{who} lists: {why}", refused(world, number, why), fair=True)
        elif task.stage == "compare":
            after = world.unit(number, announced=True, task=task._replace(stage="save"))
            yield Step(f"{who} lists what it knows", after, fair=True)
        else:
            yield Step(f"{who} asks for the eviction", asked(world, number), fair=True)
        if world.may("losses"):
            lost = refused(world.spend("losses"), number, "no answer")
            yield Step(f"{who} gets no list", lost)
    elif task.stage == "save":
        following = world.unit(number, task=task._replace(stage="compare again"))
        if world.leader != number:
            yield Step(f"{who} cannot save", refused(world, number, "not the leader"), fair=True)
            return
        saved = replace(following, lease=known(unit))
        yield Step(f"{who} saves what it is about to do", saved, fair=True)
        if world.may("losses"):
            stored = replace(world.spend("losses"), lease=known(unit))
            yield Step(f"{who} saves, and does not hear of it", refused(stored, number, "lost"))
            lost = refused(world.spend("losses"), number, "lost")
            yield Step(f"{who} cannot save", lost)
    else:
        yield from evicts(world, number, task)


def _differs(world: World, unit: Unit) -> str:
    """`PodOwner.unlisted`: why the pods are others than the watch has shown; empty if they are not.

    What is not listed any more is gone, which the task finds out by a read.
    """
    there = {pod.uid for pod in unit.seen or ()}
    replacing = unit.rollout.replacing
    ending = replacing.ending if replacing else frozenset[str]()
    for pod in world.pods:
        if pod.uid not in there:
            return f"its controller has made {pod.uid}"
        if pod.state == ENDING and str(pod.uid) not in ending:
            return f"{pod.uid} is being deleted"
    missing = there - {pod.uid for pod in world.pods}
    return f"{min(missing)} is gone" if missing else ""


def asked(world: World, number: int) -> World:
    """The last questions of `RepairController._attempt`, and the request is sent."""
    unit, task = world.units[number], world.units[number].task
    assert task
    assert unit.seen is not None
    pod = next((each for each in unit.seen if each.uid == task.uid), None)
    if why := _superseded(world, number, task) or _outdated(pod):
        return refused(world, number, why)
    assert pod
    permitted(world, number, pod)
    pods = replicas(world.life, unit.seen)
    chosen = next(each for each in pods if each.uid == str(task.uid))
    found = rollout.started(unit.rollout, pods, chosen, world.moment)
    return world.unit(number, rollout=found, task=task._replace(stage=f"evict {pod.state}"))


def _superseded(world: World, number: int, task: Task) -> str:
    """`RepairController._superseded`."""
    unit = world.units[number]
    if world.leader != number:
        return "this process does not lead"
    if unit.rollout.replacing is not task.begun:
        return "it took too long"
    pods = replicas(world.life, unit.seen or ())
    if task.begun.known != {pod.uid for pod in pods} or any(
        pod.deleting and pod.uid not in task.begun.ending for pod in pods
    ):
        return "its controller has other pods now"
    return ""


def _outdated(pod: Pod | None) -> str:
    """`RepairController._outdated`."""
    return "" if pod and not pod.sidecar and pod.state != ENDING else "it is gone"


def refused(world: World, number: int, why: str) -> World:
    """`RepairController._refused`; the task ends."""
    unit = world.units[number]
    found, task = unit.rollout, unit.task
    assert task
    if found.replacing and found.replacing.old.uid == str(task.uid):
        found = rollout.refused(found, why, world.moment, LIMITS)
    return observed(world.unit(number, rollout=found, task=None), number)


def evicts(world: World, number: int, task: Task) -> Iterator[Step]:
    """The eviction arrives or not, and so does its answer."""
    who, unit = f"unit {number}", world.units[number]
    request = Evicting(task.uid, task.stage.removeprefix("evict "))
    after = arrived(world, request)
    if after is None:
        conflict = refused(world, number, "the pod has changed")
        yield Step(f"{who} hears of a conflict", conflict, fair=True)
    else:
        accepted = after.unit(number, rollout=rollout.accepted(unit.rollout))
        done = observed(accepted.unit(number, task=None), number)
        yield Step(f"{task.uid} is evicted", done, fair=True)
    if world.may("losses"):
        lost = world.spend("losses")
        ended = observed(lost.unit(number, task=None), number)
        yield Step(f"{who} gets no answer", replace(ended, flying=(*world.flying, request)))


def arrived(world: World, request: Evicting) -> World | None:
    """An eviction is performed; None: its precondition does not hold."""
    pod = next((each for each in world.pods if each.uid == request.uid), None)
    if pod is None or pod.state != request.state or pod.state == ENDING:
        return None
    if pod.sidecar:
        raise Violation("a pod is evicted that has its sidecar")
    if world.hopeless:
        raise Violation("a restart that did not help is repeated")
    if world.replacing and world.replacing[0] != pod.uid:
        raise Violation("two pods are replaced at once")
    there = frozenset(each.uid for each in world.pods)
    return world.become(deleted(world, pod), replacing=(pod.uid, there))


def flies(world: World) -> Iterator[Step]:
    """A request arrives after its sender has given it up, or never does."""
    for request in world.flying:
        rest = list(world.flying)
        rest.remove(request)
        less = replace(world, flying=tuple(rest))
        yield Step(f"the request to evict {request.uid} is lost", less)
        if after := arrived(less, request):
            yield Step(f"the late request evicts {request.uid}", after, fair=True)


def turns(world: World) -> Iterator[Step]:
    """Who leads, who dies, and how time passes."""
    for number, unit in enumerate(world.units):
        if world.leader is None and unit.seen is not None:
            yield Step(f"unit {number} leads", leads(world, number), number == 0)
        elif world.leader == number:
            if world.lease != (left := known(unit)):
                yield Step(f"unit {number} renews", replace(world, lease=left), fair=True)
            if world.may("moves"):
                yield Step(f"unit {number} lost the Lease", deposed(world.spend("moves"), number))
        if world.may("deaths"):
            after = killed(world.spend("deaths"), number)
            yield Step(f"unit {number} is killed", after)
            if unit.task and unit.task.stage == "save":
                stored = replace(after, lease=known(unit))
                yield Step(f"unit {number} is killed once it has saved", stored)
    if world.may("waits") and not any(unit.unseen for unit in world.units if not unit.idle):
        yield Step("time passes", waited(world.spend("waits"), world.now + LATE))


def leads(world: World, number: int) -> World:
    """It has read the Lease just before."""
    unit = world.units[number]
    recalled = Left(world.lease.failed or unit.recalled.failed, world.lease.replaced)
    return observed(replace(world, leader=number).unit(number, recalled=recalled), number)


def deposed(world: World, number: int) -> World:
    after, unit = replace(world, leader=None), world.units[number]
    if unit.rollout.idle and unit.task is None:
        return after.unit(number, rollout=IDLE, active=False, decision=None)
    return observed(after, number)


def killed(world: World, number: int) -> World:
    """What it has asked for may arrive."""
    task, flying = world.units[number].task, world.flying
    if task and task.stage.startswith("evict"):
        flying = (*flying, Evicting(task.uid, task.stage.removeprefix("evict ")))
    leader = None if world.leader == number else world.leader
    return replace(world.unit(number, **Unit()._asdict()), leader=leader, flying=flying)


def waited(world: World, until: float) -> World:
    """It is later: what was on its way is lost, and who waits for that decides again."""
    after = replace(world, now=until, flying=())
    for number, unit in enumerate(world.units):
        if unit.task and unit.task.stage.startswith("evict"):
            after = observed(after.unit(number, task=None), number)
        elif unit.task:
            after = refused(after, number, "no answer")
    for number, unit in enumerate(after.units):
        then = getattr(unit.decision, "until", None)
        if unit.seen is not None and then is not None and then <= until:
            after = observed(after, number)
    return after


def steps(world: World) -> Iterator[Step]:
    """Everything that may happen next. The first fair one happens if nothing goes wrong."""
    fair = False
    for step in _steps(world):
        fair = fair or step.fair
        yield step
    times = [
        unit.decision.until
        for unit in world.units
        if isinstance(unit.decision, Defer) and unit.decision.until is not None
    ]
    if not fair and times and (then := min(times)) > world.now:
        yield Step(f"nothing happens for {then - world.now:g} s", waited(world, then), fair=True)


def _steps(world: World) -> Iterator[Step]:
    yield from happens(world)
    for number in range(len(world.units)):
        yield from learns(world, number)
        yield from acts(world, number)
    yield from turns(world)
    yield from flies(world)


def _told(pods: Pods) -> str:
    return ", ".join(f"{pod.uid} {pod.state}" for pod in pods) or "none"
