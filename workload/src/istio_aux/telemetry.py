"""Prometheus metrics with bounded labels, JSON log lines, and what every recorder can do."""

from __future__ import annotations

import asyncio
import logging
import sys
import traceback
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import product
from typing import Any, BinaryIO, Literal, TypeVar

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector

from istio_aux.kube.events import Events
from istio_aux.model.findings import Code
from istio_aux.model.names import EventAction, EventReason
from istio_aux.model.pod import Key
from istio_aux.model.text import printable_json

_log = logging.getLogger(__name__)

M = TypeVar("M", Counter, Gauge, Histogram)


class Telemetry:
    """The metrics of one process. Each component declares its own metrics."""

    def __init__(self) -> None:
        self._registry, self._made = CollectorRegistry(), dict[str, Any]()
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self.watch_restarts = self.counter(
            "watch_restarts",
            "Watches that started again, by reason.",
            # The first two are normal.
            reason=(
                "ended",
                "relist",
                "expired",
                "silent",
                "connection",
                "throttled",
                "server-error",
                "refused",
                "went-back",
            ),
        )
        self.internal_errors = self.counter(
            "internal_errors",
            "Unhandled exceptions; the log has a traceback of each.",
        )

    def counter(self, name: str, meaning: str, **labels: Iterable[str]) -> Counter:
        """Return the counter of this name, with a series at zero for all values of ``labels``.

        Labels have few values, never names of objects. An alert sees an increase only if the series
        was there before.
        """
        return self._metric(Counter, name, meaning, labels)

    def gauge(self, name: str, meaning: str, **labels: Iterable[str]) -> Gauge:
        """Return the gauge of this name, as `counter` does."""
        return self._metric(Gauge, name, meaning, labels)

    def histogram(self, name: str, meaning: str, *buckets: float) -> Histogram:
        """Return the histogram of this name."""
        return self._metric(Histogram, name, meaning, {}, buckets=buckets)

    def _metric(
        self,
        kind: type[M],
        name: str,
        meaning: str,
        labels: Mapping[str, Iterable[str]],
        **more: Any,
    ) -> M:
        if name not in self._made:
            made = kind(
                f"istio_aux_{name}",
                meaning,
                [*labels],
                registry=self._registry,
                **more,
            )
            for values in product(*labels.values()) if labels else ():
                made.labels(*values)
            self._made[name] = made
        return self._made[name]

    def unhandled(self, about: object, error: BaseException | None) -> None:
        """Count and log an unhandled exception; ``about`` says where it came from."""
        self.internal_errors.inc()
        _log.error("%s", about, exc_info=error, extra={"event": "internal-error"})

    def render(self) -> bytes:
        """All metrics in the Prometheus text format."""
        return generate_latest(self._registry)


class Recorder:
    """Writes log lines and metrics, and sends Events while this process is ``leading``."""

    def __init__(self, telemetry: Telemetry, events: Events) -> None:
        self._telemetry, self._events = telemetry, events
        self.leading = False

    def unhandled(self, about: object = None) -> None:
        """Log and count an unhandled exception, with ``about`` or else the name of the task."""
        task = asyncio.current_task()
        self._telemetry.unhandled(about or (task and task.get_name()), sys.exception())

    def _log_pod(self, level: int, event: str, pod: Key, **facts: object) -> None:
        _log.log(
            level,
            "%s",
            pod,
            extra={
                "event": event,
                "namespace": pod.namespace,
                "pod": pod.name,
                "uid": pod.uid,
                **facts,
            },
        )

    def _event(
        self,
        pod: Key,
        kind: Literal["Normal", "Warning"],
        reason: EventReason,
        note: str,
        action: EventAction = "Quit",
        *,
        code: Code | None = None,
        once: bool = False,
    ) -> None:
        if self.leading:
            self._events.emit(
                pod,
                kind,
                reason=reason,
                action=action,
                note=note,
                code=code,
                once=once,
            )


class JsonLines(logging.StreamHandler[Any]):
    """One JSON object a line: time, level, event, message, and what the call gave as ``extra``."""

    _USUAL = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
    _encoder = msgspec.json.Encoder(enc_hook=str)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; a value that JSON lacks becomes text."""
        try:
            facts = {key: value for key, value in vars(record).items() if key not in self._USUAL}
            event, message = facts.pop("event", record.name), record.getMessage()
            if record.exc_info:
                facts["traceback"] = "".join(traceback.format_exception(*record.exc_info)).rstrip()
            time = datetime.fromtimestamp(record.created, UTC)
            line = {
                "time": time.isoformat(timespec="milliseconds"),
                "level": record.levelname.lower(),
                "event": event,
                "message": message,
                **facts,
            }
            self.stream.write(printable_json(self._encoder.encode(line)) + b"\n")
            self.flush()
        except Exception:  # Logging must not fail its caller.
            self.handleError(record)


class Bounded:
    """Passes `LINES` warnings a minute from each line of code that clients can trigger.

    ``suppressed`` of the next line says how many were dropped.
    """

    LINES = 20
    _EXPOSED = ("asyncio", "aiohttp", "istio_aux.start.webhook", "istio_aux.serving")

    def __init__(self) -> None:
        self._minutes: dict[tuple[str, int], tuple[float, int]] = {}

    def __call__(self, record: logging.LogRecord) -> bool:
        """Whether to write the record."""
        if record.levelno < logging.WARNING or not record.name.startswith(self._EXPOSED):
            return True
        place = (record.name, record.lineno)
        began, count = self._minutes.get(place, (record.created, 0))
        if record.created - began >= 60:
            if count > self.LINES:
                record.suppressed = count - self.LINES
            began, count = record.created, 0
        self._minutes[place] = (began, count + 1)
        return count < self.LINES


def log_to(stream: BinaryIO | None = None, level: str = "info") -> None:
    """Send all logging from ``level`` on to ``stream``, or stdout, as JSON lines."""
    handler = JsonLines(stream or sys.stdout.buffer)
    handler.addFilter(Bounded())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
