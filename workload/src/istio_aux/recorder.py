"""What the controllers tell about their work: log lines, metrics, and Events for owners of pods.

One log line for each new decision, each failed attempt and each end. An Event for what the owner of
a pod should see.
"""

from __future__ import annotations

import logging
from typing import Literal

from istio_aux.core import quit_state
from istio_aux.core.annotations import IGNORE_CONTAINERS
from istio_aux.core.pod import PROXY, Key
from istio_aux.core.quit_state import STUCK_AFTER, PodState, ProxyExit, Task
from istio_aux.kube.events import Events
from istio_aux.telemetry import NO_RUNG, Telemetry

_log = logging.getLogger(__name__)


class Recorder:
    """Sends to log, metrics and Events.

    Attributes:
        quiet: whether another process sends the Events.
    """

    def __init__(self, telemetry: Telemetry, events: Events) -> None:
        self._telemetry, self._events = telemetry, events
        self.quiet = False

    def internal_error(self, about: object) -> None:
        """An unhandled exception was caught."""
        self._telemetry.internal_errors.inc()
        _log.exception("%s", about, extra={"event": "internal-error"})

    def _line(self, level: int, event: str, pod: Key, **facts: object) -> None:
        if _log.isEnabledFor(level):
            named = {"namespace": pod.namespace, "pod": pod.name, "uid": pod.uid}
            _log.log(level, "%s", pod, extra={"event": event, **named, **facts})


class QuitRecorder(Recorder):
    """Records what the quit controller does."""

    def decided(self, state: PodState, *, dry: bool) -> None:
        """There is a new decision on the pod; ``dry``: it will not be acted on."""
        levels = {"ignore": logging.DEBUG, "report": logging.WARNING}
        level = levels.get(state.verdict, logging.INFO)
        action = "would quit" if dry and state.verdict == "quit" else state.verdict
        self._line(level, "decision", state.key, action=action, reason=state.reason)

    def attempted(self, state: PodState, task: Task) -> None:
        """The proxy is about to be told to exit."""
        self._telemetry.quit_attempts.labels(task.rung).inc()
        self._line(
            logging.DEBUG, "attempt", state.key, attempt=task.attempts, rung=task.rung
        )  # fmt: skip

    def failed(self, state: PodState, task: Task) -> None:
        """An attempt failed; there will be another."""
        level = logging.ERROR if task.failures == STUCK_AFTER else logging.WARNING
        self._line(
            level, "attempt-failed", state.key,
            errand=task.due, attempts=task.attempts, reason=task.failure,
        )  # fmt: skip
        # The 1st, 2nd, 4th, 8th ... failure: a pod that is stuck for days must not fill etcd.
        if task.due == "quit" and task.failures and task.failures & (task.failures - 1) == 0:
            note = f"failure {task.failures}: {task.failure}"
            self._event(state, "Warning", "ProxyQuitFailed", note)

    def ended(self, state: PodState, task: Task, outcome: quit_state.Outcome) -> None:
        """Nothing is to be done about the pod any more."""
        match outcome:
            case ProxyExit(exit_code=code):
                self._quit(state, task, "exited" if code == 0 else "exited-nonzero", outcome)
            case quit_state.Gone():
                self._quit(state, task, "gone", "the pod is gone")
            case quit_state.Superseded(reason=why):
                self._quit(state, task, "superseded", why)
            case quit_state.DryRun():
                note = f"{state.reason}; a dry run leaves {PROXY} running"
                self._event(state, "Normal", "ProxyQuitDryRun", note, once=True)
            case quit_state.Reported():
                self.lost(state)
            case quit_state.Deleted():
                self._telemetry.dead_proxies.labels("deleted").inc()
                why = state.reason
                self._line(logging.WARNING, "dead-proxy-pod-deleted", state.key, reason=why)
                note = f"deleted, so that its controller makes a new one: {why}"
                self._event(state, "Normal", "DeadProxyPodDeleted", note)

    def lost(self, state: PodState) -> None:
        """A second look confirmed that the proxy is dead and a payload container is not."""
        if self._event(state, "Warning", "ProxyLost", state.reason, once=True):
            self._telemetry.dead_proxies.labels("reported").inc()

    def not_deleted(self) -> None:
        """The deletion of a pod with a dead proxy failed; `failed` says why."""
        self._telemetry.dead_proxies.labels("delete-failed").inc()

    def blocked(self, state: PodState) -> None:
        """A container has kept the pod from completing for long."""
        by = ", ".join(state.blocked_by)
        note = (
            f"{PROXY} is kept by {by}: {state.reason}; annotation {IGNORE_CONTAINERS} names"
            " containers that do not keep it"
        )
        if self._event(state, "Normal", "ProxyQuitBlocked", note, once=True):
            self._line(logging.INFO, "blocked", state.key, by=by, reason=state.reason)

    def _quit(self, state: PodState, task: Task, label: str, how: ProxyExit | str) -> None:
        rung = task.rung or NO_RUNG
        self._telemetry.quits.labels(label, rung).inc()
        if isinstance(how, ProxyExit):
            after = how.after_payload
            when = "" if after is None else f", {after:g} s after the payload"
            kind = "Normal" if how.exit_code == 0 else "Warning"
            how = f"{PROXY} exited with {how.exit_code}{when}"
            if after is not None:
                self._telemetry.exit_to_exit.observe(after)
            self._telemetry.quits_total += 1
            self._event(state, kind, "ProxyQuit", f"every payload container is finished; {how}")
        self._line(
            logging.INFO, "quit", state.key,
            outcome=label, rung=rung, attempts=task.attempts, reason=how,
        )  # fmt: skip

    def _event(
        self,
        state: PodState,
        kind: Literal["Normal", "Warning"],
        reason: str,
        note: str,
        *,
        once: bool = False,
    ) -> bool:
        """Send an Event; returns False if the pod has had it, and gets it ``once``."""
        if once and not state.first(reason):
            return False
        if not self.quiet:
            self._events.emit(state.key, kind, reason=reason, action="Quit", note=note, once=once)
        return True
