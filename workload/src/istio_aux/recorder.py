"""What the controllers report: log lines, metrics, and Events for the owners of pods.

One log line for each new decision, each failed attempt and each end. An Event for what the owner of
a pod should see.
"""

from __future__ import annotations

import logging
from typing import Literal

from istio_aux.core.annotations import IGNORE_CONTAINERS
from istio_aux.core.jobs import KINDS
from istio_aux.core.pod import PROXY, Key
from istio_aux.core.quit import Rung
from istio_aux.core.quit_state import STUCK_AFTER, End, PodState, QuitOutcome, Task
from istio_aux.core.repair import Restart
from istio_aux.kube.events import Events
from istio_aux.telemetry import NO_RUNG, Telemetry

_log = logging.getLogger(__name__)

_LOGGED = 8  # Reasons of a pod that are not logged again; refusals may have many texts.


class Recorder:
    """Sends to log, metrics and Events.

    Attributes:
        leading: whether this process leads; others send no Events.
    """

    def __init__(self, telemetry: Telemetry, events: Events) -> None:
        self._telemetry, self._events = telemetry, events
        self.leading = False

    def unhandled(self, about: object) -> None:
        """An unhandled exception was caught."""
        self._telemetry.internal_errors.inc()
        _log.exception("%s", about, extra={"event": "internal-error"})

    def _log_pod(self, level: int, event: str, pod: Key, **facts: object) -> None:
        if _log.isEnabledFor(level):
            named = {"namespace": pod.namespace, "pod": pod.name, "uid": pod.uid}
            _log.log(level, "%s", pod, extra={"event": event, **named, **facts})

    def _event(
        self,
        pod: Key,
        kind: Literal["Normal", "Warning"],
        reason: str,
        note: str,
        action: str = "Quit",
        *,
        once: bool = False,
    ) -> None:
        if self.leading:
            self._events.emit(pod, kind, reason=reason, action=action, note=note, once=once)


class QuitRecorder(Recorder):
    """Records what the quit controller does."""

    def decided(self, state: PodState, *, dry: bool) -> None:
        """There is a new decision on the pod; ``dry``: it will not be acted on."""
        levels = {"ignore": logging.DEBUG, "report": logging.WARNING}
        level = levels.get(state.verdict, logging.INFO)
        action = "would quit" if dry and state.verdict == "quit" else state.verdict
        self._log_pod(level, "decision", state.key, action=action, reason=state.reason)

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
                by = ", ".join(state.blocked_by)
                kept = state.verdict == "wait"
                note = f"{PROXY if kept else 'the pod'} is kept by {by}: {end.reason}"
                # With a space it is no container, but an annotation or an option.
                if kept and " " not in state.blocked_by[0] and not state.fix:
                    note += f"; annotation {IGNORE_CONTAINERS} names those that do not keep it"
                event = "ProxyQuitBlocked" if kept else "PodHeld"
                if self._event_once(state, "Normal", event, note):
                    self._log_pod(logging.INFO, "blocked", state.key, by=by, reason=end.reason)
            case QuitOutcome() as outcome:
                self._quit(state, task, outcome, end)
            case None:
                pass

    def lost(self, state: PodState) -> None:
        """A second look confirmed that the proxy is dead and a payload container is not."""
        if self._event_once(state, "Warning", "ProxyLost", state.reason):
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
        self, state: PodState, kind: Literal["Normal", "Warning"], reason: str, note: str
    ) -> bool:
        """Send an Event that a pod gets once; return whether it had none yet."""
        if first := state.first(reason):
            self._event(state.key, kind, reason, note, once=True)
        return first


class RepairRecorder(Recorder):
    """Records what the repair controller does."""

    def __init__(self, telemetry: Telemetry, events: Events) -> None:
        super().__init__(telemetry, events)
        self._logged: dict[Key, tuple[str, ...]] = {}
        self._announced: set[Key] = set()

    def unmeshed(self, pod: Key, why: str, *, lasts: bool = True) -> None:
        """The pod has no sidecar and is not restarted, and why.

        A reason is logged once. The pod gets one Event, with the first reason that ``lasts``.
        """
        if not self.leading:
            return
        logged = self._logged.get(pod, ())
        if why not in logged:
            self._logged[pod] = (*logged, why)[-_LOGGED:]
            self._log_pod(logging.WARNING, "unmeshed", pod, reason=why)
        if lasts and pod not in self._announced:
            self._announced.add(pod)
            # A cluster may be full of such pods: Events about actions overtake these.
            self._events.emit(
                pod, "Warning",
                reason="NoSidecar", action="Report", note=why, mass=True, once=True,
            )  # fmt: skip

    def forget(self, pod: Key) -> None:
        """The pod is gone, or needs no sidecar any more."""
        self._logged.pop(pod, None)
        self._announced.discard(pod)

    def restarted(self, pod: Key, restart: Restart) -> None:
        """The pod was evicted, or its Job is suspended."""
        way, action = ("suspend", "Suspend") if restart.suspend else ("evict", "Evict")
        if not restart.suspend:
            self._count("evicted")
        self._log_pod(logging.INFO, "restarted", pod, way=way, reason=restart.reason)
        note = f"restarted, so that it gets a sidecar: {restart.reason}"
        self._event(pod, "Normal", "RestartedForSidecar", note, action)

    def refused(self, pod: Key, why: str, found: str) -> None:
        """The pod is tried again later; ``found`` says that it is unmeshed, empty if it is not."""
        self._count("refused")
        self._log_pod(logging.INFO, "restart-refused", pod, reason=why)
        if found:
            self.unmeshed(pod, f"{found}; not restarted yet: {why}")

    def superseded(self, pod: Key, why: str) -> None:
        """The pod has changed since it was chosen."""
        self._log_pod(logging.DEBUG, "restart-superseded", pod, reason=why)

    def failed(self, pod: Key, why: str) -> None:
        """The request was not answered: it is not known whether it was performed."""
        self._count("failed")
        self._log_pod(logging.WARNING, "restart-failed", pod, reason=why)

    def stopped(self, owner: str, pod: Key | None, why: str) -> None:
        """No further pod of the controller is restarted; ``pod`` gets the Event."""
        self._count("stopped")
        _log.error("%s", owner, extra={"event": "restarts-stopped", "reason": why})
        if pod:
            note = f"no further pod of {owner} is restarted: {why}"
            self._event(pod, "Warning", "RestartStopped", note, "Report")

    def job_suspended(self, job: Key, kind: str, why: str) -> None:
        """The Job is suspended."""
        self._count("suspended")
        self.job(logging.INFO, "job-suspended", job, kind, why)

    def job_resumed(self, job: Key, kind: str, why: str, *, unchanged: bool) -> None:
        """The Job is resumed; the Job itself gets the Event, because its pods may be gone."""
        self._count("failed" if unchanged else "resumed")
        self.job(logging.WARNING if unchanged else logging.INFO, "job-resumed", job, kind, why)
        if unchanged:
            self._events.emit(
                job, "Warning", reason="ResumedWithoutRestart", action="Resume",
                note=f"{kind} {job.name}: {why}", regarding=(KINDS[kind].version, kind),
            )  # fmt: skip

    def job_still_suspended(self, job: Key, kind: str, why: str, pod: Key | None) -> None:
        """Pods of the Job do not end; ``pod`` is one of them, and gets the Event."""
        self.job(logging.WARNING, "job-still-suspended", job, kind, why)
        if pod:
            note = (
                f"{kind} {job.name} stays suspended until its pods are gone, so that it does not"
                f" fail: {why}"
            )
            self._event(pod, "Warning", "StillSuspended", note, "Suspend")

    def job(self, level: int, event: str, job: Key, kind: str, why: str) -> None:
        """Log what happened to a Job."""
        named = {"namespace": job.namespace, "kind": kind, "job": job.name, "uid": job.uid}
        _log.log(level, "%s", job, extra={"event": event, **named, "reason": why})

    def _count(self, outcome: str) -> None:
        self._telemetry.sidecar_restarts.labels(outcome).inc()
