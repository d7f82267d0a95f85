"""How the repair controller tells what it does: log lines, metrics and Events, all in this place.

Only the telling may live here.
"""

from __future__ import annotations

import logging
from typing import Literal

from istio_aux.core.pacing import Mesh
from istio_aux.core.repair import Report, Restart, Way
from istio_aux.kube.events import Events
from istio_aux.kube.resources import Key
from istio_aux.repair.record import Case, Owner, Record
from istio_aux.telemetry import Telemetry

_log = logging.getLogger(__name__)


class Narrator:
    """Knows all the ears there are; the controller knows none.

    Attributes:
        quiet: whether telling is somebody else's business.
    """

    def __init__(self, telemetry: Telemetry, events: Events) -> None:
        """Tell ``telemetry`` and ``events``, and the log; begin quiet."""
        self._telemetry, self._events = telemetry, events
        self.quiet = True

    def decided(self, record: Record, case: Case) -> None:
        """A decision was made on a pod without a sidecar; a pod that stays so is told of once."""
        if isinstance(case.action, Report) and case.unmeshed:
            self.reported(record, case, case.action.reason, lasts=not case.action.waits)

    def reported(self, record: Record, case: Case, why: str, *, lasts: bool = True) -> None:
        """The pod has no sidecar and is not restarted, and ``why``.

        Its owner is told once, of what ``lasts``.
        """
        if self.quiet:
            return
        if case.first(why):
            self._say(logging.WARNING, "unmeshed", record.key, reason=why)
        if lasts and not case.announced:
            case.announced = True
            # A cluster may be full of such pods, and the few that something happens to come first.
            self._events.emit(
                record.key, "Warning",
                reason="NoSidecar", action="Report", note=why, mass=True, once=True,
            )  # fmt: skip

    def restarted(self, record: Record, restart: Restart) -> None:
        """The pod is on its way out, or its Job is suspended."""
        action = "Evict"
        if restart.way is Way.EVICT:
            self._telemetry.sidecar_restarts.labels("evicted").inc()
        else:
            action = "Suspend"
        self._say(logging.INFO, "restarted", record.key, way=restart.way, reason=restart.reason)
        note = f"restarted, so that it gets a sidecar: {restart.reason}"
        self._event(record.key, "Normal", "RestartedForSidecar", action, note)

    def refused(self, record: Record, why: str) -> None:
        """The pod stays for now; there will be another attempt."""
        self._telemetry.sidecar_restarts.labels("refused").inc()
        self._say(logging.INFO, "restart-refused", record.key, reason=why)
        if record.case and record.case.unmeshed:
            note = f"{record.case.action.reason}; not restarted yet: {why}"
            self.reported(record, record.case, note)

    def superseded(self, record: Record, why: str) -> None:
        """The pod is not what was decided on any more."""
        self._say(logging.DEBUG, "restart-superseded", record.key, reason=why)

    def failed(self, record: Record, why: str) -> None:
        """It is not known what became of the request."""
        self._telemetry.sidecar_restarts.labels("failed").inc()
        self._say(logging.WARNING, "restart-failed", record.key, reason=why)

    def stopped(self, owner: Owner, known: frozenset[str], why: str) -> None:
        """No further pod of the controller is restarted; the new one that shows it is told.

        ``known`` are the UIDs of those that were there when the last one was restarted.
        """
        self._telemetry.sidecar_restarts.labels("stopped").inc()
        _log.error("%s", owner, extra={"event": "restarts-stopped", "reason": why})
        unmeshed = [record for record in owner.records if record.member.mesh is Mesh.UNMESHED]
        new = [record for record in unmeshed if record.member.uid not in known]
        for record in (new or unmeshed)[:1]:
            note = f"no further pod of {owner} is restarted: {why}"
            self._event(record.key, "Warning", "RestartStopped", "Report", note)

    def tripped(self, what: object) -> None:
        """An error that nobody foresaw is being handled."""
        self._telemetry.internal_errors.inc()
        _log.exception("%s", what, extra={"event": "internal-error"})

    def _event(
        self, pod: Key, kind: Literal["Normal", "Warning"], reason: str, action: str, note: str
    ) -> None:
        if not self.quiet:
            self._events.emit(pod, kind, reason=reason, action=action, note=note)

    def _say(self, level: int, event: str, pod: Key, **facts: object) -> None:
        named = {"namespace": pod.namespace, "pod": pod.name, "uid": pod.uid}
        _log.log(level, "%s", pod, extra={"event": event, **named, **facts})
