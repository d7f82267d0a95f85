"""What every recorder of a controller can do: log lines, metrics, and Events."""

from __future__ import annotations

import logging
from typing import Literal

from istio_aux.kube.events import Events
from istio_aux.model.names import EventAction, EventReason
from istio_aux.model.pod import Key
from istio_aux.telemetry import Telemetry

_log = logging.getLogger(__name__)


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
        reason: EventReason,
        note: str,
        action: EventAction = "Quit",
        *,
        once: bool = False,
    ) -> None:
        if self.leading:
            self._events.emit(pod, kind, reason=reason, action=action, note=note, once=once)
