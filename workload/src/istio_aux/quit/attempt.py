"""What is due about one pod for this process, when, and the attempts that do it.

    newest decision                               due
    quit, wait until the end of a grace period,
    wait for the version of the kubelet           quit
    report                                        report, after lost_after
    blocked_by some containers                    its stage: blocked or ending, after blocked_after,
                                                  unstarted, after unstarted_after; held, after
                                                  held_after; or deleted, after its grace and
                                                  TERMINATING_FOR
    any other                                     nothing

Nothing is due for a pod that left the watch or is not selected, or while another process leads.

A `Task` does what is due, about one container of the pod. It answers each observation with the next
action to perform. ``told``: the proxy was told to exit, and the result is not known.

    told  observation                                       next
    no    `awake`: due later                                Sleep
    no    `awake`: due                                      Look
    no    `awake`: blocked is due                           End(BLOCKED)
    no    `awake`, `failed`: not due, without an attempt    End
    no    `awake`, `failed`: not due, the exit is known     End(EXITED)
    no    `awake`, `failed`: another process acts, or none  End(SUPERSEDED)
    no    `awake`, `failed`: not due otherwise, told now    Look
    no    `looked`: the pod is gone                         End(GONE)
    no    `looked`, `superseded`: a quit is not due         End(SUPERSEDED)
    no    `looked`, `superseded`: a report is not due       End
    no    `looked`, `superseded`: not due, and it exited    End(EXITED)
    no    `looked`: quit                                    Send
    no    `looked`: the grace period runs                   End
    no    `looked`: quit, in a dry run                      End(DRY_RUN)
    no    `looked`: held, or quit of a pod that was held    Ask
    no    `asked`: held, the proxy is not ready             End(BLOCKED)
    no    `asked`: held, the proxy is ready                 End
    no    `asked`: held, the proxy did not say              Retry
    no    `asked`: quit, the proxy is ready                 Retry
    no    `asked`: quit otherwise                           Send
    no    `looked`: report                                  End(REPORTED)
    no    `looked`: report, and the policy deletes          Delete
    no    `looked`: an older state                          Retry
    no    `answered`: told now                              Sleep
    no    `deleted`: the pod                                End(DELETED)
    no    `failed`: due                                     Retry
    yes   `awake`: the watch shows the exit                 End(EXITED)
    yes   `awake`: the sleep is over, or it is not due      Look
    yes   `looked`: the pod is gone                         End(GONE)
    yes   `looked`, `superseded`: it exited                 End(EXITED)
    yes   `looked`, `superseded`: not due                   End(SUPERSEDED)
    yes   `looked`: quit, not told any more                 Retry
    yes   `failed`: due, not told any more                  Retry
    yes   `failed`: not due                                 End(SUPERSEDED)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

import msgspec

from istio_aux.model import kept
from istio_aux.model.applications import Applications, PodOptions, application_of
from istio_aux.model.findings import Code
from istio_aux.model.found import Found, State
from istio_aux.model.moment import Moment
from istio_aux.model.names import quit_command
from istio_aux.model.pod import PROXY, Key, interned, shared
from istio_aux.model.policy import QuitLimits, QuitMode, QuitPolicy
from istio_aux.model.resources import Requests
from istio_aux.model.sidecars import AttemptResult, SidecarRule
from istio_aux.quit import rules
from istio_aux.quit.facts import PodFacts
from istio_aux.quit.rules import Quit, Report, Way

STUCK_AFTER = 3  # Failures. The first attempt may come too early for the agent.
SHORTEST = 0.25  # Seconds of a sleep.
_OLDER = "the API server answered with an older state of the pod"
# Seconds by which a watch may lag behind a GET. If an older state comes later, etcd was restored.
LAG = 30.0

MOST_BLOCKERS = 6  # Blocking containers whose names are stored: a pod may have thousands.
UNDECIDED = rules.Ignore(reason="")

Due = Literal["quit", "report"] | rules.Stage


class QuitScope(msgspec.Struct, kw_only=True):
    """What this process may do, and to which pods. The controller changes it in place."""

    policy: QuitPolicy = QuitPolicy()
    limits: QuitLimits = QuitLimits()
    mode: QuitMode = QuitMode.ENABLED
    leading: bool = True
    stopping: bool = False
    options: PodOptions = PodOptions()
    istiod: str = ""  # Whether an injector is live, for people; empty: not known.
    namespaces: set[str] = set()  # The selected namespaces.
    applications: Applications = Applications()  # Selected in any namespace.

    def left_out(self, namespace: str, application: str, *, chosen: bool) -> str | None:
        """Why a pod is left alone, whatever its containers do; None: it is not.

        ``chosen``: the option pod-selector matches its labels.
        """
        why = self.options.left_out(
            namespace,
            selected=namespace in self.namespaces,
            chosen=chosen,
            covered=self.applications.covers(namespace, application),
        )
        return "quit: disabled" if not why and self.mode is QuitMode.DISABLED else why


@dataclass(slots=True)
class PodState:
    """One pod, by the newest decision on it: a few facts, never the pod itself."""

    key: Key
    application: str = ""
    chosen: bool = True  # The selector of pods matches its labels.
    node: str = ""
    decision: rules.Action = UNDECIDED  # The newest decision.
    settled: bool = False  # Everything that this decision asks for is done.
    recorded: bool = True  # This decision is recorded.
    target: str = PROXY  # The container that has to exit next.
    unready: bool = False  # The proxy of a held pod has said that it is not ready.
    needs_kubelet: bool = False  # The decision needs the version of the pod's kubelet.
    first_seen: Moment | None = None  # When decisions began to ask for the same action.
    witnessed: float | None = None  # When this process saw the payload end (monotonic).
    since: datetime | None = None  # `PodFacts.held_since`, never later than now.
    overdue_at: float = 0.0  # Seconds since 1970: when a deleted pod is overdue.
    requests: Requests | None = None  # `PodFacts.requests`.
    unwatched: bool = False  # The watch does not show the pod any more.
    version: int = 0
    version_seen: float | None = None  # When `version` came, by the monotonic clock.
    announced: tuple[str, ...] = ()  # Reasons of the Events that a pod gets once.
    task: Task | None = None

    def decide_on(self, facts: PodFacts, scope: QuitScope, now: Moment) -> rules.Action:
        """Decide on a pod, and remember the decision unless a newer state is known.

        resourceVersions compare as integers (KEP-5504); one that is no integer counts as new.
        """
        before = None if self.needs_kubelet else self.asks_for
        if before == "quit" and self.first_seen:
            finished = self.first_seen
        else:  # If the payload ended before this process saw the pod, only the node knows when.
            finished = (rules.payload_end(facts, now) if self.version_seen is None else None) or now
        decision = kept.brief(rules.decide(facts, now, seen=finished))
        pod = facts.pod
        version = pod.metadata.version
        lags = self.version_seen is not None and now.monotonic - self.version_seen < LAG
        if lags and version < self.version:
            return decision
        same = self.is_newest(decision)
        # A pod that starts changes often, and only waits: such decisions are not recorded.
        starts = (
            pod.status.phase == "Pending"
            and decision.stage != "unstarted"
            and not isinstance(decision, rules.Quit)
        )
        self.recorded = (self.recorded and same) or starts
        self.settled &= same
        self.decision = interned(
            msgspec.structs.replace(decision, blocked_by=decision.blocked_by[:MOST_BLOCKERS])
        )
        self.application = shared(application_of(pod.metadata))
        self.node = shared(pod.spec.node_name or "")
        self.chosen = scope.options.pods.matches(pod.labels)
        self.needs_kubelet = isinstance(decision, rules.Wait) and facts.needs_kubelet
        if isinstance(decision, rules.Quit | rules.Wait):
            self.target = decision.target
        if self.asks_for != before:
            self.unready = False
            self.first_seen = finished if self.asks_for == "quit" else now
            if self.asks_for == "quit":
                self.witnessed = None if self.version_seen is None else now.monotonic
        held = self.asks_for not in {None, "report"}
        since = facts.held_since if held else None
        self.since = min(since, now.date) if since else None
        self.requests = facts.requests if held else None
        gone_by = facts.gone_by
        self.overdue_at = gone_by.timestamp() + rules.TERMINATING_FOR if gone_by else 0.0
        self.version = version
        self.version_seen = now.monotonic
        if self.task:
            waited = None if self.witnessed is None else now.monotonic - self.witnessed
            self.task.exit = exit_of(self.task.target, facts, waited, now)
        return decision

    @property
    def until(self) -> Moment | None:
        """The end of the grace period, while it runs."""
        return self.decision.until if isinstance(self.decision, rules.Wait) else None

    @property
    def asks_for(self) -> Due | None:
        """What the newest decision asks for, now or later."""
        if isinstance(self.decision, rules.Quit) or self.until is not None or self.needs_kubelet:
            return "quit"
        if isinstance(self.decision, rules.Report):
            return "report"
        return self.decision.stage if self.decision.blocked_by else None

    def begins(self, limits: QuitLimits) -> float | None:
        """When to do what the decision asks for (monotonic); None: now."""
        if self.asks_for == "quit" or self.first_seen is None:
            return self.until.monotonic if self.until else None
        delays = {
            "report": limits.lost_after,
            "unstarted": limits.unstarted_after,
            "held": limits.held_after,
            "deleted": max(0.0, self.overdue_at - self.first_seen.wall),
        }
        return self.first_seen.monotonic + delays.get(self.asks_for or "", limits.blocked_after)

    def settle(self, decision: rules.Action) -> bool:
        """Note that everything ``decision`` asks for is done, if it is the newest decision."""
        self.settled = self.is_newest(decision)
        return self.settled

    def is_newest(self, decision: rules.Action) -> bool:
        """Whether ``decision`` is the newest one."""
        return (decision.action, decision.reason) == (self.decision.action, self.decision.reason)

    def left_out(self, scope: QuitScope) -> str | None:
        """Why no process acts on the pod; see `QuitScope.left_out`."""
        return scope.left_out(self.key.namespace, self.application, chosen=self.chosen)

    def obstacle(self, scope: QuitScope) -> str | None:
        """Why this process does not act on the pod, whatever is due; a dry run acts."""
        if scope.stopping:
            return "this process is stopping"
        return self.left_out(scope) if scope.leading else "another process leads"

    def due(self, scope: QuitScope) -> Due | None:
        """What this process has to do about the pod, now or later."""
        return None if self.unwatched or self.settled or self.obstacle(scope) else self.asks_for

    def reason(self, scope: QuitScope) -> str:
        """The reason of the decision, and what is known beside the pod."""
        more = ("the proxy is not ready", scope.istiod) if self.unready else ()
        return "; ".join(filter(None, (rules.lasting_reason(self.decision), *more)))

    def trouble(self, scope: QuitScope, now: Moment) -> Found | None:
        """What is wrong with the pod, if anything is."""
        decision = self.decision
        task = self.task
        failure = task.failure if task else ""
        if self.unwatched or self.left_out(scope):
            return None
        begins = self.begins(scope.limits)
        lasting = (begins is None or now.monotonic >= begins) and (
            decision.stage != "held" or self.unready
        )
        if decision.blocked_by and (lasting or decision.stage == "blocked"):
            return self._found(
                "unstarted" if decision.stage in {"unstarted", "held"} else "blocked",
                self.reason(scope),
                since=self.since,
                by=tuple(map(str, decision.blocked_by)),
                fix=decision.fix,
                lasting=lasting,
            )
        if isinstance(decision, rules.Report):
            reason = "; ".join(filter(None, (self.reason(scope), failure)))
            return self._found("lost", reason, requests=None, lasting=lasting)
        if scope.mode is QuitMode.DRY_RUN and isinstance(decision, Quit):
            return self._found("would quit", self.reason(scope), code="")
        if not (scope.leading and task and task.due == "quit" and task.failures >= STUCK_AFTER):
            return None
        reason = self.reason(scope)
        done = reason.startswith(rules.FINISHED)
        return self._found(
            "stuck",
            failure + (reason.removeprefix(rules.FINISHED) if done else f"; {reason}"),
            since=self.since or (self.first_seen and self.first_seen.date),
            attempts=task.attempts,
            by=() if task.target == PROXY else (task.target,),
        )

    def _found(self, state: State | Literal["would quit"], reason: str, **more: Any) -> Found:
        more = {"code": self.decision.code or "", "requests": self.requests, **more}
        return Found(**self.key._asdict(), state=state, reason=reason, **more)


class QuitOutcome(StrEnum):
    """How a task ended."""

    EXITED = "exited"
    EXITED_NONZERO = "exited-nonzero"
    SUPERSEDED = "superseded"  # Nothing is due any more.
    GONE = "gone"  # The pod no longer exists, or another pod has its name.
    DRY_RUN = "dry-run"  # The proxy would be told to exit now.
    REPORTED = "reported"  # A second check confirmed that the pod is lost.
    DELETED = "deleted"  # The pod that lost its proxy is deleted.
    BLOCKED = "blocked"  # Containers have kept the pod from starting or completing for long.


class Sleep(msgspec.Struct, frozen=True):
    """Wait for so many seconds, or until nothing is due."""

    seconds: float


class Look(msgspec.Struct, frozen=True):
    """Read the pod."""


class Send(msgspec.Struct, frozen=True):
    """Tell the proxy, whose agent listens on ``port``, to exit, or another sidecar by its rule."""

    way: Way
    port: int
    rule: SidecarRule | None = None

    @property
    def request(self) -> str:
        """What is sent to the port by `Way.PORT_FORWARD`."""
        return f"POST {self.rule.path if self.rule else '/quitquitquit'}"

    @property
    def command(self) -> tuple[str, ...]:
        """What runs in the proxy's container by any other way."""
        return quit_command(self.port if self.way is Way.EXEC else None)


class Ask(msgspec.Struct, frozen=True):
    """Ask the proxy whether it is ready."""


class Delete(msgspec.Struct, frozen=True):
    """Delete the pod if it still has this resourceVersion."""

    version: str


class Retry(msgspec.Struct, frozen=True):
    """Sleep longer each time, at least ``pause`` seconds; ``reading``: the API server failed."""

    reading: bool = False
    pause: float = 0.0


class End(msgspec.Struct, frozen=True):
    """The task is finished; there is nothing to record without an outcome.

    ``after_payload``: seconds from the last payload container's exit to that of `target`.
    """

    outcome: QuitOutcome | None = None
    reason: str = ""
    after_payload: float | None = None

    def __str__(self) -> str:
        """The reason, and how long the container ran on."""
        if self.after_payload is None:
            return self.reason
        return f"{self.reason}, {round(self.after_payload, 1):.15g} s after the payload"


Action = Sleep | Look | Send | Ask | Delete | Retry | End


@dataclass(slots=True)
class Task:
    """What is done about one pod, from the moment it is due until it is not."""

    state: PodState
    due: Due
    told: bool = False  # The proxy was told to exit, and the result is not known.
    attempts: int = 0
    failures: int = 0  # Attempts without an effect, and requests that were refused.
    failure: str = ""
    exit: End | None = None  # How `target` exited, by the newest state of the pod.
    target: str = field(init=False)  # The container that is told to exit.
    requests: Requests | None = field(init=False)  # `PodState.requests`, when the task began.
    payload_started: bool = field(init=False)  # Whether its payload has started.
    _answers: dict[Way, str] = field(default_factory=dict[Way, str])  # The newest last.
    _well: bool = False

    def __post_init__(self) -> None:
        """Copy what the state overwrites with its next decision."""
        self.target = self.state.target
        self.requests = self.state.requests
        self.payload_started = self.state.decision.code is not Code.HELD_BACK

    @property
    def way(self) -> Way | None:
        """The way of the last attempt."""
        return next(reversed(self._answers), None)

    def is_due(self, scope: QuitScope) -> bool:
        """Whether there is still something to do, now or later."""
        return self.state.due(scope) == self.due and self.state.target == self.target

    def awake(self, scope: QuitScope, now: Moment) -> Action:
        """The task begins, or a sleep is over."""
        if self.told:
            return self.exit or Look()
        if not self.is_due(scope):
            return self._leave(scope)
        begins = self.state.begins(scope.limits)
        if begins is not None and now.monotonic < begins:
            return Sleep(max(SHORTEST, begins - now.monotonic))
        if self.due not in {"quit", "report", "held"}:
            self.state.settled = True
            return End(QuitOutcome.BLOCKED, rules.lasting_reason(self.state.decision))
        return Look()

    def looked(self, facts: PodFacts | None, scope: QuitScope, now: Moment) -> Action:
        """The pod was read; None: it is gone, or another pod has its name."""
        if facts is None:
            self.state.unwatched = True
            return End(QuitOutcome.GONE, "the pod is gone") if self.due == "quit" else End()
        decision = self.state.decide_on(facts, scope, now)
        if not self.is_due(scope):
            return self.superseded(scope)
        if self.due == "report":
            return self._confirmed(facts, decision, scope)
        if self.due == "held":
            newest = self.state.is_newest(decision)
            return Ask() if newest else self.failed(_OLDER, scope, reading=False)
        if not isinstance(decision, Quit) or decision.target != self.target:
            early = decision == self.state.decision  # The grace period has not ended yet.
            return End() if early else self.failed(_OLDER, scope, reading=False)
        return self._still_runs(decision, scope) if self.told else self._attempt(decision, scope)

    def superseded(self, scope: QuitScope) -> End:
        """The pod was read, and nothing is due any more."""
        if self.attempts and self.exit:
            return self.exit
        if self.due != "quit":
            return End()
        return End(QuitOutcome.SUPERSEDED, self.state.obstacle(scope) or self.state.decision.reason)

    def answered(self, way: Way, answer: AttemptResult, scope: QuitScope) -> Action:
        """The proxy was told to exit."""
        self.attempts += 1
        self.told = True
        self._well = answer.well
        # A way that is forbidden stays visible when the next one fails for another reason.
        self._answers.pop(way, None)
        self._answers[way] = answer.text
        seconds = scope.limits.confirm if answer.well else scope.limits.confirm_failed
        return Sleep(seconds if answer.sent else 0.0)

    def asked(self, ready: bool | None, scope: QuitScope) -> Action:
        """A proxy that holds its payload was asked whether it is ready; None: it did not say.

        The pod's status may not show that: the kubelet pulls an image, or has started others.
        """
        decision = self.state.decision
        if not self.is_due(scope):  # The decision has changed meanwhile.
            return self.superseded(scope)
        if isinstance(decision, Quit):
            why = "the proxy is ready: its hook has ended, and a container may have started"
            return self.failed(why, scope, counts=False) if ready else self._send(decision)
        if ready is None:
            return self.failed("not known whether the proxy is ready", scope, counts=False)
        self.state.settled = True
        self.state.unready = not ready
        return End(QuitOutcome.BLOCKED, self.state.reason(scope)) if self.state.unready else End()

    def deleted(self) -> Action:
        """The pod that lost its proxy was deleted."""
        self.state.settled = True
        return End(QuitOutcome.DELETED, self.state.decision.reason)

    def failed(
        self,
        why: str,
        scope: QuitScope,
        *,
        counts: bool = True,
        reading: bool = True,
        pause: float = 0,
    ) -> Action:
        """A request failed, or had no effect.

        It ``counts`` unless the API server is busy, there was no answer, or the proxy is ready.
        A request that was not sent is no attempt, so the same way is tried next.
        """
        due = self.is_due(scope)
        if self.told and not due:
            return End(QuitOutcome.SUPERSEDED, f"not known: {why}")
        self.told = False
        self.failure = why
        self.failures += counts
        return Retry(reading, pause) if due else self._leave(scope)

    def _leave(self, scope: QuitScope) -> Action:
        """Nothing is due: find out how the proxy ended if it was told to exit."""
        if self.attempts and self.exit:
            return self.exit
        if not self.attempts or scope.stopping:
            return End()
        if self.state.obstacle(scope):
            return self.superseded(scope)
        self.told = True
        return Look()

    def _attempt(self, decision: Quit, scope: QuitScope) -> Action:
        if scope.mode is QuitMode.DRY_RUN:
            if not self.state.settle(decision):
                return self.failed(_OLDER, scope, reading=False)
            return End(QuitOutcome.DRY_RUN, decision.reason)
        return Ask() if decision.code is Code.HELD_BACK else self._send(decision)

    def _send(self, decision: Quit) -> Send:
        return Send(decision.ways[self.attempts % len(decision.ways)], decision.port, decision.rule)

    def _still_runs(self, decision: Quit, scope: QuitScope) -> Action:
        if self._well and self.way:
            self._answers[self.way] += f", but {self.target} still runs"
        answers = [f"{way}: {text}" for way, text in reversed(self._answers.items())]
        if decision.rule and decision.rule.switch and not self._well:
            answers.append(f"{self.target} needs {decision.rule.switch}")
        return self.failed("; ".join(answers), scope, reading=False)

    def _confirmed(self, facts: PodFacts, decision: rules.Action, scope: QuitScope) -> Action:
        if isinstance(decision, Report) and decision.delete and scope.mode is QuitMode.ENABLED:
            return Delete(facts.pod.metadata.resource_version)
        if not self.state.settle(decision):
            return self.failed(_OLDER, scope, reading=False)
        self.failure = ""
        return End(QuitOutcome.REPORTED, decision.reason)


def exit_of(
    container: str,
    facts: PodFacts,
    waited: float | None,
    now: Moment,
) -> End | None:
    """The end of a task whose container has exited; None while its status does not show that.

    ``waited`` is the number of seconds since this process saw the payload end. It is exact, but is
    clamped to within 1 s of the difference of the kubelet's times, which are whole seconds. That
    difference is clamped to the pod's age.
    """
    ended = facts.exits.get(container)
    if ended is None:
        return None
    at = facts.ended(container)
    last = facts.payload_ended
    created = facts.created
    age = max((now.date - created).total_seconds(), 0.0) if created else float("inf")
    after = min(max((at - last).total_seconds(), 0.0), age) if at and last else None
    outcome = QuitOutcome.EXITED if ended.exit_code == 0 else QuitOutcome.EXITED_NONZERO
    if after is not None and waited is not None:
        after = min(max(waited, after - 1, 0.0), after + 1)
    return End(outcome, f"{container} exited with {ended.exit_code}", after)
