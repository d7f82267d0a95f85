"""What every recorder of a controller can do: log lines, metrics, and Events."""

from __future__ import annotations

import asyncio
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

    def unhandled(self, about: object = None) -> None:
        """An unhandled exception was caught; the task names what failed if ``about`` does not."""
        task = asyncio.current_task()
        self._telemetry.internal_errors.inc()
        name = about or (task and task.get_name())
        _log.exception("%s", name, extra={"event": "internal-error"})

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
