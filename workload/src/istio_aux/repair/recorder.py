"""What the repair controller reports: log lines, metrics, and Events for the owners of pods."""

from __future__ import annotations

import logging

from istio_aux.kube.events import Events
from istio_aux.model.findings import Code
from istio_aux.model.pod import Key
from istio_aux.repair.rules import ReportUnmeshed, Restart
from istio_aux.telemetry import Recorder, Telemetry

_log = logging.getLogger(__name__)

_LOGGED = 8  # Reasons that are remembered of a pod, so that each is logged once.


class RepairRecorder(Recorder):
    """Records what the repair controller does."""

    def __init__(self, telemetry: Telemetry, events: Events) -> None:
        super().__init__(telemetry, events)
        self._outcomes = telemetry.counter(
            "sidecar_restarts",
            "Restarts of pods that lack a sidecar, by outcome.",
            # "refused": a PodDisruptionBudget forbids it. "stopped": the new pod has no sidecar.
            outcome=("evicted", "refused", "stopped", "failed"),
        )
        self._logged: dict[Key, tuple[int, ...]] = {}  # Hashes of reasons.
        self._announced: set[Key] = set()

    def unmeshed(self, pod: Key, why: str, code: Code, *, lasts: bool = True) -> None:
        """The pod is outside its mesh and is not restarted, and why.

        A reason is logged once. The pod gets one Event, with the first reason that ``lasts``.
        """
        if not self.leading:
            return
        logged = self._logged.get(pod, ())
        seen = hash(why)
        if seen not in logged:
            self._logged[pod] = (*logged, seen)[-_LOGGED:]
            self._log_pod(logging.WARNING, "unmeshed", pod, reason=why)
        if lasts and pod not in self._announced:
            self._announced.add(pod)
            # A cluster may be full of such pods: Events about actions overtake these.
            self._events.emit(
                pod,
                "Warning",
                reason="NoSidecar" if code is Code.NO_SIDECAR else "OutsideMesh",
                action="Report",
                note=why,
                code=code,
                mass=True,
                once=True,
            )

    def forget(self, pod: Key) -> None:
        """The pod is gone, or needs no sidecar any more."""
        self._logged.pop(pod, None)
        self._announced.discard(pod)

    def restarted(self, pod: Key, restart: Restart) -> None:
        """The pod was evicted."""
        self._outcomes.labels("evicted").inc()
        self._log_pod(logging.INFO, "restarted", pod, reason=restart.reason)
        aim = "is captured" if restart.ambient else "gets a sidecar"
        self._event(
            pod,
            "Normal",
            "RestartedForSidecar",
            f"restarted, so that it {aim}: {restart.reason}",
            "Evict",
        )

    def refused(
        self, pod: Key, why: str, problem: ReportUnmeshed | Restart | None, *, changed: bool
    ) -> None:
        """The pod is tried again later; ``problem`` says that it is unmeshed, if it still is."""
        if changed:  # The pod has changed since it was chosen, which is no news.
            self._log_pod(logging.DEBUG, "restart-superseded", pod, reason=why)
            return
        self._outcomes.labels("refused").inc()
        self._log_pod(logging.INFO, "restart-refused", pod, reason=why)
        if problem:
            self.unmeshed(pod, f"{problem.reason}; not restarted yet: {why}", problem.code)

    def failed(self, pod: Key, why: str) -> None:
        """The request was not answered: it is not known whether it was performed."""
        self._outcomes.labels("failed").inc()
        self._log_pod(logging.WARNING, "restart-failed", pod, reason=why)

    def stopped(self, owner: str, pod: Key | None, why: str) -> None:
        """No further pod of the controller is restarted; ``pod`` gets the Event."""
        self._outcomes.labels("stopped").inc()
        _log.error("%s", owner, extra={"event": "restarts-stopped", "reason": why})
        if pod:
            self._event(
                pod,
                "Warning",
                "RestartStopped",
                f"no further pod of {owner} is restarted: {why}",
                "Report",
                code=Code.RESTART_NO_HELP,
            )
