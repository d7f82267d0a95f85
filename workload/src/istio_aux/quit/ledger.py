"""All pods that are known, what is right for each, and whether this process may act on it now.

Only the keeping may live here, no effect: `core.quit.decide` says what is right, and selection,
mode and leadership say whether it is ours to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import datetime

from istio_aux.core import quit as quitting
from istio_aux.core.pod import Pod
from istio_aux.core.policy import Policy, QuitMode
from istio_aux.kube.resources import Key, shared
from istio_aux.quit.findings import Blocked, Lost, Stuck
from istio_aux.quit.narrator import Narrator
from istio_aux.quit.proof import proxy_exit
from istio_aux.quit.record import Errand, Record, Work
from istio_aux.quit.selection import Selection

SHORTEST = 0.25
"""Seconds that a pod with a grace period is left alone at least."""


class Ledger:
    """One record a pod.

    Attributes:
        mode: whether proxies are really told to exit.
        leading: whether this process is the one that acts.
        stopping: whether nothing may be begun any more.
        clock: tells the present time, with a zone.
    """

    def __init__(
        self,
        selection: Selection,
        narrator: Narrator,
        policy: Policy,
        clock: Callable[[], datetime],
    ) -> None:
        """Begin empty, leading, with mode ``on``."""
        self._selection, self._narrator, self._policy = selection, narrator, policy
        self._records: dict[Key, Record] = {}
        self.clock = clock
        self.mode, self.leading, self.stopping = QuitMode.ON, True, False

    def __len__(self) -> int:
        return len(self._records)

    def all(self) -> list[Record]:
        """Every record, in a list that stays as it is."""
        return list(self._records.values())

    def find(self, key: Key) -> Record | None:
        """The record of a pod, or None when the pod is not known."""
        return self._records.get(key)

    def open(self, key: Key) -> Record:
        """The record of a pod, a new one when the pod is not known."""
        if (record := self._records.get(key)) is None:
            key = Key(shared(key.namespace), key.name, key.uid)
            record = self._records[key] = Record(key)
        return record

    def close(self, record: Record) -> None:
        """Forget a pod."""
        self._records.pop(record.key, None)

    def adopt(self, record: Record, pod: Pod) -> quitting.Action:
        """Decide on a pod as it was just seen, and remember that unless something newer is known.

        The decision that is returned is the one on ``pod``.
        """
        now = self.clock()
        decision = quitting.decide(pod, self._policy, now, seen=record.finished or now)
        if not record.outdates(pod, now):
            record.take(pod, decision, now)
            if record.work and record.work.attempts:
                record.work.exit = proxy_exit(pod)
            self.tell(record)
        return decision

    def tell(self, record: Record) -> None:
        """Say what was decided, once, and only about pods that concern this process."""
        if not record.told and self.concerns(record):
            record.told = True
            self._narrator.decided(record, dry=self.mode is QuitMode.DRY_RUN)

    def concerns(self, record: Record) -> bool:
        """Whether the pod is ours to act on, if there is anything to do about it."""
        return (
            self.leading
            and not self.stopping
            and self.mode is not QuitMode.OFF
            and self._is_ours(record)
        )

    def due(self, record: Record) -> Errand | None:
        """What this process has to do about the pod, now or at a known time."""
        return record.errand if self.concerns(record) else None

    def seconds(self, record: Record) -> float:
        """How long the pod is to be left alone from now on; 0: not at all."""
        if record.until is None or (now := self.clock()) >= record.until:
            return 0.0
        # A node whose clock is ahead puts a short grace period off again and again.
        return max(SHORTEST, (record.until - now).total_seconds())

    async def rest(self, record: Record, work: Work, seconds: float) -> None:
        """Wait that long, or until the errand is not due any more."""
        try:
            async with asyncio.timeout(seconds):
                while self.due(record) == work.errand:
                    work.changed.clear()
                    await work.changed.wait()
        except TimeoutError:
            return

    def why_not(self, record: Record) -> str:
        """Why the pod is not ours to act on."""
        if self.stopping:
            return "this process is stopping"
        if not self.leading:
            return "another process leads"
        if not self._is_ours(record):
            return "the pod is no longer selected"
        return record.reason

    def stuck(self) -> list[Stuck]:
        """Pods whose proxy withstands, the oldest first; only who leads knows any."""
        found = (record.stuck() for record in self._records.values() if self.leading)
        return sorted((pod for pod in found if pod), key=lambda pod: pod.since)

    def blocked(self) -> list[Blocked]:
        """Selected pods that a container keeps from completing, by name."""
        found = (record.blocked() for record in self._selected())
        return sorted((pod for pod in found if pod), key=lambda pod: (pod.namespace, pod.name))

    def lost(self) -> list[Lost]:
        """Selected pods whose proxy is dead, by name."""
        found = (record.lost() for record in self._selected())
        return sorted((pod for pod in found if pod), key=lambda pod: (pod.namespace, pod.name))

    def would_quit(self) -> int:
        """How many selected pods only a dry run leaves waiting."""
        if self.mode is not QuitMode.DRY_RUN:
            return 0
        return sum(record.verdict == "quit" and not record.left for record in self._selected())

    def _selected(self) -> Iterable[Record]:
        return (record for record in self._records.values() if self._is_ours(record))

    def _is_ours(self, record: Record) -> bool:
        return self._selection.covers(record.key.namespace, record.application)
