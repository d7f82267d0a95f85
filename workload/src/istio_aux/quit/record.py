"""What the controller remembers of one pod: a few facts, never the pod itself."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

import msgspec

from istio_aux.core.pod import Pod
from istio_aux.core.quit import Action, Ignore, Quit, Report, Wait
from istio_aux.kube.resources import Key

STUCK_AFTER = 3
"""Failures after which a pod is called stuck. The first may come too early for the agent."""

Verdict = Literal["ignore", "wait", "quit", "report"]


class Stuck(msgspec.Struct, frozen=True):
    """A pod whose proxy withstands, as ``/status`` shows it; ``since`` is when quitting began."""

    namespace: str
    name: str
    uid: str
    since: datetime
    attempts: int
    reason: str


@dataclass(slots=True)
class Work:
    """The making of one proxy exit, as long as it takes.

    Attributes:
        since: when the proxy was first found to be needed no more.
        attempts: how often it was told to exit.
        failures: how often that, or reading the pod, was refused or had no effect.
        failure: why the last one was no success.
        changed: set whenever the record, or the selection of its namespace, has changed.
        task: who does it.
    """

    since: datetime
    attempts: int = 0
    failures: int = 0
    failure: str = ""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


@dataclass(slots=True)
class Record:
    """One pod, by the newest decision on it.

    Attributes:
        key: which pod.
        verdict: the kind of the newest decision.
        reason: its reason, for people.
        until: when a decision to wait should be made again, if it names a time.
        version: resourceVersion of the pod that was decided on.
        left: the watch does not show the pod any more.
        work: set while there is something to do; there is never more than one.
    """

    key: Key
    verdict: Verdict = "ignore"
    reason: str = ""
    until: datetime | None = None
    version: int = 0
    left: bool = False
    work: Work | None = None

    def outdates(self, pod: Pod) -> bool:
        """Whether a newer pod than this one was decided on: a watch may lag behind a GET.

        resourceVersions compare as integers (KEP-5504); one that is no integer is always new.
        """
        return _version(pod) < self.version

    def take(self, pod: Pod, decision: Action) -> bool:
        """Adopt a decision on ``pod``; returns whether it differs from the last one."""
        verdict = verdict_of(decision)
        differs = (verdict, decision.reason) != (self.verdict, self.reason)
        # Ten thousand pods have a handful of reasons between them.
        self.verdict, self.reason = verdict, sys.intern(decision.reason)
        self.until = decision.until if isinstance(decision, Wait) else None
        self.version = _version(pod)
        return differs

    @property
    def wanted(self) -> bool:
        """Whether there is something to do about the pod, now or at a known time."""
        return not self.left and (self.verdict == "quit" or self.until is not None)

    def stuck(self) -> Stuck | None:
        """The pod as one that a person should look at, or None if it is none."""
        work = self.work
        if work is None or work.failures < STUCK_AFTER:
            return None
        return Stuck(*self.key, since=work.since, attempts=work.attempts, reason=work.failure)


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


def _version(pod: Pod) -> int:
    version = pod.metadata.resource_version
    return int(version) if version.isascii() and version.isdigit() else sys.maxsize
