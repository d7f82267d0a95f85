"""What the quit controller reports: log lines, metrics, and Events for the owners of pods."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Literal

from prometheus_client import Gauge

from istio_aux.kube.events import Events
from istio_aux.model.findings import Code
from istio_aux.model.names import EventReason
from istio_aux.model.pod import PROXY
from istio_aux.model.resources import Requests
from istio_aux.model.sidecars import REMEDY
from istio_aux.quit.attempt import STUCK_AFTER, End, PodState, QuitOutcome, Task
from istio_aux.quit.rules import ENDED_EARLY, FINISHED, Blocker, Way
from istio_aux.telemetry import Recorder, Telemetry

# Exit 0, another exit code, the pod was gone first, or no quit was needed any more.
QUIT_OUTCOMES = ("exited", "exited-nonzero", "gone", "superseded")
NO_WAY = "none"  # The way of a quit that ended before its first attempt.

# Values of the label `resource`. All kinds of GPU are one, because tenants name resources.
RESOURCES = tuple(Requests().amounts)
KEEPERS: tuple[str, ...] = (PROXY, "other")  # What keeps pods; tenants' names are left out.


class QuitRecorder(Recorder):
    """Records what the quit controller does; ``watched`` is the number of pods that it knows."""

    def __init__(self, telemetry: Telemetry, events: Events) -> None:
        super().__init__(telemetry, events)
        self._quits = telemetry.counter(
            "quits",
            "Quits that ended, by outcome and by the way tried last.",
            outcome=QUIT_OUTCOMES,
            way=(NO_WAY, *Way),
        )
        self._attempts = telemetry.counter(
            "quit_attempts", "Attempts to make a proxy exit, by way.", way=Way
        )
        self._exit_to_exit = telemetry.histogram(
            "payload_exit_to_proxy_exit_seconds",
            "From the last payload container's exit to the proxy's.",
            0.1,
            0.25,
            0.5,
            1,
            2,
            5,
            10,
            30,
            60,
            300,
            900,
            3600,
        )
        self._kept_seconds = telemetry.counter(
            "kept_resource_seconds",
            "Requests of freed pods, times the seconds that they waited.",
            resource=RESOURCES,
        )
        self._dead_proxies = telemetry.counter(
            "dead_proxies",
            "What was done about pods whose proxy ended first; deleted ones were reported, too.",
            action=("reported", "deleted", "delete-failed"),
        )
        self._kept = telemetry.gauge(
            "kept_resources",
            "What stuck, blocked and unstarted pods request (finished ones, too, in a dry run).",
            by=KEEPERS,
            resource=RESOURCES,
        )
        self.watched = telemetry.gauge("watched_pods", "Pods whose proxy may have to quit.")
        self._troubles: dict[str, Gauge] = {  # Held pods, though unstarted, count apart.
            "stuck": telemetry.gauge(
                "stuck_pods", "Pods whose proxy runs on after several attempts."
            ),
            "blocked": telemetry.gauge(
                "blocked_pods", "Pods that something keeps from ending, and that no quit can free."
            ),
            "unstarted": telemetry.gauge(
                "unstarted_pods", "Pods whose payload another container keeps from starting."
            ),
            "held": telemetry.gauge(
                "held_pods", "Pods whose payload is held, as their proxy is not ready."
            ),
            "lost": telemetry.gauge(
                "lost_pods", "Pods whose proxy ended while a payload container may still run."
            ),
            "would quit": telemetry.gauge(
                "would_quit_pods", "Pods whose proxy would have been told to exit without dry-run."
            ),
        }

    def surveyed(self, counts: Counter[str], kept: Mapping[str, Requests]) -> None:
        """Set the numbers of pods by their trouble, and what each of `KEEPERS` keeps."""
        for trouble, gauge in self._troubles.items():
            gauge.set(counts[trouble])
        for by, requests in kept.items():
            for resource, amount in requests.amounts.items():
                self._kept.labels(by, resource).set(amount)

    def decided(self, state: PodState, *, dry: bool) -> None:
        """There is a new decision on the pod; ``dry``: it will not be acted on."""
        action = state.decision.action
        level = {"ignore": logging.DEBUG, "report": logging.WARNING}.get(action, logging.INFO)
        action = "would quit" if dry and action == "quit" else action
        self._log_pod(level, "decision", state.key, action=action, reason=state.decision.reason)

    def held(self, state: PodState, why: str) -> None:
        """Admission has held the pod, and its proxy is not native."""
        self._event_once(
            state,
            "Normal",
            "HeldNotNative",
            f"the sidecar is classic, although it could be native: {why}",
            Code.HELD,
        )

    def loses_network(self, state: PodState, why: str) -> None:
        """The pod is being deleted, and its proxy ends long before its payload."""
        if self._event_once(state, "Warning", "NetworkLost", why, Code.CUT_OFF):
            self._log_pod(logging.WARNING, "network-lost", state.key, reason=why)

    def killed(self, state: PodState, why: str) -> None:
        """The native proxy of a pod that has ended was killed."""
        if self._event_once(state, "Warning", "ProxyKilled", why, Code.PROXY_KILLED):
            self._log_pod(logging.WARNING, "proxy-killed", state.key, reason=why)

    def attempted(self, state: PodState, attempt: int, way: Way) -> None:
        """The proxy is about to be told to exit."""
        self._attempts.labels(way).inc()
        self._log_pod(logging.DEBUG, "attempt", state.key, attempt=attempt, way=way)

    def failed(self, state: PodState, task: Task, *, counts: bool) -> None:
        """An attempt failed; there will be another. ``counts``: `Task.failures` has grown."""
        self._log_pod(
            logging.ERROR if counts and task.failures == STUCK_AFTER else logging.WARNING,
            "attempt-failed",
            state.key,
            task=task.due,
            attempts=task.attempts,
            reason=task.failure,
        )
        # The 1st, 2nd, 4th, 8th ... failure: a pod that is stuck for days must not fill etcd.
        if counts and task.due == "quit" and task.failures.bit_count() == 1:
            self._event(
                state.key,
                "Warning",
                "ProxyQuitFailed",
                f"failure {task.failures}: {task.failure}",
                code=Code.RUNS_ON if task.payload_started else Code.HELD_BACK,
            )

    def ended(self, state: PodState, task: Task, end: End) -> None:
        """Nothing more is to be done about the pod for now."""
        match end.outcome:
            case QuitOutcome.DRY_RUN:
                self._event_once(
                    state,
                    "Normal",
                    "ProxyQuitDryRun",
                    f"{end.reason}; a dry run leaves {task.target} running",
                )
            case QuitOutcome.REPORTED:
                self.lost(state)
            case QuitOutcome.DELETED:
                self._dead_proxies.labels("deleted").inc()
                self._log_pod(
                    logging.WARNING, "dead-proxy-pod-deleted", state.key, reason=end.reason
                )
                self._event(
                    state.key,
                    "Normal",
                    "DeadProxyPodDeleted",
                    f"deleted, so that its controller makes a new one: {end.reason}",
                )
            case QuitOutcome.BLOCKED:
                decision = state.decision
                by = ", ".join(map(str, decision.blocked_by))
                if decision.stage in {"unstarted", "held"}:
                    told = "Warning", "PodNotStarted", end.reason
                elif decision.action == "wait" and Blocker(PROXY) not in decision.blocked_by:
                    note = f"{PROXY} is kept by {by}: {end.reason}"
                    if not (decision.blocked_by[0].kind or decision.fix):
                        note += f"; {REMEDY}"
                    told = "Normal", "ProxyQuitBlocked", note
                else:
                    told = "Normal", "PodHeld", f"the pod is kept by {by}: {end.reason}"
                if self._event_once(state, *told, decision.code):
                    self._log_pod(logging.INFO, "blocked", state.key, by=by, reason=end.reason)
            case QuitOutcome() as outcome:
                self._quit(state, task, outcome, end)
            case None:
                pass

    def lost(self, state: PodState) -> None:
        """A second check confirmed that the pod is lost: its proxy ended before its payload."""
        decision = state.decision
        if self._event_once(state, "Warning", "ProxyLost", decision.reason, decision.code):
            self._dead_proxies.labels("reported").inc()

    def not_deleted(self) -> None:
        """The deletion of a pod that lost its proxy failed; `failed` says why."""
        self._dead_proxies.labels("delete-failed").inc()

    def _quit(
        self,
        state: PodState,
        task: Task,
        outcome: QuitOutcome,
        end: End,
    ) -> None:
        way = task.way or NO_WAY
        self._quits.labels(outcome, way).inc()
        self._log_pod(
            logging.INFO,
            "quit",
            state.key,
            container=task.target,
            outcome=outcome,
            way=way,
            attempts=task.attempts,
            reason=str(end),
        )
        if outcome in {QuitOutcome.EXITED, QuitOutcome.EXITED_NONZERO}:
            if end.after_payload is not None and task.target == PROXY and task.payload_started:
                self._exit_to_exit.observe(end.after_payload)
                kept = task.requests.amounts if task.requests and self.leading else {}
                for resource, amount in kept.items():
                    self._kept_seconds.labels(resource).inc(amount * end.after_payload)
            self._event(
                state.key,
                "Normal" if outcome is QuitOutcome.EXITED else "Warning",
                "ProxyQuit",
                f"{FINISHED if task.payload_started else ENDED_EARLY}; {end}",
            )

    def _event_once(
        self,
        state: PodState,
        kind: Literal["Normal", "Warning"],
        reason: EventReason,
        note: str,
        code: Code | None = None,
    ) -> bool:
        """Send an Event that a pod gets once; return whether it had none yet."""
        if reason in state.announced:
            return False
        state.announced += (reason,)
        self._event(state.key, kind, reason, note, code=code, once=True)
        return True
