"""What the quit controller reports: log lines, metrics, and Events for the owners of pods."""

from __future__ import annotations

import logging
from typing import Literal

from istio_aux.model.annotations import SIDECARS
from istio_aux.model.names import EventReason
from istio_aux.model.pod import PROXY
from istio_aux.model.policy import Rung
from istio_aux.quit.state import STUCK_AFTER, End, PodState, QuitOutcome, Task
from istio_aux.recorder import Recorder
from istio_aux.telemetry import NO_RUNG


class QuitRecorder(Recorder):
    """Records what the quit controller does."""

    def decided(self, state: PodState, *, dry: bool) -> None:
        """There is a new decision on the pod; ``dry``: it will not be acted on."""
        levels = {"ignore": logging.DEBUG, "report": logging.WARNING}
        action, reason = state.decision.action, state.decision.reason
        level = levels.get(action, logging.INFO)
        action = "would quit" if dry and action == "quit" else action
        self._log_pod(level, "decision", state.key, action=action, reason=reason)

    def attempted(self, state: PodState, attempt: int, rung: Rung) -> None:
        """The proxy is about to be told to exit."""
        self._telemetry.quit_attempts.labels(rung).inc()
        self._log_pod(logging.DEBUG, "attempt", state.key, attempt=attempt, rung=rung)

    def failed(self, state: PodState, task: Task) -> None:
        """An attempt failed; there will be another."""
        level = logging.ERROR if task.failures == STUCK_AFTER else logging.WARNING
        self._log_pod(
            level, "attempt-failed", state.key,
            task=task.due, attempts=task.attempts, reason=task.failure,
        )  # fmt: skip
        # The 1st, 2nd, 4th, 8th ... failure: a pod that is stuck for days must not fill etcd.
        if task.due == "quit" and task.failures.bit_count() == 1:
            note = f"failure {task.failures}: {task.failure}"
            self._event(state.key, "Warning", "ProxyQuitFailed", note)

    def ended(self, state: PodState, task: Task, end: End) -> None:
        """Nothing more is to be done about the pod for now."""
        match end.outcome:
            case QuitOutcome.DRY_RUN:
                note = f"{end.reason}; a dry run leaves {task.target} running"
                self._event_once(state, "Normal", "ProxyQuitDryRun", note)
            case QuitOutcome.REPORTED:
                self.lost(state)
            case QuitOutcome.DELETED:
                self._telemetry.dead_proxies.labels("deleted").inc()
                level, event = logging.WARNING, "dead-proxy-pod-deleted"
                self._log_pod(level, event, state.key, reason=end.reason)
                note = f"deleted, so that its controller makes a new one: {end.reason}"
                self._event(state.key, "Normal", "DeadProxyPodDeleted", note)
            case QuitOutcome.BLOCKED:
                decision = state.decision
                by, kept = ", ".join(map(str, decision.blocked_by)), decision.action == "wait"
                note = f"{PROXY if kept else 'the pod'} is kept by {by}: {end.reason}"
                if kept and decision.blocked_by[0].kind == "container" and not decision.fix:
                    note += f"; annotation {SIDECARS}, NAME=ignore, names those that do not keep it"
                event = "ProxyQuitBlocked" if kept else "PodHeld"
                if self._event_once(state, "Normal", event, note):
                    self._log_pod(logging.INFO, "blocked", state.key, by=by, reason=end.reason)
            case QuitOutcome() as outcome:
                self._quit(state, task, outcome, end)
            case None:
                pass

    def lost(self, state: PodState) -> None:
        """A second look confirmed that the proxy is dead and a payload container is not."""
        if self._event_once(state, "Warning", "ProxyLost", state.decision.reason):
            self._telemetry.dead_proxies.labels("reported").inc()

    def not_deleted(self) -> None:
        """The deletion of a pod with a dead proxy failed; `failed` says why."""
        self._telemetry.dead_proxies.labels("delete-failed").inc()

    def _quit(self, state: PodState, task: Task, outcome: QuitOutcome, end: End) -> None:
        rung = task.rung or NO_RUNG
        self._telemetry.quits.labels(outcome, rung).inc()
        self._log_pod(
            logging.INFO, "quit", state.key,
            container=task.target, outcome=outcome, rung=rung, attempts=task.attempts,
            reason=end.reason,
        )  # fmt: skip
        if outcome in {QuitOutcome.EXITED, QuitOutcome.EXITED_NONZERO}:
            self._telemetry.quits_total += task.target == PROXY
            if end.after_payload is not None and task.target == PROXY:
                self._telemetry.exit_to_exit.observe(end.after_payload)
            kind = "Normal" if outcome is QuitOutcome.EXITED else "Warning"
            note = f"every payload container is finished; {end.reason}"
            self._event(state.key, kind, "ProxyQuit", note)

    def _event_once(
        self, state: PodState, kind: Literal["Normal", "Warning"], reason: EventReason, note: str
    ) -> bool:
        """Send an Event that a pod gets once; return whether it had none yet."""
        if reason in state.announced:
            return False
        state.announced += (reason,)
        self._event(state.key, kind, reason, note, once=True)
        return True
