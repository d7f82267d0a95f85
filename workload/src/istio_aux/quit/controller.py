"""Make the proxies of finished pods exit, and make sure that they did.

Only who has a task may live here: `ledger` says what is due about a pod, `attempt` and `deadproxy`
do it. Nothing is stored; a new process finds the same work in the cluster.

Each pod about which something is due has one task. The task tries until nothing is due any more,
ever more slowly, for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

from istio_aux.core.pod import Pod
from istio_aux.core.policy import Policy, QuitMode
from istio_aux.kube.backoff import Backoff
from istio_aux.kube.client import Client
from istio_aux.kube.errors import ApiError, KubeError, UnreachableError, asked
from istio_aux.kube.events import Events
from istio_aux.kube.resources import Key, key_of
from istio_aux.quit.attempt import Quitting
from istio_aux.quit.blocked import Patience
from istio_aux.quit.deadproxy import DeadProxies
from istio_aux.quit.findings import Blocked, Lost, Stuck
from istio_aux.quit.ledger import Ledger
from istio_aux.quit.limits import Limits
from istio_aux.quit.narrator import Narrator
from istio_aux.quit.record import Errand, Record, Work
from istio_aux.quit.selection import Selection
from istio_aux.telemetry import Telemetry


class Performer(Protocol):
    """Who can do an errand."""

    async def step(self, record: Record, work: Work) -> bool:
        """Try once; returns whether it is done. Raises KubeError."""
        ...

    async def drop(self, record: Record, work: Work) -> None:
        """The errand is not due any more, and no step ended it."""
        ...


class Controller:
    """A handler of the pod watch; see the module for what it does."""

    def __init__(
        self,
        client: Client,
        selection: Selection,
        telemetry: Telemetry,
        events: Events,
        *,
        policy: Policy | None = None,
        mode: QuitMode = QuitMode.ON,
        leading: bool = True,
        limits: Limits | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Prepare; tasks start once pods come in.

        Args:
            client: an open client.
            selection: the namespaces whose pods count; the controller listens to its changes.
            telemetry: where to count.
            events: where to tell the owners of pods.
            policy: what is right for a pod.
            mode: whether to act on it, or only to tell.
            leading: whether this process is the one that acts; see `lead`.
            limits: bounds in time and in numbers.
            clock: tells the present time, with a zone.
        """
        self._limits = limits or Limits()
        self._narrator = Narrator(telemetry, events)
        self._ledger = Ledger(selection, self._narrator, policy or Policy(), clock)
        self._ledger.mode, self._ledger.leading = mode, leading
        self._narrator.quiet = not leading
        self._patience = Patience(self._ledger, self._narrator, self._limits.blocked_after)
        self._performers: dict[Errand, Performer] = {
            "quit": Quitting(client, self._ledger, self._narrator, self._limits),
            "report": DeadProxies(client, self._ledger, self._narrator, self._limits),
        }
        selection.changed = self.reselect
        self._show(telemetry)

    def _show(self, telemetry: Telemetry) -> None:
        """Let the gauges ask; only who leads shows pods, so that a sum counts each of them once."""
        ledger = self._ledger
        telemetry.watched_pods.set_function(lambda: self.watched)
        telemetry.stuck_pods.set_function(lambda: len(self.stuck()))
        telemetry.blocked_pods.set_function(lambda: len(self.blocked()) if ledger.leading else 0)
        telemetry.lost_pods.set_function(lambda: len(self.lost()) if ledger.leading else 0)
        telemetry.would_quit_pods.set_function(lambda: ledger.would_quit() if ledger.leading else 0)

    def apply(self, resource: Pod) -> None:
        """A pod looks like this now."""
        if resource.status.phase != "Running" or resource.restart_policy == "Always":
            self.delete(key_of(resource), resource)
            return
        record = self._ledger.open(key_of(resource))
        record.left = False
        self._ledger.adopt(record, resource)
        self._steer(record)

    def delete(self, key: Key, _last: Pod | None) -> None:
        """A pod is gone, has left phase Running, or is not ours to see any more."""
        if record := self._ledger.find(key):
            record.left = True
            self._steer(record)

    def reselect(self, namespace: str) -> None:
        """A namespace was selected, or is no longer."""
        for record in self._ledger.all():
            if record.key.namespace == namespace:
                self._steer(record)

    def lead(self, leading: bool) -> None:
        """Become the one that acts, or be so no longer: then nothing new begins.

        Pods are followed all the time, so that whoever takes over finds all work at once.
        """
        self._ledger.leading, self._narrator.quiet = leading, not leading
        for record in self._ledger.all():
            self._steer(record)

    @property
    def watched(self) -> int:
        """How many pods are known."""
        return len(self._ledger)

    def stuck(self) -> list[Stuck]:
        """Pods whose proxy withstood several attempts, the oldest first; only the leader's."""
        return self._ledger.stuck()

    def blocked(self) -> list[Blocked]:
        """Pods that a container keeps from completing although another one is finished."""
        return self._ledger.blocked()

    def lost(self) -> list[Lost]:
        """Pods whose proxy is gone for good while a payload container may still run."""
        return self._ledger.lost()

    async def stop(self, patience: float) -> None:
        """Start nothing more; give what runs ``patience`` seconds to end, then drop it.

        Nothing is lost by that: whoever starts next finds the same pods.
        """
        self._ledger.stopping = True
        tasks: list[asyncio.Task[None]] = []
        for record in self._ledger.all():
            self._patience.look(record)
            if record.work and record.work.task:
                record.work.changed.set()
                tasks.append(record.work.task)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=patience)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _steer(self, record: Record) -> None:
        """See to it that a pod with something to do has its task, and that one without ends it."""
        self._ledger.tell(record)
        self._patience.look(record)
        if record.work:
            record.work.changed.set()
        elif errand := self._ledger.due(record):
            work = record.work = Work(errand, since=record.since or self._ledger.clock())
            work.task = asyncio.create_task(self._see_to(record, work), name=f"quit {record.key}")
            work.task.add_done_callback(lambda _task: self._finished(record))
        elif record.left:
            self._ledger.close(record)

    def _finished(self, record: Record) -> None:
        record.work = None
        self._steer(record)

    async def _see_to(self, record: Record, work: Work) -> None:
        """Do one errand until it is done, or not due any more."""
        performer = self._performers[work.errand]
        trying = Backoff(self._limits.first_retry, self._limits.last_retry)
        reading = Backoff(self._limits.first_retry, self._limits.last_reading)
        while self._ledger.due(record) == work.errand:
            if seconds := self._ledger.seconds(record):
                await self._ledger.rest(record, work, seconds)
                continue
            backoff, pause = trying, 0.0
            try:
                if await performer.step(record, work):
                    return
                work.failures += 1
            except KubeError as error:
                backoff, pause = reading, asked(error)
                work.failure = str(error)
                # That nobody answers, or has no time, is no failure of the pod's.
                busy = isinstance(error, ApiError) and error.code == 429
                work.failures += not (busy or isinstance(error, UnreachableError))
            except Exception:  # The one place: a pod that trips us must not stop the others.
                work.failure = "internal error, see the log"
                work.failures += 1
                self._narrator.tripped(record)
            if self._ledger.due(record) == work.errand:
                self._narrator.failed(record, work)
                await self._ledger.rest(record, work, max(backoff.next(), pause))
        try:
            await performer.drop(record, work)
        except Exception:  # As above.
            self._narrator.tripped(record)
