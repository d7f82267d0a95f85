"""A Job, its pods, its operator, its users and us, in an order that chance decides.

The operator is what 1.9 pkg/controller.v1/common/job.go ReconcileJobs does: it sees the Job at once
and the end of a pod up to `LAG` seconds late, and it may be away.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

import msgspec
from istio_aux.model import owners
from istio_aux.model.owners import KINDS
from istio_aux.model.pod import Condition, Metadata
from istio_aux.repair import suspension
from istio_aux.repair.suspension import (
    AwaitPods,
    PodsLeft,
    Resume,
    Suspend,
    SuspensionLimits,
    Unmark,
)
from msgspec import structs
from unit.rules.training import alone, job, pod
from unit.store import merged

LIMITS = SuspensionLimits()
LAG = 1.5
START = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)


class World:
    """One second passes at each `act`.

    Attributes:
        by_others: whether the last to change ``suspend`` was not us.
        losses: when we suspended the Job, and its operator then deleted pods.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._pods = {name: pod(name) for name in ("a", "b")}
        self._seen_gone: float | None = None
        self._now = 0.0
        self._away = False
        self._followed: float | None = None
        self._gone: float | None = None
        self._since = START
        self.job = job("Running")
        self.by_others = False
        self.losses: set[datetime] = set()

    def happen(self) -> None:
        """Let something happen, or nothing."""
        match self._random.choice(["operate", "operate", "end", "away", "die", "user", ""]):
            case "operate":
                self._operate()
            case "end":
                self._end()
            case "away":
                self._away = not self._away
            case "die":
                self._followed = self._gone = None  # The next leader finds the mark.
            case "user" if self._random.random() < 0.2:
                self._switch(suspend=self._random.random() < 0.5)
                self.by_others = True
            case _:
                pass

    def act(self) -> None:
        """Look once, as `SuspendedJobs` does, or be too slow for that."""
        self._now += 1.0
        if self._random.random() < 0.2:
            return
        if not suspension.is_marked(self.job):
            self._followed = self._gone = None
            candidate = next(iter(self._pods.values()), None)
            if candidate and self._random.random() < 0.3:
                decision = suspension.begin(alone(self.job), candidate, self._time)
                if isinstance(decision, Suspend):
                    self._write(decision)
            return
        self._followed = self._now if self._followed is None else self._followed
        left = list(self._pods.values())
        self._gone = None if left else self._now if self._gone is None else self._gone
        age = (self._time - self._since).total_seconds()
        decision = suspension.follow(
            self.job, PodsLeft(left), limits=LIMITS,
            overdue=age >= suspension.allowed(left, self._since, LIMITS),
            waited=self._now - self._followed,
            gone=self._now - (self._now if self._gone is None else self._gone),
        )  # fmt: skip
        if isinstance(decision, Resume):
            for found in left:
                assert found.metadata.deletion_timestamp is None, "resumed before a pod was gone"
            lag = self._seen_gone is not None and self._now - self._seen_gone <= LAG
            assert not lag, "resumed before the operator knew"
        if isinstance(decision, Resume | Unmark):
            self._write(decision)
        else:
            assert isinstance(decision, AwaitPods)

    @property
    def _time(self) -> datetime:
        return START + timedelta(seconds=self._now)

    def calm_down(self) -> None:
        """From now on all do what they are to do, and nobody interferes."""
        self._away = False
        for _ in range(200):
            if not suspension.is_marked(self.job):
                return
            self._operate()
            self._end()
            self.act()

    def _operate(self) -> None:
        if self._away:
            return
        if self.job.run_policy.suspend:
            if self._pods and suspension.is_marked(self.job) and not self.by_others:
                self.losses.add(self._since)
            self._pods = {name: pod(name, deleting=True) for name in self._pods}
            self._say("Suspended")
        elif len(self._pods) < 2:
            self._pods = {name: pod(name) for name in ("a", "b")}
            self._say("Running")
        else:
            self._say("Running")

    def _end(self) -> None:
        """One pod that is on its way out ends."""
        for name, found in self._pods.items():
            if found.metadata.deletion_timestamp is not None:
                del self._pods[name]
                self._seen_gone = self._now
                return

    def _write(self, action: Suspend | Resume | Unmark) -> None:
        patch = suspension.patch(KINDS["TFJob"], self.job, action, self._time)
        if isinstance(action, Suspend):
            self._since = self._time
        metadata = merged(msgspec.to_builtins(self.job.metadata), patch["metadata"])
        self.job = structs.replace(self.job, metadata=msgspec.convert(metadata, Metadata))
        if not isinstance(action, Unmark):
            self._switch(suspend=isinstance(action, Suspend))
            self.by_others = False

    def _switch(self, *, suspend: bool) -> None:
        policy = structs.replace(self.job.run_policy, suspend=suspend)
        self.job = structs.replace(self.job, spec=owners.JobSpec(run_policy=policy))

    def _say(self, condition: str) -> None:
        status = owners.JobStatus(conditions=(Condition(type=condition, status="True"),))
        self.job = structs.replace(self.job, status=status)
