"""The state of one pod's quit: what is known of the pod, what was tried, and what is next.

`PodState` holds what the newest decision says, and what is due by it for this process:

    verdict of the newest decision                                       due
    quit; wait, if it names the end of a grace period                    quit
    report                                                               report
    ignore; wait; the pod left the watch; not selected, not leading ...  nothing

A `Task` sees to what is due. It answers each observation with the next action to perform:

    step         observation                          next step    action
    READY        due, a grace period runs             READY        Sleep until its end
                 report is due, for the first time    READY        Sleep, lost_after
                 due                                  LOOKING      Look
                 not due, proxy exit seen             -            End(ProxyExit)
                 not due, attempts were made          LEAVING      Look
                 not due, no attempt was made         -            End()
    LOOKING      the pod is gone                      -            End(GONE)
                 not due                              -            End(Superseded)
                 decided: quit, in a dry run          -            End(DRY_RUN)
                 decided: quit                        SENDING      Send by the next rung
                 decided: report, to be deleted       LOOKING      Delete
                 deleted                              -            End(DELETED)
                 decided: report                      -            End(REPORTED)
                 decided otherwise: an older state    READY        Retry
    SENDING      an answer                            CONFIRMING   Sleep, confirm or doubt
    CONFIRMING   proxy exit seen                      -            End(ProxyExit)
                 time is over, or not due             JUDGING      Look
    JUDGING and  the pod is gone                      -            End(GONE)
    LEAVING      decided: not quit                    -            End(ProxyExit), End(Superseded)
                 decided: quit                        READY        Retry; LEAVING: End(Superseded)
    any          the API server failed                READY        Retry; not due: as READY
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Literal

import msgspec

from istio_aux.core import quit as quitting
from istio_aux.core.applications import LABEL, Applications
from istio_aux.core.pod import PROXY, Key, Pod, shared
from istio_aux.core.policy import Policy, QuitMode
from istio_aux.core.quit import Ignore, Quit, Report, Rung, Wait

STUCK_AFTER = 3
"""Failures after which a pod is stuck. The first attempt may come too early for the agent."""

LAG = timedelta(seconds=30)
"""How long a watch may lag behind a GET; usually that is milliseconds. Later, the versions
themselves have gone back: a restored etcd counts on from an old one."""

SHORTEST = 0.25
"""Shortest sleep in a grace period, in seconds: the clock of a node that is ahead may put the end
off again and again."""

_OLDER = "the API server answered with an older state of the pod"

Due = Literal["quit", "report"]
Verdict = Literal["ignore", "wait", "quit", "report"]
_VERDICTS: dict[type, Verdict] = {Ignore: "ignore", Wait: "wait", Quit: "quit", Report: "report"}


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds in seconds, and in numbers at once."""

    deadline: float = 10.0  # Of an attempt. Twelve at once took 1.6 s each on a busy node.
    # After an attempt that seems to have worked, until the pod is read: Istio <=1.25 drains for 5 s
    # first (mesh terminationDrainDuration), and the kubelet reports about 1 s late.
    confirm: float = 8.0
    doubt: float = 2.0  # The same after an attempt that seems to have failed.
    first_retry: float = 1.0
    last_retry: float = 300.0
    last_reading: float = 30.0  # The same where the API server failed: it may be back by then.
    at_once: int = 24  # First attempts.
    retries_at_once: int = 8  # Apart: pods that fail again and again do not delay the others.
    reports_at_once: int = 8  # Pods with a dead proxy that are read again, or deleted.
    # Before the second look at a dead proxy: a payload that ends with its proxy is no loss, and the
    # kubelet reports the two about a second apart.
    lost_after: float = 2.0
    blocked_after: float = 60.0  # Before the owner is told: most containers end a little apart.


class QuitScope(msgspec.Struct, kw_only=True):
    """What this process may do, and to which pods; the controller changes it."""

    policy: Policy = Policy()
    limits: Limits = Limits()
    mode: QuitMode = QuitMode.ON
    leading: bool = True
    stopping: bool = False
    namespaces: dict[str, str] = {}  # UIDs of the selected ones, by name.
    applications: Applications = Applications()  # Selected in whatever namespace.


class _Shown(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    uid: str


class Stuck(_Shown, frozen=True):
    """A pod whose proxy withstands, in `/status`; ``since`` is the end of its payload."""

    since: datetime
    attempts: int
    reason: str


class Blocked(_Shown, frozen=True):
    """A pod that the containers ``by`` keep from completing although another one is finished."""

    by: list[str]
    reason: str


class Lost(_Shown, frozen=True):
    """A pod whose proxy is gone for good while a payload container may still run."""

    reason: str


class ProxyExit(msgspec.Struct, frozen=True):
    """The proxy exited, so many whole seconds after the last other container (None: unknown)."""

    exit_code: int
    after_payload: float | None


class Superseded(msgspec.Struct, frozen=True):
    """Nothing is due any more."""

    reason: str


class Done(Enum):
    """Other ways in which a task ends."""

    GONE = auto()  # The pod no longer exists, or another pod has its name.
    DRY_RUN = auto()  # The proxy would be told to exit now.
    REPORTED = auto()  # A second look confirmed that the proxy is dead and the payload is not.
    DELETED = auto()  # The pod with the dead proxy is deleted.


Outcome = ProxyExit | Superseded | Done


class Sleep(msgspec.Struct, frozen=True):
    """Wait for so many seconds, or until nothing is due."""

    seconds: float


class Look(msgspec.Struct, frozen=True):
    """Read the pod."""


class Send(msgspec.Struct, frozen=True):
    """Tell the container ``proxy``, whose agent listens on ``port``, to exit."""

    rung: Rung
    proxy: str
    port: int


class Delete(msgspec.Struct, frozen=True):
    """Delete the pod if it still has this resourceVersion."""

    version: str


class Retry(msgspec.Struct, frozen=True):
    """Sleep longer each time, at least ``pause`` seconds; ``reading``: the API server failed."""

    reading: bool = False
    pause: float = 0.0


class End(msgspec.Struct, frozen=True):
    """The task is over; there is nothing to record without an outcome."""

    outcome: Outcome | None = None


Action = Sleep | Look | Send | Delete | Retry | End


class Answer(msgspec.Struct, frozen=True):
    """The answer to an attempt. It proves nothing; only the status of the container does.

    ``well``: it sounds like a success. ``sent``: the attempt may have had an effect.
    """

    well: bool
    sent: bool
    text: str


@dataclass(slots=True)
class PodState:
    """One pod, by the newest decision on it: a few facts, never the pod itself."""

    key: Key
    application: str = ""
    verdict: Verdict = "ignore"
    delete: bool = False  # The verdict is to report the pod, and to delete it.
    reason: str = ""
    settled: bool = False  # All that the verdict asks for is done.
    told: bool = True  # Verdict and reason are recorded.
    since: datetime | None = None  # End of the payload, while the proxy has to exit.
    until: datetime | None = None  # End of the grace period, while it runs.
    finished: datetime | None = None  # When the payload was first seen to be finished.
    blocked_by: tuple[str, ...] = ()
    blocked_since: datetime | None = None  # When that was first seen.
    node: str = ""  # While the proxy has to exit.
    left: bool = False  # The watch does not show the pod any more.
    version: int = 0
    seen: datetime | None = None
    announced: tuple[str, ...] = ()  # Reasons of the Events that a pod gets once.
    task: Task | None = None

    def observe(self, pod: Pod, scope: QuitScope, now: datetime) -> quitting.Action:
        """Decide on ``pod``, and remember the decision unless a newer state is known.

        resourceVersions compare as integers (KEP-5504); one that is no integer counts as new.
        """
        decision = quitting.decide(pod, scope.policy, now, seen=self.finished or now)
        text = pod.metadata.resource_version
        version = int(text) if text.isascii() and text.isdigit() else sys.maxsize
        if self.seen is not None and now - self.seen < LAG and version < self.version:
            return decision
        verdict, delete = _VERDICTS[type(decision)], _deletes(decision)
        self.told &= (verdict, decision.reason) == (self.verdict, self.reason)
        self.settled &= (verdict, delete) == (self.verdict, self.delete)
        # Ten thousand pods share a handful of texts.
        self.verdict, self.delete, self.reason = verdict, delete, shared(decision.reason)
        self.application = shared(pod.labels.get(LABEL, ""))
        wait = decision if isinstance(decision, Wait) else None
        self.until = wait.until if wait else None
        self.blocked_by = tuple(map(shared, wait.blocked_by)) if wait else ()
        self.blocked_since = (self.blocked_since or now) if self.blocked_by else None
        over = verdict == "quit" or self.until is not None
        self.finished = (self.finished or now) if over else None
        ended = quitting.since(pod, decision) if over else None
        self.since = min(ended, now) if ended else None
        self.node = (pod.spec.node_name or "") if verdict == "quit" else ""
        self.version, self.seen = version, now
        if self.task and self.task.attempts:
            self.task.exit = proxy_exit(pod)
        return decision

    def is_selected(self, scope: QuitScope) -> bool:
        """Whether its namespace, or its application, is selected."""
        namespace = self.key.namespace
        covers = scope.applications.covers
        return namespace in scope.namespaces or covers(namespace, self.application)

    def concerns(self, scope: QuitScope) -> bool:
        """Whether this process acts on the pod, if anything is due, if only in a dry run."""
        acts = scope.leading and not scope.stopping and scope.mode is not QuitMode.OFF
        return acts and self.is_selected(scope)

    def due(self, scope: QuitScope) -> Due | None:
        """What this process has to do about the pod, now or after the grace period."""
        if self.left or self.settled or not self.concerns(scope):
            return None
        if self.verdict == "quit" or self.until is not None:
            return "quit"
        return "report" if self.verdict == "report" else None

    def why_not(self, scope: QuitScope) -> str:
        """Why nothing is due."""
        if scope.stopping:
            return "this process is stopping"
        if not scope.leading:
            return "another process leads"
        return self.reason if self.is_selected(scope) else "the pod is no longer selected"

    def first(self, event: str) -> bool:
        """Whether the pod has not had this Event yet; from now on it has."""
        known = event in self.announced
        self.announced += () if known else (event,)
        return not known

    def alarm(self, scope: QuitScope, now: datetime) -> float | None:
        """Seconds until the owner of a blocked pod is to be told, or None."""
        told = "ProxyQuitBlocked" in self.announced
        if self.blocked_since is None or told or self.left or not self.concerns(scope):
            return None
        waited = (now - self.blocked_since).total_seconds()
        return max(0.0, scope.limits.blocked_after - waited)

    def stuck(self) -> Stuck | None:
        """The pod as stuck, or None if it is not."""
        task = self.task
        if task is None or task.due != "quit" or task.failures < STUCK_AFTER:
            return None
        return Stuck(*self.key, since=task.since, attempts=task.attempts, reason=task.failure)

    def blocked(self, scope: QuitScope) -> Blocked | None:
        """The pod as blocked, or None if it is not."""
        if self.left or not self.blocked_by or not self.is_selected(scope):
            return None
        return Blocked(*self.key, by=list(self.blocked_by), reason=self.reason)

    def lost(self, scope: QuitScope) -> Lost | None:
        """The pod as lost, or None if it is not."""
        if self.left or self.verdict != "report" or not self.is_selected(scope):
            return None
        failure = self.task.failure if self.task else ""
        return Lost(*self.key, reason=f"{self.reason}; {failure}" if failure else self.reason)


class Step(Enum):
    """Where a task stands; see the table at the top."""

    READY = auto()
    LOOKING = auto()
    SENDING = auto()
    CONFIRMING = auto()
    JUDGING = auto()
    LEAVING = auto()


@dataclass(slots=True)
class Task:
    """What is done about one pod, from the moment it is due until it is not."""

    state: PodState
    due: Due
    since: datetime  # End of the payload, or when the task began.
    step: Step = Step.READY
    attempts: int = 0
    rung: Rung | None = None  # Of the last attempt.
    failures: int = 0  # Attempts without an effect, and requests that were refused.
    failure: str = ""
    exit: ProxyExit | None = None  # Once it is seen after an attempt.
    _answers: dict[Rung, str] = field(default_factory=dict[Rung, str])
    _well: bool = False
    _waited: bool = False

    def is_due(self, scope: QuitScope) -> bool:
        """Whether there is still something to do, now or after the grace period."""
        return self.state.due(scope) == self.due

    def awake(self, scope: QuitScope, now: datetime) -> Action:
        """The task begins, or a sleep is over."""
        if self.step is Step.CONFIRMING:
            return End(self.exit) if self.exit else self._look(Step.JUDGING)
        if not self.is_due(scope):
            return self._leave(scope)
        until = self.state.until
        if until is not None and now < until:
            return Sleep(max(SHORTEST, (until - now).total_seconds()))
        if self.due == "report" and not self._waited and "ProxyLost" not in self.state.announced:
            self._waited = True
            return Sleep(scope.limits.lost_after)
        return self._look(Step.LOOKING)

    def looked(self, pod: Pod | None, scope: QuitScope, now: datetime) -> Action:
        """The pod was read; None: it is gone, or another pod has its name."""
        if pod is None:
            self.state.left = True
            return End(Done.GONE if self.due == "quit" else None)
        decision = self.state.observe(pod, scope, now)
        if self.due == "report":
            return self._confirmed(pod, decision, scope)
        if self.step is not Step.LOOKING:
            return self._judged(pod, decision, scope)
        if not isinstance(decision, Quit):
            return self._not_quit(pod, decision, scope)
        return self._attempt(decision, scope) if self.is_due(scope) else self.superseded(scope)

    def superseded(self, scope: QuitScope) -> Action:
        """Nothing is due any more when the pod is to be read, or was read."""
        return End(Superseded(self.state.why_not(scope)) if self.due == "quit" else None)

    def answered(self, rung: Rung, answer: Answer, scope: QuitScope) -> Action:
        """The proxy was told to exit."""
        # A rung that is forbidden stays visible when the next one fails for another reason.
        self._answers.pop(rung, None)
        self._answers[rung] = answer.text
        self._well, self.step = answer.well, Step.CONFIRMING
        seconds = scope.limits.confirm if answer.well else scope.limits.doubt
        return Sleep(seconds if answer.sent else 0.0)

    def deleted(self) -> Action:
        """The pod with the dead proxy was deleted."""
        self.state.settled = True
        return End(Done.DELETED)

    def failed(
        self,
        why: str,
        scope: QuitScope,
        *,
        counts: bool = True,
        reading: bool = True,
        pause: float = 0,
    ) -> Action:
        """A request failed; ``counts``: because of the pod, not because of the API server.

        An attempt of which nothing was sent is none, and the same rung is next.
        """
        if self.step is Step.SENDING:
            self.attempts, self.rung = self.attempts - 1, next(reversed(self._answers), None)
        if self.step is Step.LEAVING:
            return End(Superseded(f"not known: {why}"))
        self.step, self.failure, self.failures = Step.READY, why, self.failures + counts
        return Retry(reading, pause) if self.is_due(scope) else self._leave(scope)

    def _look(self, step: Step) -> Action:
        self.step = step
        return Look()

    def _leave(self, scope: QuitScope) -> Action:
        """Nothing is due: find out how it ended if the proxy was told to exit."""
        if self.exit:
            return End(self.exit)
        if not self.attempts or scope.stopping:
            return End()
        if self.state.concerns(scope):
            return self._look(Step.LEAVING)
        return self.superseded(scope)

    def _attempt(self, decision: Quit, scope: QuitScope) -> Action:
        """The pod was read, and the proxy has to exit now."""
        if scope.mode is QuitMode.DRY_RUN:
            self._settle(decision)
            return End(Done.DRY_RUN)
        self.step, self.attempts = Step.SENDING, self.attempts + 1
        self.rung = decision.rungs[(self.attempts - 1) % len(decision.rungs)]
        return Send(self.rung, decision.proxy, decision.status_port)

    def _judged(self, pod: Pod, decision: quitting.Action, scope: QuitScope) -> Action:
        """The pod was read after an attempt."""
        if not isinstance(decision, Quit) and (self.step is Step.JUDGING or not self.is_due(scope)):
            return self._not_quit(pod, decision, scope)
        if self.step is Step.LEAVING:
            return self.superseded(scope)
        if self._well and self.rung:
            self._answers[self.rung] += f", but {PROXY} still runs"
        answers = (f"{rung}: {text}" for rung, text in reversed(self._answers.items()))
        return self.failed("; ".join(answers), scope, reading=False)

    def _not_quit(self, pod: Pod, decision: quitting.Action, scope: QuitScope) -> Action:
        """The pod needs no quit now, or a newer state of it is known."""
        if self.is_due(scope):
            return End() if self.state.until else self.failed(_OLDER, scope, reading=False)
        exited = proxy_exit(pod) if self.attempts else None
        return End(exited or Superseded(decision.reason))

    def _confirmed(self, pod: Pod, decision: quitting.Action, scope: QuitScope) -> Action:
        """The second look at a pod with a dead proxy."""
        if not self.is_due(scope):
            return End()
        if not isinstance(decision, Report):
            return self.failed(_OLDER, scope, reading=False)
        if decision.delete and scope.mode is QuitMode.ON:
            return Delete(pod.metadata.resource_version)
        self._settle(decision)
        if not self.state.settled:
            return self.failed(_OLDER, scope, reading=False)
        self.failure = ""
        return End(Done.REPORTED)

    def _settle(self, decision: quitting.Action) -> None:
        """All that ``decision`` asks for was done; a newer one may ask for something else."""
        newest = (self.state.verdict, self.state.delete)
        self.state.settled |= (_VERDICTS[type(decision)], _deletes(decision)) == newest


def _deletes(decision: quitting.Action) -> bool:
    return isinstance(decision, Report) and decision.delete


def proxy_exit(pod: Pod) -> ProxyExit | None:
    """The exit of the proxy; None as long as its status does not show one."""
    ended = pod.ended(PROXY)
    if ended is None:
        return None
    names = {status.name for status in pod.status.container_statuses or ()} - {PROXY}
    others = [other.finished_at for name in names if (other := pod.ended(name))]
    at, last = ended.finished_at, max(filter(None, others), default=None)
    after = max((at - last).total_seconds(), 0.0) if at and last else None
    return ProxyExit(ended.exit_code, after)
