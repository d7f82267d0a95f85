"""Guards of the product, each switched off: the simulation must find what they guard against.

A break is found by a seed whose violation is not there without the break.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

from istio_aux.kube import actions, exec, port_forward  # noqa: A004  (a module of the product)
from istio_aux.kube.lease import Lease
from istio_aux.model import kubelet
from istio_aux.quit.controller import Controller
from istio_aux.quit.state import End, Task
from istio_aux.repair import rollout, suspension
from istio_aux.repair.controller import RepairController
from istio_aux.repair.rollout import Rollout
from istio_aux.repair.store import PodStore
from istio_aux.tasks import Slots
from msgspec import structs

from simulation.play import play

SEEDS = (0, 1, 3, 24, 18, 43, *range(50))  # The first six find all breaks today.
_NEVER = 1e9


class Found(NamedTuple):
    """The first seed that finds a break, and by which property; -1: none does."""

    name: str
    seed: int
    kind: str


def find(name: str) -> Found:
    """Look for a seed that finds the break of this name."""
    for seed in SEEDS:
        guards, apply = BREAKS[name]
        with apply():
            kinds = play(seed, first=False).kinds & guards
        if kinds and (new := kinds - play(seed, first=False).kinds):
            return Found(name, seed, ", ".join(sorted(new)))
    return Found(name, -1, "NOT FOUND")


def main() -> int:
    """Print a table of all breaks; returns the exit status."""
    good = True
    for name in BREAKS:
        began = time.monotonic()
        found = find(name)
        good = good and found.seed >= 0
        where = f"seed {found.seed}" if found.seed >= 0 else ""
        print(f"{name:45} {where:8} {found.kind} ({time.monotonic() - began:.0f} s)", flush=True)
    return 0 if good else 1


def _replace(owner: Any, name: str, made: Callable[[Any], Any]) -> AbstractContextManager[Any]:
    return patch.object(owner, name, made(getattr(owner, name)))


def _only_begins(lead: Any) -> Any:
    return lambda self, leading: lead(self, leading) if leading else None


def _always(leads: Any) -> Any:
    """The Lease itself notices that it has lapsed; nobody else is told."""
    return lambda self: leads(self) or True


@contextmanager
def _leads_on() -> Generator[None]:
    with (
        _replace(Lease, "leads", _always),
        _replace(Controller, "lead", _only_begins),
        _replace(RepairController, "lead", _only_begins),
    ):
        yield


def _held_by_nothing(next_step: Any) -> Any:
    return lambda before, *args: next_step(structs.replace(before, replacing=None, held={}), *args)


def _helped(observed: Any) -> Any:
    def never_fails(before: Rollout, *args: Any, **kwargs: Any) -> Rollout:
        after = observed(before, *args, **kwargs)
        return after if after.failure is None else structs.replace(after, failure=None)

    return never_fails


@contextmanager
def _no_deadline() -> Generator[None]:
    def endless(stream: Any) -> Any:
        return lambda client, path, channels, _deadline, **more: stream(
            client, path, channels, _NEVER, **more
        )

    with _replace(exec, "stream", endless), _replace(port_forward, "stream", endless):
        yield


def _kept(take: Any) -> Any:
    held: list[Any] = []

    @asynccontextmanager
    async def forever(self: Any, namespace: str, node: str) -> AsyncGenerator[None]:
        held.append(take(self, namespace, node))
        await held[-1].__aenter__()
        yield

    return forever


def _believed(answered: Any) -> Any:
    def believes(self: Task, rung: Any, answer: Any, scope: Any) -> Any:
        action = answered(self, rung, answer, scope)
        if not answer.well:
            return action
        self.state.settled = True
        return End()

    return believes


class Break(NamedTuple):
    """A guard that is switched off while ``apply`` lasts, and the properties that it guards."""

    guards: frozenset[str]
    apply: Callable[[], AbstractContextManager[Any]]


def _break(apply: Callable[[], AbstractContextManager[Any]], *guards: str) -> Break:
    return Break(frozenset(guards), apply)


_TOLD, _AT_ONCE = "a proxy is told to exit while its payload runs", "two restarts at once"
_NOT_FREED, _KEPT = "a finished pod is not freed", "something is kept"
_REPEATED = "restart that did not help is repeated"

BREAKS = {
    "a restart policy does not count": _break(
        partial(_replace, kubelet, "should_restart", lambda _: lambda *_args: (False, "")),
        _TOLD,
    ),
    "evictions have no preconditions": _break(
        partial(_replace, actions, "_preconditions", lambda _: lambda *_args: {}),
        "write without preconditions",
    ),
    "a leader never stops to lead": _break(_leads_on, "acts without the Lease"),
    "a restart under way holds nothing back": _break(
        partial(_replace, rollout, "next_step", _held_by_nothing), _AT_ONCE
    ),
    "what an earlier leader left is not recalled": _break(
        partial(_replace, RepairController, "recall", lambda _: lambda *_args: None), _REPEATED
    ),
    "a restart always helps": _break(partial(_replace, rollout, "observed", _helped), _REPEATED),
    "an exec has no deadline": _break(_no_deadline, _NOT_FREED),
    "a slot is never free again": _break(partial(_replace, Slots, "take", _kept), _NOT_FREED),
    "the answer of an agent is believed": _break(
        partial(_replace, Task, "answered", _believed), _NOT_FREED
    ),
    "a Job is resumed while its pods end": _break(
        partial(_replace, suspension, "own", lambda _: lambda *_args: []),
        "a Job failed because of us",
    ),
    "a pod that is gone is not forgotten": _break(
        partial(_replace, PodStore, "delete", lambda _: lambda *_args: None), _KEPT
    ),
}
