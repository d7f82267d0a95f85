"""What is watched: one watch for each collection, which feeds every handler that needs its objects.

`MeshWatch` has the namespaces, the webhook configurations and Istio's injectors. Commands use it
alone, `wiring` beside the controllers of ``serve``.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from enum import Enum, auto
from typing import Any

from istio_aux.injector.probe import DRY_RUN
from istio_aux.injector.rules import ControlPlanes
from istio_aux.injector.watcher import Namespaces, Watcher
from istio_aux.kube import actions
from istio_aux.kube.client import Client
from istio_aux.kube.clock import system_clock
from istio_aux.kube.objects import T
from istio_aux.kube.watch import Handler, Watch
from istio_aux.model import answers
from istio_aux.model.moment import Clock
from istio_aux.model.webhooks import Configuration, Namespace
from istio_aux.settings import Settings
from istio_aux.tasks import running, until
from istio_aux.telemetry import Telemetry

LEADING = 120.0
"""Seconds of silence after which a watch counts as dead, and a leader gives way to a process whose
watches are alive. A live watch is silent for 90 s at most; a failed one is tried again after 30 s
at most."""

READY = 600.0
"""Seconds of silence after which a watch makes the unit unready. While a watch is silent, reviews
use older facts, but without a ready unit no pod is held at all. So the limit is long: the restart
of an API server must not make all units unready at once."""

PATIENCE = 2 * DRY_RUN
"""Seconds after which a command goes on with what is known. A probe of an injector, and the reading
of versions that follows, take up to `DRY_RUN` each."""


class MeshWatch:
    """The namespaces, the webhook configurations and Istio's injectors. This class only watches.

    A command or a controller adds to ``watches`` what else it needs.
    """

    def __init__(
        self,
        client: Client,
        settings: Settings,
        telemetry: Telemetry,
        *,
        changed: Callable[[ControlPlanes], None] = lambda _control_planes: None,
        relabelled: Callable[[str], None] = lambda _namespace: None,
        clock: Clock = system_clock,
        ordered: bool = False,
    ) -> None:
        """Prepare `work` and `watched`; ``client`` is open while they run.

        ``changed`` is called with everything that is known of the injectors, after each change;
        ``relabelled`` with the name of a namespace that is relabelled or gone. ``ordered``: whether
        readiness needs to know which configurations are called before ours.
        """
        self.namespaces = Namespaces(relabelled)
        self.injectors = Watcher(
            client,
            self.namespaces,
            telemetry,
            changed=changed,
            ours=settings.webhook_configuration,
            root=settings.root_namespace,
            selectors=settings.namespace_selectors,
            clock=clock,
        )
        self.watches = Watches(client, telemetry)
        there = self.watches.add("namespaces", actions.NAMESPACES, Namespace, self.namespaces)
        configured = self.watches.add(
            "order" if ordered else "injectors",
            actions.CONFIGURATIONS,
            Configuration,
            self.injectors.configurations,
            need=Need.UNLESS_REFUSED if ordered else Need.NEVER,
        )
        self._listed = there.synced, configured.synced

    def work(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        """Return the endless tasks by name."""
        return {
            **self.watches.work(),
            "injectors": functools.partial(self.injectors.run, *self._listed),
        }

    @asynccontextmanager
    async def watched(self, *more: Coroutine[Any, Any, None]) -> AsyncGenerator[None]:
        """Watch while the context lasts, and run ``more``.

        The context begins when all is known, when a right is missing, or after `PATIENCE`.
        """
        async with running(*(work() for work in self.work().values()), *more):
            await until(lambda: self._known or self.watches.refused, PATIENCE)
            yield

    @property
    def _known(self) -> bool:
        planes = self.injectors.control_planes
        return planes.known and all(each.native_why for each in planes.injectors if each.live)


class Need(Enum):
    """Whether readiness waits for a collection."""

    ALWAYS = auto()
    UNLESS_REFUSED = auto()
    """If missing RBAC made the pod unready, the rollout that adds the RBAC would deadlock."""
    NEVER = auto()
    """Reviews do not need it."""


class Watches:
    """All watches, by the name that `/readyz` shows."""

    def __init__(self, client: Client, telemetry: Telemetry) -> None:
        """Begin without watches; ``telemetry`` counts restarts, unreadable objects and errors."""
        self._client, self._telemetry = client, telemetry
        self._watches: dict[str, tuple[Watch[Any], Need]] = {}
        telemetry.gauge(
            "unreadable_objects",
            "Kubernetes objects that exist and cannot be read.",
        ).set_function(lambda: len(self.unreadable()))

    def add(
        self,
        name: str,
        path: str,
        kind: type[T],
        *handlers: Handler[T],
        need: Need = Need.ALWAYS,
        selection: Mapping[str, str] | None = None,
    ) -> Watch[T]:
        """Add a collection; the handlers receive each change in this order."""
        watch = Watch(
            self._client,
            path,
            kind,
            *handlers,
            failed=self._telemetry.unhandled,
            selection=selection,
            restarted=lambda reason: self._telemetry.watch_restarts.labels(reason).inc(),
        )
        self._watches[name] = watch, need
        return watch

    def work(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        """Return the endless tasks by name."""
        return {f"watch {name}": watch.run for name, (watch, _) in self._watches.items()}

    def unreadable(self) -> list[answers.UnreadableObject]:
        """Return the objects that cannot be decoded, a bounded number of each watch."""
        return [
            answers.UnreadableObject(watch.path, key.namespace, key.name, why)
            for watch, _ in self._watches.values()
            for key, why in watch.unreadable.items()
        ]

    def missing(self) -> dict[str, str]:
        """Return why collections are not up to date, by name."""
        return {
            name: why + (f": {watch.trouble}" if watch.trouble else "")
            for name, (watch, _) in self._watches.items()
            if (why := _unheard(watch) if watch.synced.is_set() else "no complete list yet")
        }

    def dead(self) -> str:
        """Return which watch counts as dead, and why; empty if each of them is alive."""
        dead = (
            f"watch {name}: {_unheard(watch)}"
            for name, (watch, _) in self._watches.items()
            if _unheard(watch)
        )
        return next(dead, "")

    @property
    def ready(self) -> bool:
        """Whether every collection that readiness needs was listed and is up to date."""
        return all(
            (watch.synced.is_set() and watch.silent < READY)
            or need is Need.NEVER
            or (need is Need.UNLESS_REFUSED and watch.refused)
            for watch, need in self._watches.values()
        )

    @property
    def refused(self) -> bool:
        """Whether the API server refuses collections, as it does when rights are missing.

        Each of the others has been listed by then, so `missing` names all that is refused.
        """
        watches = [watch for watch, _ in self._watches.values()]
        answered = all(watch.refused or watch.synced.is_set() for watch in watches)
        return answered and any(watch.refused for watch in watches)


def _unheard(watch: Watch[Any]) -> str:
    """For how long a dead watch has been silent; empty if it is alive."""
    silent = watch.silent
    return f"nothing heard for {silent // 60:.0f} min" if silent >= LEADING else ""
