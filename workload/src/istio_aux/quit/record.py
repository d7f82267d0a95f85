"""What the controller remembers of one pod: a few facts, never the pod itself."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

import msgspec

from istio_aux.core.quit import Action, Ignore, Quit, Report, Wait
from istio_aux.kube.resources import Key

STUCK_AFTER = 3
"""Failed attempts after which a pod is called stuck. The first may come too early for the agent."""

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
class Record:
    """One pod, by the newest decision on it.

    Attributes:
        key: which pod.
        verdict: the kind of the newest decision.
        reason: its reason, for people.
        until: when a decision to wait should be made again, if it names a time.
        left: the watch does not show the pod any more.
        since: when its proxy was first found to be needed no more.
        attempts: how often it was told to exit.
        failure: why the last attempt was not enough.
        task: who deals with the pod now; there is never more than one.
        changed: set whenever any of this, or the selection of its namespace, has changed.
    """

    key: Key
    verdict: Verdict = "ignore"
    reason: str = ""
    until: datetime | None = None
    left: bool = False
    since: datetime | None = None
    attempts: int = 0
    failure: str = ""
    task: asyncio.Task[None] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, decision: Action) -> bool:
        """Adopt a decision; returns whether it differs from the last one."""
        verdict = verdict_of(decision)
        differs = (verdict, decision.reason) != (self.verdict, self.reason)
        self.verdict, self.reason = verdict, decision.reason
        self.until = decision.until if isinstance(decision, Wait) else None
        self.changed.set()
        return differs

    @property
    def wanted(self) -> bool:
        """Whether there is something to do about the pod, now or at a known time."""
        return not self.left and (self.verdict == "quit" or self.until is not None)

    @property
    def stuck(self) -> bool:
        """Whether attempts enough have failed for a person to look at it."""
        return self.task is not None and self.attempts >= STUCK_AFTER and bool(self.failure)


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
