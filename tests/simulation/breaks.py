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

from istio_aux.injector import capture, watcher
from istio_aux.kube import actions, exec  # noqa: A004  (a module of the product)
from istio_aux.kube.errors import Backoff
from istio_aux.kube.lease import Lease
from istio_aux.kube.watch import Watch
from istio_aux.model import kubelet, owners
from istio_aux.model.policy import QuitMode
from istio_aux.quit.attempt import End, Task
from istio_aux.quit.controller import QuitController
from istio_aux.repair import rollout, rules
from istio_aux.repair.controller import RepairController
from istio_aux.repair.rollout import Rollout
from istio_aux.repair.store import Captures, CniAgents, PodStore
from istio_aux.tasks import Slots
from istio_aux.watches import Watches
from istio_aux.wiring import Wiring
from msgspec import structs

from simulation.ambient import OF_AMBIENT
from simulation.play import play
from simulation.properties import GIVEN_UP, LAPSED, NOT_FREED, OF_JOB

SEEDS = range(50)
_NEVER = 1e9


class Noticed(NamedTuple):
    """The first seed that finds a break, and by which property; -1: none does."""

    name: str
    seed: int
    kind: str


def find(name: str) -> Noticed:
    """Look for a seed that finds the break of this name."""
    known, needed, guards, apply = BREAKS[name]
    replay = partial(play, only=needed, first=False, meshed=not needed.isdisjoint(OF_AMBIENT))
    for seed in (known, *SEEDS):
        with apply():
            kinds = replay(seed).kinds & guards
        if kinds and (new := kinds - replay(seed).kinds):
            return Noticed(name, seed, ", ".join(sorted(new)))
    return Noticed(name, -1, "NOT FOUND")


def main() -> int:
    """Print a table of all breaks; returns the exit status."""
    good = True
    for name in BREAKS:
        began = time.monotonic()
        found = find(name)
        good = good and found.seed >= 0
        where = f"seed {found.seed}" if found.seed >= 0 else ""
        print(f"{name:50} {where:9} {found.kind} ({time.monotonic() - began:.0f} s)", flush=True)
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
        _replace(QuitController, "lead", _only_begins),
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

    with _replace(exec, "stream", endless):
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
    def believes(self: Task, way: Any, answer: Any, scope: Any) -> Any:
        action = answered(self, way, answer, scope)
        if not answer.well:
            return action
        self.state.settled = True
        return End()

    return believes


def _once(read_kubelet: Any) -> Any:
    known = dict[Any, str]()

    async def read(client: Any, node: str) -> str:
        if (client, node) not in known:
            known[client, node] = await read_kubelet(client, node)
        return known[client, node]

    return read


def _by_the_wall(held: Any) -> Any:
    def aged(before: Any, pods: Any, now: Any, limits: Any, gone: Any) -> Any:
        found = held(before, pods, now, limits, gone)
        for pod in pods:
            if (why := f"{pod.name} is in the mesh and is not Ready yet") in found:
                found[why] = now.monotonic - max(now.wall - pod.created, 0.0) + limits.patience
        return found

    return aged


def _too_late(latest: Any) -> Any:
    return lambda self, seconds: latest(self, seconds) + self._retry * (seconds == self._deadline)


def _of_pods(dead: Any) -> Any:
    return lambda self: why if "pods" in (why := dead(self)) else ""


def _of_no_namespace(steer_all: Any) -> Any:
    return lambda self, namespace=None: None if namespace else steer_all(self)


def _performed(attempt: Any) -> Any:
    return lambda self, what, scope: attempt(
        self, what, structs.replace(scope, mode=QuitMode.ENABLED)
    )


def _once_each(apply: Any) -> Any:
    seen = dict[object, str]()

    def new(self: object, found: Any) -> None:
        what, version = (id(self), found.metadata.key), found.metadata.resource_version
        if seen.get(what) != version:
            seen[what] = version
            apply(self, found)

    return new


def _always_ready(of: Any) -> Any:
    return lambda pod: structs.replace(of(pod), ready_since=0.0)


def _skipped(_check: Any) -> Any:
    async def nothing(_self: Any, _node: str) -> None:
        """Believe what is known."""

    return nothing


class Break(NamedTuple):
    """A guard that is switched off while ``apply`` lasts, and the properties that it guards.

    ``seed`` found it last, with the ``faults`` that it needs.
    """

    seed: int
    faults: frozenset[str]
    guards: frozenset[str]
    apply: Callable[[], AbstractContextManager[Any]]


def _break(seed: int, faults: str, guards: str | set[str], *how: Any) -> Break:
    """``how``: a context manager; or an object, the name of what is replaced, and by what."""
    apply = how[0] if len(how) == 1 else partial(_replace, *how)
    kinds = frozenset({guards} if isinstance(guards, str) else guards)
    return Break(seed, frozenset(faults.split(", ")), kinds, apply)


def _returns(value: Any) -> Callable[[Any], Any]:
    return lambda _: lambda *_args, **_kwargs: value


_TOLD, _AT_ONCE = "a proxy is told to exit while its payload runs", "two restarts at once"
_IN_VAIN = "a pod that nothing would capture is evicted"
_TOO_EARLY = "a pod is evicted that its agent may capture"
_REPEATED, _KEPT = "restart that did not help is repeated", "something is kept"

BREAKS = {
    "a restart policy does not count": _break(
        0, "failing payloads", _TOLD, kubelet, "should_restart", _returns((False, ""))
    ),
    "evictions have no preconditions": _break(
        0, "drains", "write without preconditions", actions, "_preconditions", _returns({})
    ),
    "a leader never stops to lead": _break(
        0, "partitions, freezes", "acts without the Lease", _leads_on
    ),
    "a restart under way holds nothing back": _break(
        0, "slow controllers", _AT_ONCE, rollout, "next_step", _held_by_nothing
    ),
    "what an earlier leader left is not recalled": _break(
        3, "stubborn owners, terminations", _REPEATED, RepairController, "recall", _returns(None)
    ),
    "a restart always helps": _break(1, "stubborn owners", _REPEATED, rollout, "observed", _helped),
    "an exec has no deadline": _break(2, "bad agents", NOT_FREED, _no_deadline),
    "a slot is never free again": _break(0, "crowd", NOT_FREED, Slots, "take", _kept),
    "the answer of an agent is believed": _break(
        0, "bad agents", NOT_FREED, Task, "answered", _believed
    ),
    "a Job's pod is restarted as others are": _break(
        0, "drains", OF_JOB, owners, "is_job", _returns(False)
    ),
    "a pod that is gone is not forgotten": _break(
        0, "crowd", _KEPT, PodStore, "delete", _returns(None)
    ),
    "the version of a kubelet never ages": _break(
        1, "kubelet upgrades", {_TOLD, NOT_FREED}, actions, "read_kubelet", _once
    ),
    "what a handler failed on does not come again": _break(
        4, "defects", {NOT_FREED, GIVEN_UP, _KEPT}, Watch, "_apply", _once_each
    ),
    "a policy is forgotten when it cannot be read": _break(
        26,
        "unreadable policies",
        GIVEN_UP,
        watcher,
        "read_policy",
        lambda read: lambda *of: read(*of[:2], None),
    ),
    "a wall clock says how old a pod is": _break(
        34,
        "clock steps, drains",
        "restart beside a pod that is not Ready yet",
        rollout,
        "_held",
        _by_the_wall,
    ),
    "what the Lease lost is not written again": _break(
        9,
        "tampered Lease, stubborn owners",
        _REPEATED,
        Wiring,
        "_recall",
        lambda recall: lambda *args: recall(*args) or True,
    ),
    "a leader that is asked to wait waits beyond its term": _break(
        4, "throttling", LAPSED, Lease, "_latest", _too_late
    ),
    "a leader that knows no namespaces leads on": _break(
        7, "deaf units, relabelled namespaces", NOT_FREED, Watches, "dead", _of_pods
    ),
    "a relabelled namespace is not looked at again": _break(
        7, "relabelled namespaces", NOT_FREED, QuitController, "_steer_all", _of_no_namespace
    ),
    "a dry run tells proxies to exit": _break(
        0, "new settings", "acts against its settings", Task, "_attempt", _performed
    ),
    "a pause does not grow": _break(
        2,
        "missing rights, new settings",
        "too many requests",
        Backoff,
        "next",
        lambda _: lambda self: self._first,
    ),
    "an uncaptured pod is outside at once": _break(
        0, "late captures, agents away", _TOO_EARLY, Captures, "settled", _returns(True)
    ),
    "tenants' pods are taken for Istio's agents": _break(
        1,
        "forged agents, lost captures",
        {_TOO_EARLY, "a pod that is outside is not told"},
        PodStore,
        "selected",
        _returns(False),
    ),
    "an agent that is away counts as ready": _break(
        1, "agents away, late captures", _TOO_EARLY, capture.Agent, "of", _always_ready
    ),
    "the settings of the CNI do not count": _break(
        0, "lost captures", _IN_VAIN, capture.CniConfig, "ignores", _returns("")
    ),
    "settings are not read again before an eviction": _break(
        1,
        "changed settings, lost captures, late captures, drains",
        _IN_VAIN,
        RepairController,
        "_ready_to_capture",
        _skipped,
    ),
    "a pod that waits for ztunnel is replaced": _break(
        39,
        "ztunnel refuses, late captures, drains",
        "a pod that waits for ztunnel is evicted",
        rules,
        "_reasons_to_keep_uncaptured",
        _returns(iter(())),
    ),
    "an agent that is gone is not forgotten": _break(
        0, "agents anew", {_KEPT, _TOO_EARLY}, CniAgents, "delete", _returns(None)
    ),
    "an uncaptured pod that is gone is not forgotten": _break(
        0, "lost captures", _KEPT, Captures, "forget", _returns(None)
    ),
}
