"""Guards of the product, each switched off: the simulation must find what they guard against.

A break is found by a seed whose violation is not there without the break.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

from istio_aux.kube import actions, exec, port_forward  # noqa: A004  (a module of the product)
from istio_aux.kube.lease import Lease
from istio_aux.quit import facts
from istio_aux.quit.controller import Controller
from istio_aux.repair import rollout, suspension
from istio_aux.repair.controller import RepairController
from msgspec import structs

from simulation.play import play

SEEDS = 50  # Within which each break is found.
_NEVER = 1e9


class Break(NamedTuple):
    """A guard that is switched off while ``apply`` lasts, and the property that it guards."""

    kind: str
    apply: Callable[[], AbstractContextManager[Any]]


def find(found: Break, seeds: Iterable[int]) -> int:
    """Find the first seed that finds a break; LookupError if none does."""
    for seed in seeds:
        with found.apply():
            broken = found.kind in play(seed, first=False).kinds
        if broken and found.kind not in play(seed, first=False).kinds:
            return seed
    raise LookupError(f"no seed finds the break: {found.kind}")


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


@contextmanager
def _no_deadline() -> Generator[None]:
    def endless(stream: Any) -> Any:
        return lambda client, path, channels, _deadline, **more: stream(
            client, path, channels, _NEVER, **more
        )

    with _replace(exec, "stream", endless), _replace(port_forward, "stream", endless):
        yield


BREAKS = {
    "a restart policy does not count": Break(
        "a proxy is told to exit while its payload runs",
        partial(_replace, facts, "should_restart", lambda _: lambda *_args: (False, "")),
    ),
    "evictions have no preconditions": Break(
        "write without preconditions",
        partial(_replace, actions, "_preconditions", lambda _: lambda *_args: {}),
    ),
    "a leader never stops to lead": Break("acts without the Lease", _leads_on),
    "a restart under way holds nothing back": Break(
        "two restarts at once", partial(_replace, rollout, "next_step", _held_by_nothing)
    ),
    "what an earlier leader left is not recalled": Break(
        "restart that did not help is repeated",
        partial(_replace, RepairController, "recall", lambda _: lambda *_args: None),
    ),
    "an exec has no deadline": Break("a finished pod is not freed", _no_deadline),
    "a Job is resumed while its pods end": Break(
        "a Job failed because of us",
        partial(_replace, suspension, "own", lambda _: lambda *_args: []),
    ),
}
