"""What the controller remembers of one pod: a few facts, never the pod itself."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from istio_aux.core import quit as quitting
from istio_aux.core.applications import LABEL
from istio_aux.core.pod import Pod
from istio_aux.core.quit import Action, Ignore, Quit, Report, Rung, Wait
from istio_aux.kube.resources import Key, shared
from istio_aux.quit.findings import Blocked, Lost, Stuck
from istio_aux.quit.proof import ProxyExit

STUCK_AFTER = 3
"""Failures after which a pod is called stuck. The first may come too early for the agent."""

LAG = timedelta(seconds=30)
"""For how long a watch may show what is older than a GET; usually that is milliseconds. Later the
versions themselves have gone back: a restored etcd counts on from an old one."""

Verdict = Literal["ignore", "wait", "quit", "report"]

Errand = Literal["quit", "report"]
"""What there can be to do about a pod: make its proxy exit, or deal with one that is dead."""


@dataclass(slots=True)
class Work:
    """One errand, as long as it takes.

    Attributes:
        errand: which.
        since: since when the pod is as it is, or when that was first found.
        attempts: how often the proxy was told to exit.
        rung: how it was told last.
        failures: how often that, or reading the pod, was refused or had no effect.
        failure: why the last one was no success.
        said: what was heard of each rung that failed, the one tried last at the end.
        exit: the proxy's, once the watch shows it after an attempt.
        changed: set whenever the record, or what may be done about it, has changed.
        task: who does it.
    """

    errand: Errand
    since: datetime
    attempts: int = 0
    rung: Rung | None = None
    failures: int = 0
    failure: str = ""
    said: dict[Rung, str] = field(default_factory=dict[Rung, str])
    exit: ProxyExit | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    def hear(self, rung: Rung, what: str) -> None:
        """Remember how an attempt failed: what each rung said, the newest first.

        A rung that is forbidden must stay visible when the next one fails for another reason.
        """
        self.said.pop(rung, None)
        self.said[rung] = what
        self.failure = "; ".join(f"{rung}: {text}" for rung, text in reversed(self.said.items()))


@dataclass(slots=True)
class Record:
    """One pod, by the newest decision on it.

    Attributes:
        key: which pod.
        application: whose it is, as its label says; empty if it is nobody's.
        verdict: the kind of the newest decision.
        reason: its reason, for people.
        since: since when a pod whose proxy has to exit is so, if it says so.
        until: when a decision to wait should be made again, if it names a time.
        blocked_by: payload containers that keep the proxy although another one is finished.
        blocked_since: when there first were any.
        version: resourceVersion of the pod that was decided on.
        seen: when that was decided.
        finished: when every payload container was first seen to be finished; None: not all are.
        node: where the pod is, while its proxy has to exit.
        left: the watch does not show the pod any more.
        told: whether the newest decision was told.
        delete: whether the newest decision asks for the pod's deletion.
        settled: whether all that the newest decision asks for was done.
        announced: reasons of the Events that a pod gets once.
        alarm: rings when the pod has been blocked for long.
        work: set while there is something to do; there is never more than one.
    """

    key: Key
    application: str = ""
    verdict: Verdict = "ignore"
    reason: str = ""
    since: datetime | None = None
    until: datetime | None = None
    blocked_by: tuple[str, ...] = ()
    blocked_since: datetime | None = None
    version: int = 0
    seen: datetime | None = None
    finished: datetime | None = None
    node: str = ""
    left: bool = False
    told: bool = True
    delete: bool = False
    settled: bool = False
    announced: tuple[str, ...] = ()
    alarm: asyncio.TimerHandle | None = None
    work: Work | None = None

    def outdates(self, pod: Pod, now: datetime) -> bool:
        """Whether a newer pod than this one was just decided on: a watch may lag behind a GET.

        resourceVersions compare as integers (KEP-5504); one that is no integer is always new.
        """
        just = self.seen is not None and now - self.seen < LAG
        return just and _version(pod) < self.version

    def take(self, pod: Pod, decision: Action, now: datetime) -> None:
        """Adopt a decision made on ``pod`` at a time."""
        verdict = verdict_of(decision)
        if (verdict, decision.reason) != (self.verdict, self.reason):
            self.told = False
        delete = deletes(decision)
        if (verdict, delete) != (self.verdict, self.delete):
            self.settled = False
        self.delete = delete
        # Ten thousand pods have a handful of reasons between them.
        self.verdict, self.reason = verdict, shared(decision.reason)
        done = isinstance(decision, Quit) or (isinstance(decision, Wait) and decision.until)
        self.finished = (self.finished or now) if done else None
        self.until = decision.until if isinstance(decision, Wait) else None
        quits = verdict == "quit" or self.until is not None
        ended = quitting.since(pod, decision) if quits else None
        self.since = min(ended, now) if ended else None
        by = decision.blocked_by if isinstance(decision, Wait) else ()
        self.blocked_by = tuple(map(shared, by))
        self.blocked_since = (self.blocked_since or now) if by else None
        self.version, self.seen = _version(pod), now
        self.node = (pod.spec.node_name or "") if verdict == "quit" else ""
        self.application = shared(pod.labels.get(LABEL, ""))

    def settle(self, decision: Action) -> None:
        """All that ``decision`` asks for was done; the newest one may ask for something else."""
        if (verdict_of(decision), deletes(decision)) == (self.verdict, self.delete):
            self.settled = True

    def first(self, event: str) -> bool:
        """Whether the pod has not had this Event yet; from now on it has."""
        if event in self.announced:
            return False
        self.announced += (event,)
        return True

    @property
    def errand(self) -> Errand | None:
        """What there is to do about the pod, now or at a known time."""
        if self.left or self.settled:
            return None
        if self.verdict == "quit" or self.until is not None:
            return "quit"
        return "report" if self.verdict == "report" else None

    def stuck(self) -> Stuck | None:
        """The pod as one whose proxy withstands, or None if it is none."""
        work = self.work
        if work is None or work.errand != "quit" or work.failures < STUCK_AFTER:
            return None
        return Stuck(*self.key, since=work.since, attempts=work.attempts, reason=work.failure)

    def blocked(self) -> Blocked | None:
        """The pod as one that a container keeps from completing, or None if it is none."""
        if self.left or not self.blocked_by:
            return None
        return Blocked(*self.key, by=list(self.blocked_by), reason=self.reason)

    def lost(self) -> Lost | None:
        """The pod as one whose proxy is dead, or None if it is none."""
        if self.left or self.verdict != "report":
            return None
        failure = self.work.failure if self.work else ""
        return Lost(*self.key, reason=f"{self.reason}; {failure}" if failure else self.reason)


def verdict_of(decision: Action) -> Verdict:
    """The kind of a decision in one word."""
    match decision:
        case Ignore():
            return "ignore"
        case Wait():
            return "wait"
        case Quit():
            return "quit"
        case Report():
            return "report"


def deletes(decision: Action) -> bool:
    """Whether the decision asks for the pod's deletion."""
    return isinstance(decision, Report) and decision.delete


def _version(pod: Pod) -> int:
    version = pod.metadata.resource_version
    return int(version) if version.isascii() and version.isdigit() else sys.maxsize
