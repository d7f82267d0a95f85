"""The collections that ``serve`` follows, and which of them it has not seen in full yet.

Only that may live here: what the objects mean is for those who are told of them.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from enum import Enum, auto
from typing import Any, Generic

import msgspec

from istio_aux.kube.client import Client
from istio_aux.kube.resources import Key, T, key_of
from istio_aux.kube.watch import Handler, Watch
from istio_aux.telemetry import Telemetry

_log = logging.getLogger(__name__)

HEAD_START = 10.0
"""Seconds that a collection waits at most for the one that it comes after."""


LEADING = 120.0
"""Seconds without a sign of life after which a watch counts as dead, and who leads by it lets
another lead. One that lives is silent for 70 s at most, and 30 s may pass before it is tried again.
An API server that is away for longer ends leading anyway, because the Lease cannot be renewed."""

READY = 600.0
"""The same for being ready. Reviews are answered without a watch, only perhaps by what was true
then, while a unit that is not ready is not asked: pods start without being held. So a restart of an
API server, or the upgrade of a control plane, must not make all units unready at once."""


class UnreadableObject(msgspec.Struct, frozen=True):
    """An object that cannot be read: what was known of it before still counts.

    Attributes:
        path: of its collection.
        namespace: empty for an object without one.
        name: empty if not even that can be read.
        reason: why.
    """

    path: str
    namespace: str
    name: str
    reason: str


class Need(Enum):
    """Whether this process is unready for as long as a collection has not been seen."""

    ALWAYS = auto()
    UNLESS_REFUSED = auto()
    """Were it unready for want of a right, a rollout that brings the right would wait for ever."""
    NEVER = auto()
    """Reviews can be answered without it."""


class Watches:
    """All of them, by the name under which `/readyz` speaks of each."""

    def __init__(self, client: Client, telemetry: Telemetry) -> None:
        """Prepare; ``telemetry`` counts how often watches start again."""
        self._client, self._telemetry = client, telemetry
        self._watches: dict[str, tuple[Watch[Any], Need]] = {}
        self._firsts: dict[str, Watch[Any]] = {}
        telemetry.unreadable_objects.set_function(lambda: len(self.unreadable()))

    def add(
        self,
        name: str,
        path: str,
        kind: type[T],
        *handlers: Handler[T],
        need: Need = Need.ALWAYS,
        selection: Mapping[str, str] | None = None,
        after: Watch[Any] | None = None,
    ) -> Watch[T]:
        """Follow one more collection from `work` on; every handler is told of every change.

        ``after``: one that somebody waits for, and that is not to share its time with this one.
        """
        watch = Watch(
            self._client, path, kind, _All(handlers, self._telemetry),
            selection=selection, restarted=self._count_restart,
        )  # fmt: skip
        self._watches[name] = watch, need
        if after:
            self._firsts[name] = after
        return watch

    def work(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        """What has to run for as long as the process does, by name."""
        return {
            f"watch {name}": functools.partial(_run, watch, self._firsts.get(name))
            for name, (watch, _) in self._watches.items()
        }

    def unreadable(self) -> list[UnreadableObject]:
        """Objects that are there but cannot be read; each once, also where several watches see it.

        Each watch remembers a bounded number of them.
        """
        found = {
            (watch.path, key): why
            for watch, _ in self._watches.values()
            for key, why in watch.unreadable.items()
        }
        return [
            UnreadableObject(path, key.namespace, key.name, why)
            for (path, key), why in found.items()
        ]

    def missing(self) -> dict[str, str]:
        """Why collections are not seen as they are now, by their names; for people."""
        return {
            name: why + (f": {watch.trouble}" if watch.trouble else "")
            for name, (watch, _) in self._watches.items()
            if (why := _why_not(watch))
        }

    def dead(self, name: str) -> str:
        """Say that nothing was heard of a collection for long; empty if it is followed well."""
        watch, _ = self._watches[name]
        return f"watch {name}: {_unheard(watch)}" if watch.silent >= LEADING else ""

    @property
    def ready(self) -> bool:
        """Whether all that is needed has been seen, and is being followed."""
        return all(
            (watch.synced.is_set() and watch.silent < READY)
            or need is Need.NEVER
            or (need is Need.UNLESS_REFUSED and watch.refused)
            for watch, need in self._watches.values()
        )

    def _count_restart(self, reason: str) -> None:
        self._telemetry.watch_restarts.labels(reason).inc()


def _why_not(watch: Watch[Any]) -> str:
    if not watch.synced.is_set():
        return "no complete list yet"
    return _unheard(watch) if watch.silent >= LEADING else ""


def _unheard(watch: Watch[Any]) -> str:
    return f"nothing heard for {watch.silent // 60:.0f} min"


async def _run(watch: Watch[Any], first: Watch[Any] | None) -> None:
    if first:
        with suppress(TimeoutError):
            async with asyncio.timeout(HEAD_START):
                await first.synced.wait()
    await watch.run()


class _All(Generic[T]):
    """One handler that tells several. An object that trips one of them must not stop the others."""

    def __init__(self, handlers: tuple[Handler[T], ...], telemetry: Telemetry) -> None:
        self._handlers, self._telemetry = handlers, telemetry

    def apply(self, resource: T) -> None:
        for handler in self._handlers:
            try:
                handler.apply(resource)
            except Exception:  # Reviews are answered whatever one pod does to the quit controller.
                self._tripped(key_of(resource))

    def delete(self, key: Key, last: T | None) -> None:
        for handler in self._handlers:
            try:
                handler.delete(key, last)
            except Exception:  # As above.
                self._tripped(key)

    def _tripped(self, key: Key) -> None:
        self._telemetry.internal_errors.inc()
        _log.exception("%s", key, extra={"event": "internal-error"})
