"""The quit of one pod as a world of few states: the truth, what is seen of it, and what is done.

The product decides (`quit.decide`, `PodState`, `Task`), and this file performs the actions as
`quit.controller` does. `exhaustive` visits every state.

Time is abstract: a request takes as long as it likes, and only three durations matter: until
something is due, longer than that, and longer than a watch may lag.

Not modelled: several pods, slots, Events, and the API server's refusals by their code.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from istio_aux.model.moment import Moment
from istio_aux.model.pod import PROXY, Key
from istio_aux.model.policy import DeadProxy, QuitMode, QuitPolicy
from istio_aux.model.sidecars import AttemptResult, How
from istio_aux.quit.attempt import (
    Action,
    Ask,
    Delete,
    End,
    Look,
    PodState,
    QuitLimits,
    QuitOutcome,
    QuitScope,
    Retry,
    Send,
    Sleep,
    Task,
)
from istio_aux.quit.facts import PodFacts
from istio_aux.quit.rules import Quit
from msgspec import structs
from unit.rules.pods import RUNNING, exited, job, waiting

NEW = waiting("PodInitializing")
OURS = {"lifecycle": {"postStart": {"exec": {"command": ["pilot-agent", "wait"]}}}}
KEY = Key("training", "job-x7k2p", "u-1")
EPOCH = 1_800_000_000.0  # Seconds since 1970: after the end that every container reports.
LIMITS = QuitLimits(lost_after=2.0, blocked_after=2.0, held_after=2.0)
SHORT, LONG = 1.0, 40.0  # Seconds: less than a delay of `LIMITS`, and more than a watch may lag.
RUNGS = 3  # Ways to tell a proxy to exit; after the last one the first follows.

RUNS, WAITS, DONE, BROKEN = "runs", "waits for its next start", "exited 0", "exited 1"
HELD = "is held"  # Its proxy runs, and the hook of that waits: the kubelet reports neither.


class Life(NamedTuple):
    """A pod, and what may happen to it."""

    name: str
    containers: tuple[str, ...] = ("main", PROXY)  # Names, with the proxy among them.
    restart: str = "Never"
    restarts: int = 0  # How many of its failures the kubelet may follow with another start.
    crashes: bool = False  # Whether the proxy may end although nobody has told it to.
    deletes: bool = True  # Whether somebody may delete the pod.
    kept: frozenset[str] = frozenset()  # Containers that do not keep the proxy running.
    policy: QuitPolicy = QuitPolicy()
    mode: QuitMode = QuitMode.ENABLED
    owner: tuple[str, str] | None = None  # apiVersion and kind of the controller.
    stops: bool = False  # Whether the process of the unit may get SIGTERM.
    held: bool = False  # Whether its payload is held at first. Then its proxy comes first.

    @property
    def sidecars(self) -> frozenset[str]:
        told = (rule.container for rule in self.policy.sidecars if rule.how is How.QUIT)
        return frozenset({PROXY, *told})


class Truth(NamedTuple):
    """What is the case, whether anybody has seen it or not."""

    containers: tuple[str, ...]  # The state of each container of the life, in its order.
    there: str  # ``yes``, ``deleting``, ``gone``, or ``replaced`` by another pod of the same name.
    starts: int  # How many more times a container that failed is started again.
    leaving: str = ""  # The sidecar that was told to exit, and takes its time.
    version: int = 1  # Counts the changes.

    @property
    def held(self) -> bool:
        return HELD in self.containers


class Violation(Exception):  # noqa: N818  (it is what the search looks for)
    """A property does not hold."""


class Step(NamedTuple):
    """What may happen next, and the world after it; ``fair``: it happens if nothing goes wrong."""

    what: str
    world: World
    fair: bool = False


@dataclass(slots=True)
class World:
    """One state of everything. It is never changed once it has been visited."""

    life: Life
    truth: Truth
    # Later truths that the watch has not delivered, the oldest first.
    unseen: tuple[Truth, ...] = ()
    now: float = 0.0  # Seconds of both clocks.
    leading: bool = True
    selected: bool = True
    stopping: bool = False
    pod: PodState | None = None  # What the unit knows; None: nothing.
    action: Action | None = None  # What its task does next; None: there is no task.
    basis: Truth | None = None  # The truth when the pod was read for ``action``.

    def copy(self, **changes: Any) -> World:
        """The same, to be changed."""
        twin = replace(self, **changes)
        if (pod := self.pod) is not None:
            twin.pod = state = copy(pod)
            if pod.task is not None:
                state.task = task = copy(pod.task)
                task.state, task._answers = state, dict(task._answers)
        return twin

    @property
    def scope(self) -> QuitScope:
        return _scope(self.life, self.leading, self.selected, self.stopping)

    def runs(self, name: str) -> bool:
        return self.truth.containers[self.life.containers.index(name)] == RUNS


@functools.cache
def _scope(life: Life, leading: bool, selected: bool, stopping: bool) -> QuitScope:
    return QuitScope(
        policy=life.policy, limits=LIMITS, mode=life.mode, leading=leading, stopping=stopping,
        namespaces={"training"} if selected else set(),
    )  # fmt: skip


# The truth: what containers, the kubelet and other people do.


def begin(life: Life) -> World:
    """Everything runs, and the unit has seen nothing yet."""
    first = [HELD if life.held and name != PROXY else RUNS for name in life.containers]
    truth = Truth((*first,), "yes", life.restarts)
    return World(life, truth, (truth,))


def over(life: Life, truth: Truth, name: str) -> bool:
    """Whether a container has ended, and the kubelet never starts it again."""
    state = truth.containers[life.containers.index(name)]
    return state == DONE or (state == BROKEN and life.restart == "Never")


def needs_proxy(life: Life, truth: Truth) -> bool:
    """Whether a payload container runs, or will run again."""
    payload = set(life.containers) - life.sidecars - life.kept
    return not all(over(life, truth, name) for name in payload)


def watched(life: Life, truth: Truth) -> bool:
    """Whether the pod exists, and is Running."""
    ended = all(over(life, truth, name) for name in life.containers)
    return truth.there in {"yes", "deleting"} and not ended


@functools.cache
def report(life: Life, truth: Truth) -> PodFacts:
    """What the product reads of the pod as the API server has it, if it exists."""
    states = {RUNS: RUNNING, WAITS: waiting("CrashLoopBackOff"), DONE: exited(0), BROKEN: exited(1)}
    shown = {n: states.get(s, NEW) for n, s in zip(life.containers, truth.containers, strict=True)}
    pod = job(
        dict.fromkeys(shown, NEW) if truth.held else shown,
        restart=life.restart, owner=life.owner, deleting=truth.there == "deleting",
        phase="Pending" if truth.held else "Running" if watched(life, truth) else "Succeeded",
        details={PROXY: OURS} if life.held else {},
    )  # fmt: skip
    metadata = structs.replace(pod.metadata, resource_version=str(truth.version))
    return PodFacts(structs.replace(pod, metadata=metadata), life.policy)


def happens(world: World) -> Iterator[Step]:
    """What the unit has no part in."""
    life, truth = world.life, world.truth
    if truth.there not in {"yes", "deleting"}:
        return
    for name, state in zip(life.containers, truth.containers, strict=True):
        yield from lives(world, name, state)
    if not world.leading and not needs_proxy(life, truth) and world.runs(PROXY):
        yield changed(world, "another unit makes the proxy exit", (PROXY, DONE))
    if truth.there == "deleting" and truth.held:
        return  # kubernetes#116032
    if truth.there == "deleting":
        yield changed(world, "the pod is gone", there="gone")._replace(fair=True)
        yield changed(world, "another pod gets its name", there="replaced")
    elif life.deletes:
        yield changed(world, "somebody deletes the pod", there="deleting")


def lives(world: World, name: str, state: str) -> Iterator[Step]:
    """What may happen to a container."""
    life, truth = world.life, world.truth
    if name == truth.leaving and state == RUNS:
        yield changed(world, f"{name} exits", (name, DONE), leaving="")._replace(fair=True)
    if state == RUNS and (name not in life.sidecars or life.crashes):
        yield changed(world, f"{name} exits with 0", (name, DONE))
        if life.restart == "Never" or truth.starts:
            unwatched = max(0, truth.starts - 1)
            yield changed(world, f"{name} exits with 1", (name, BROKEN), starts=unwatched)
    elif state == HELD:
        gives_up = not world.runs(PROXY)
        after = "its proxy has ended" if gives_up else "its proxy is ready"
        yield changed(world, f"{name} starts, as {after}", (name, RUNS))._replace(fair=gives_up)
    elif state == BROKEN and not over(life, truth, name):
        yield changed(world, f"{name} waits", (name, WAITS))
    elif state == WAITS:
        yield changed(world, f"{name} starts again", (name, RUNS))


def changed(world: World, what: str, container: tuple[str, str] = ("", ""), **new: Any) -> Step:
    """The truth changes: a ``container`` has another state, and other fields are ``new``."""
    pairs = zip(world.life.containers, world.truth.containers, strict=True)
    states = tuple(container[1] if name == container[0] else state for name, state in pairs)
    after = world.truth._replace(containers=states, version=world.truth.version + 1, **new)
    return Step(what, world.copy(truth=after, unseen=(*world.unseen, after)))


# The unit: performs what the product decides, as `quit.controller.QuitController` does.


def delivered(world: World, truth: Truth, rest: tuple[Truth, ...]) -> World:
    """`QuitController.apply` and `QuitController.delete`."""
    after = world.copy(unseen=rest)
    if not watched(world.life, truth):
        if after.pod:
            after.pod.unwatched = True
    else:
        state = after.pod = after.pod or PodState(KEY)
        state.unwatched = False
        state.decide_on(report(world.life, truth), after.scope, at(after.now))
        due = state.decision.blocked_by or isinstance(state.decision, Quit)
        state.unwatched = truth.held and not due
    return steered(after)


def steered(world: World) -> World:
    """`QuitController._steer`."""
    pod = world.pod
    if pod is None or pod.task is not None:
        return world
    if due := pod.due(world.scope):
        pod.task, world.action = Task(pod, due), Sleep(0)
    elif pod.unwatched:
        world.pod = None
    return world


def followed(world: World, action: Action, basis: Truth | None = None) -> World:
    """The task has decided on its next ``action``; ``basis``: by a pod that was read then."""
    world.action, world.basis = action, None
    if isinstance(action, Send | Delete):
        world.basis = basis
        permitted(world)
    elif isinstance(action, End):
        ended(world, action)
        assert world.pod, "it has a task"
        world.pod.task = world.action = None
        return steered(world)
    return world


def acts(world: World) -> Iterator[Step]:
    """What the task of the unit may do next."""
    pod, action = world.pod, world.action
    if pod is None or pod.task is None:
        return
    match action:
        case Sleep() | Retry():
            pause = action.seconds if isinstance(action, Sleep) else action.pause
            for passed, fair in {0.0: pause == 0, pause: True}.items():
                after, task = task_of(world.copy(now=world.now + passed))
                next_action = task.awake(after.scope, at(after.now))
                yield Step(f"the task wakes after {passed:g} s", followed(after, next_action), fair)
        case Look():
            after, task = task_of(world.copy())
            if not task.told and not task.is_due(after.scope):
                yield Step("nothing is due", followed(after, task.superseded(after.scope)), True)
                return
            truth = world.truth
            found = report(world.life, truth) if truth.there in {"yes", "deleting"} else None
            decided = task.looked(found, after.scope, at(after.now))
            if isinstance(decided, Ask):
                yield from asks(after, truth)
            else:
                yield Step("the unit reads the pod", followed(after, decided, truth), True)
            yield failing(world, "the API server does not answer", counts=False)
            yield failing(world, "the pod cannot be read", counts=True)
        case Send():
            yield from sends(world, action)
        case Delete():
            yield from deletes(world, action)
        case _:
            raise AssertionError(action)


def asks(world: World, truth: Truth) -> Iterator[Step]:
    """A proxy says that it is not ready, or nothing, or that it is: an image may be pulled."""
    for ready in (False, None, True):
        after, task = task_of(world.copy())
        decided = task.asked(ready, after.scope)
        yield Step(f"is the proxy ready: {ready}", followed(after, decided, truth), ready is False)


def failing(world: World, what: str, *, counts: bool, reading: bool = True) -> Step:
    """A request of the task failed."""
    after, task = task_of(world.copy())
    return Step(
        what, followed(after, task.failed(what, after.scope, counts=counts, reading=reading))
    )


def sends(world: World, send: Send) -> Iterator[Step]:
    """The attempt arrives, or not; its answer is true, or not."""
    target = send.rule.container if send.rule else PROXY
    runs = world.truth.there in {"yes", "deleting"} and world.runs(target)
    for effect in (True, False) if runs else (False,):
        for well, sent in ((True, True), (False, True), (False, False)):
            if effect and not sent:
                continue
            after, task = task_of(world.copy())
            if effect:
                after.truth = after.truth._replace(leaving=target)
            result = AttemptResult(well, sent, "an answer")
            took = f"{target} is told to exit, and {'takes' if effect else 'does not take'} it"
            heard = f"the answer sounds {'good' if well else 'bad'}" if sent else "it was refused"
            decided = task.answered(send.way, result, after.scope)
            yield Step(f"{took}; {heard}", followed(after, decided), well and effect is runs)
    yield failing(world, "the attempt does not reach the API server", counts=False)


def deletes(world: World, delete: Delete) -> Iterator[Step]:
    truth = world.truth
    if truth.there not in {"yes", "deleting"}:
        after, task = task_of(world.copy())
        decided = task.looked(None, after.scope, at(after.now))
        yield Step("the pod to delete is gone", followed(after, decided), True)
    elif delete.version == str(truth.version) and truth.there == "yes":
        deleting = truth._replace(there="deleting", version=truth.version + 1)
        gone = world.copy(truth=deleting, unseen=(*world.unseen, deleting))
        after, task = task_of(gone.copy())
        yield Step("the unit deletes the pod", followed(after, task.deleted()), True)
        yield failing(gone, "the pod is deleted, and the answer is lost", counts=True)
    else:
        yield failing(world, "the pod has changed: 409", counts=True, reading=False)._replace(
            fair=True
        )
    yield failing(world, "the deletion does not arrive", counts=False)


def task_of(world: World) -> tuple[World, Task]:
    """A copy, and its task."""
    task = world.pod and world.pod.task
    assert task, "it acts"
    return world, task


def learns(world: World) -> Iterator[Step]:
    """What the watch delivers: the next truth, or a list without those between."""
    if world.unseen:
        first, *rest = world.unseen
        yield Step("the watch shows the next state", delivered(world, first, tuple(rest)), True)
    if world.unseen[1:]:
        yield Step("a list shows the newest state", delivered(world, world.unseen[-1], ()))


def turns(world: World) -> Iterator[Step]:
    """What changes for the unit beside the pod."""
    leading = steered(world.copy(leading=not world.leading))
    yield Step(
        "another unit leads" if world.leading else "the unit leads", leading, not world.leading
    )
    if not world.stopping:
        selected = steered(world.copy(selected=not world.selected))
        said = "no longer selected" if world.selected else "selected"
        yield Step(f"the namespace is {said}", selected, not world.selected)
    if world.life.stops and not world.stopping:
        yield Step("the process is told to end", steered(world.copy(stopping=True)))
    if world.pod and world.pod.asks_for and world.pod.decision.action != "quit":
        for seconds in (SHORT, LONG):
            yield Step(f"{seconds:g} s pass", world.copy(now=world.now + seconds))


def steps(world: World) -> Iterator[Step]:
    """Everything that may happen next. The first fair one happens if nothing goes wrong."""
    for source in (turns, learns, happens, acts):
        yield from source(world)


def at(now: float) -> Moment:
    """A time as the product takes it."""
    return Moment(now, EPOCH + now)


# The properties.


def permitted(world: World) -> None:
    """What holds whenever a request is about to be sent, by the truth when the pod was read."""
    truth, life, action = world.basis, world.life, world.action
    assert truth, "a request rests on a pod that was read"
    if (
        not (world.leading and world.selected)
        or world.stopping
        or life.mode is not QuitMode.ENABLED
    ):
        raise Violation("it acts although this process must not")
    never_started = truth.there == "deleting" and truth.held
    if truth.there != "yes" and not never_started:
        raise Violation(f"it acts on a pod that is {truth.there}")
    if isinstance(action, Delete):
        if life.policy.dead_proxy is not DeadProxy.DELETE or not over(life, truth, PROXY):
            raise Violation("it deletes a pod whose proxy may run")
        if action.version != str(truth.version):
            raise Violation("it deletes another version than it has read")
    elif needs_proxy(life, truth) and not never_started:
        raise Violation("it tells the proxy to exit, and the payload needs it")


def ended(world: World, end: End) -> None:
    """What holds whenever a task ends."""
    truth, target = world.truth, world.pod.task.target if world.pod and world.pod.task else PROXY
    exists = truth.there in {"yes", "deleting"}
    if end.outcome is QuitOutcome.EXITED and exists and not over(world.life, truth, target):
        raise Violation(f"it says that {target} has exited, which it has not")
    if end.outcome is QuitOutcome.GONE and exists:
        raise Violation("it says that the pod is gone, which it is not")


def settled(world: World) -> None:
    """What holds once faults have stopped, and nothing more happens by itself."""
    life, truth, pod = world.life, world.truth, world.pod
    if not watched(life, truth):
        if pod is not None:
            raise Violation("it remembers a pod that is gone")
    elif world.stopping or life.mode is not QuitMode.ENABLED:
        return
    elif truth.there == "deleting" and truth.held:
        raise Violation("a pod whose payload has never started is deleted, and stays")
    elif truth.there != "yes":
        return
    elif not needs_proxy(life, truth) and any(map(world.runs, life.sidecars)):
        raise Violation("the payload is finished, and a sidecar runs on")
    elif life.policy.dead_proxy is DeadProxy.DELETE and over(life, truth, PROXY):
        raise Violation("the proxy is dead, and the pod is not deleted")
