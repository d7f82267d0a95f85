"""What is known of one pod by its newest decision: what is due for this process, and when.

    newest decision                               due
    quit, wait until the end of a grace period    quit
    report                                        report, after lost_after
    blocked_by some containers                    its stage: blocked or ending, after blocked_after,
                                                  unstarted, after unstarted_after; held, after
                                                  held_after; or deleted, after its grace and
                                                  TERMINATING_FOR
    any other                                     nothing

Nothing is due for a pod that left the watch or is not selected, or while another process leads.
`task` does what is due.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import msgspec

from istio_aux.model import kept
from istio_aux.model.applications import Applications, PodOptions, application_of
from istio_aux.model.found import Found
from istio_aux.model.moment import Moment
from istio_aux.model.pod import PROXY, Key, interned, shared
from istio_aux.model.policy import QuitLimits, QuitMode, QuitPolicy
from istio_aux.model.resources import Requests
from istio_aux.quit import rules
from istio_aux.quit.facts import PodFacts
from istio_aux.quit.task import STUCK_AFTER, Task, exit_of

# Seconds by which a watch may lag behind a GET. If an older state comes later, etcd was restored.
LAG = 30.0

MOST_BLOCKERS = 10  # Blocking containers whose names are stored: a pod may have thousands.
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
    asks: bool = False  # The decision needs the version of the pod's kubelet.
    first_seen: Moment | None = None  # When decisions began to ask for the same action.
    witnessed: float | None = None  # When this process saw the payload end (monotonic).
    since: datetime | None = None  # End of the payload by its node's clock, to be shown.
    gone_by: float = 0.0  # When a pod that is being deleted should be gone, since 1970.
    requests: Requests | None = None  # `PodFacts.requests`.
    unwatched: bool = False  # The watch does not show the pod any more.
    version: int = 0
    seen: float | None = None  # When `version` was seen, by the monotonic clock.
    announced: tuple[str, ...] = ()  # Reasons of the Events that a pod gets once.
    task: Task | None = None

    def decide_on(self, facts: PodFacts, scope: QuitScope, now: Moment) -> rules.Action:
        """Decide on a pod, and remember the decision unless a newer state is known.

        resourceVersions compare as integers (KEP-5504); one that is no integer counts as new.
        """
        before = None if self.asks else self.asks_for
        if before == "quit" and self.first_seen:
            seen = self.first_seen
        else:  # If the payload ended before this process saw the pod, only the node knows when.
            seen = (rules.payload_end(facts, now) if self.seen is None else None) or now
        decision = kept.brief(rules.decide(facts, now, seen=seen))
        pod = facts.pod
        version = pod.metadata.version
        if self.seen is not None and now.monotonic - self.seen < LAG and version < self.version:
            return decision
        same = self._is_newest(decision)
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
        self.asks = isinstance(decision, rules.Wait) and facts.asks
        if isinstance(decision, rules.Quit | rules.Wait):
            self.target = decision.target
        if self.asks_for != before:
            self.unready = False
            self.first_seen = seen if self.asks_for == "quit" else now
            if self.asks_for == "quit":
                self.witnessed = None if self.seen is None else now.monotonic
        held = self.asks_for not in {None, "report"}
        since = facts.held_since if held else None
        self.since = min(since, now.date) if since else None
        self.requests = facts.requests if held else None
        self.gone_by = facts.gone_by.timestamp() + rules.TERMINATING_FOR if facts.gone_by else 0.0
        self.version = version
        self.seen = now.monotonic
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
        if isinstance(self.decision, rules.Quit) or self.until is not None or self.asks:
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
            "deleted": max(0.0, self.gone_by - self.first_seen.wall),
        }
        return self.first_seen.monotonic + delays.get(self.asks_for or "", limits.blocked_after)

    def settle(self, decision: rules.Action) -> bool:
        """Note that everything ``decision`` asks for is done, if it is the newest decision."""
        self.settled = self._is_newest(decision)
        return self.settled

    def _is_newest(self, decision: rules.Action) -> bool:
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
        return "; ".join(filter(None, (rules.lasting(self.decision), *more)))

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
        found = Found(
            **self.key._asdict(),
            code=decision.code or "",
            reason=self.reason(scope),
            requests=self.requests,
        )
        if decision.blocked_by and (lasting or decision.stage == "blocked"):
            return msgspec.structs.replace(
                found,
                state="unstarted" if decision.stage in {"unstarted", "held"} else "blocked",
                since=self.since,
                by=decision.blocked_by,
                fix=decision.fix,
                lasting=lasting,
            )
        if isinstance(decision, rules.Report):
            reason = f"{found.reason}; {failure}" if failure else found.reason
            return msgspec.structs.replace(
                found, state="lost", reason=reason, requests=None, lasting=lasting
            )
        if scope.mode is QuitMode.DRY_RUN and isinstance(decision, rules.Quit):
            return msgspec.structs.replace(found, state="would quit", code="")
        if scope.leading and task and task.due == "quit" and task.failures >= STUCK_AFTER:
            done = found.reason.startswith(rules.FINISHED)
            reason = found.reason.removeprefix(rules.FINISHED) if done else f"; {found.reason}"
            return msgspec.structs.replace(
                found,
                state="stuck",
                reason=failure + reason,
                since=self.since or (self.first_seen and self.first_seen.date),
                attempts=task.attempts,
                by=() if task.target == PROXY else (task.target,),
            )
        return None
