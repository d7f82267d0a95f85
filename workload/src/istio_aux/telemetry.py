"""Prometheus metrics with bounded labels, JSON log lines, and what every recorder can do."""

from __future__ import annotations

import asyncio
import io
import logging
import sys
import traceback
from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from itertools import product
from typing import BinaryIO, Literal, TypeVar

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector

from istio_aux.kube.events import Events
from istio_aux.model.answers import State
from istio_aux.model.names import EventAction, EventReason
from istio_aux.model.pod import PROXY, Key
from istio_aux.model.policy import Outcome, Way
from istio_aux.model.resources import Requests
from istio_aux.model.text import printable_json

_log = logging.getLogger(__name__)

M = TypeVar("M", Counter, Gauge)

# Exit 0, another exit code, the pod was gone first, or no quit was needed any more.
QUIT_OUTCOMES = ("exited", "exited-nonzero", "gone", "superseded")
NO_WAY = "none"  # The way of a quit that ended before its first attempt.

RESOURCES = tuple(Requests().amounts)
"""Values of a label: devices, cores, bytes. Tenants name resources, so that GPUs count together."""
KEEPERS: tuple[str, ...] = (PROXY, "other")  # Containers that keep pods. Tenants name theirs.

DEAD_PROXY_ACTIONS = ("reported", "deleted", "delete-failed")

# A PodDisruptionBudget has "refused", "stopped" means that the new pod has no sidecar either, and
# Jobs are "suspended" and "resumed".
SIDECAR_RESTARTS = ("evicted", "refused", "suspended", "resumed", "stopped", "failed")

# An answer with a sidecar, an answer without one, no answer.
PROBE_OUTCOMES = ("injected", "refused", "unreachable")

# Reviews are answered with 200, "malformed" ones with 200 or 400, the last four with an error.
REVIEW_OUTCOMES = (*Outcome, "too-large", "timeout", "not-allowed", "busy")

# The first two are normal.
WATCH_REASONS = (
    "ended", "relist", "expired", "silent", "connection", "throttled", "server-error", "refused",
    "went-back",
)  # fmt: skip


class Closed(StrEnum):
    """Why a connection to the webhook ended."""

    PEER = "peer"  # The client closed it.
    HANDSHAKE = "handshake"  # The handshake failed or took too long.
    TIMEOUT = "timeout"  # A request took too long.
    REFUSED = "refused"  # A request was refused before its end.
    IDLE = "idle"
    LIMIT = "limit"  # There were too many.
    UNREAD = "unread"  # The client did not read its answers.
    DRAIN = "drain"  # The process stops.


class Telemetry:
    """All metrics of one process, in a registry of their own."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        GCCollector(registry=registry)

        def make(kind: type[M], name: str, meaning: str, **labels: Iterable[str]) -> M:
            """Make a metric whose series exist from the start, at zero: alerts see them rise."""
            made = kind(f"istio_aux_{name}", meaning, [*labels], registry=registry)
            for values in product(*labels.values()) if labels else ():
                made.labels(*values)
            return made

        counter, gauge = partial(make, Counter), partial(make, Gauge)

        self.quits = counter(
            "quits", "Quits that ended, by outcome and by the way tried last.",
            outcome=QUIT_OUTCOMES, way=(NO_WAY, *Way),
        )  # fmt: skip
        self.quit_attempts = counter(
            "quit_attempts", "Attempts to make a proxy exit, by way.", way=Way
        )
        self.quits_total = 0  # Proxies that exited after they were told to; for `/status`.
        self.exit_to_exit = Histogram(
            "istio_aux_payload_exit_to_proxy_exit_seconds",
            "From the last payload container's exit to the proxy's.",
            registry=registry, buckets=(0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 300, 900, 3600),
        )  # fmt: skip
        self.kept_seconds = counter(
            "kept_resource_seconds", "Requests of freed pods, times the seconds that they waited.",
            resource=RESOURCES,
        )  # fmt: skip
        self.kept_resources = gauge(
            "kept_resources", "What stuck and blocked pods request, by what keeps them.",
            by=KEEPERS, resource=RESOURCES,
        )  # fmt: skip
        self.watched_pods = gauge("watched_pods", "Pods whose proxy may have to quit.")
        self.stuck_pods = gauge("stuck_pods", "Pods whose proxy runs on after several attempts.")
        self.blocked_pods = gauge(
            "blocked_pods", "Pods with finished payload containers that others keep running."
        )
        self.lost_pods = gauge(
            "lost_pods", "Pods whose proxy ended while a payload container may still run."
        )
        self.would_quit_pods = gauge(
            "would_quit_pods", "Pods whose proxy would have been told to exit without dry-run."
        )
        self.dead_proxies = counter(
            "dead_proxies", "Pods whose proxy ended first, by what was done.",
            action=DEAD_PROXY_ACTIONS,
        )  # fmt: skip

        self.injectors = gauge("injectors", "Istio's injectors, by state.", state=State)
        self.injector_probes = counter(
            "injector_probes", "Probes of Istio's injectors, by outcome.", outcome=PROBE_OUTCOMES
        )  # fmt: skip
        self.called_before = gauge(
            "configurations_called_before_ours",
            "Istio's webhook configurations that the API server calls before ours.",
        )

        self.unmeshed_pods = gauge(
            "unmeshed_pods", "Pods that should have a sidecar and have none."
        )
        self.sidecar_restarts = counter(
            "sidecar_restarts", "Restarts of pods that lack a sidecar, by outcome.",
            outcome=SIDECAR_RESTARTS,
        )  # fmt: skip
        self.suspended_jobs = gauge("suspended_jobs", "Jobs suspended until their pods are gone.")

        self.reviews = counter(
            "admission_reviews", "Admission reviews, by answer.", outcome=REVIEW_OUTCOMES
        )
        self.review_seconds = Histogram(
            "istio_aux_admission_seconds", "From the complete request to its answer.",
            registry=registry, buckets=(0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3),
        )  # fmt: skip
        self.connections = gauge("admission_connections", "Open connections to the webhook.")
        self.closed_connections = counter(
            "admission_connections_closed", "Closed connections to the webhook, by reason.",
            reason=Closed,
        )  # fmt: skip

        self.ready = gauge("ready", "Whether /readyz answers 200.")
        self.token_issued = gauge(
            "token_issue_timestamp_seconds", "When the present token was issued; 0: not known."
        )
        self.token_expires = gauge(
            "token_expiration_timestamp_seconds", "When the present token expires; 0: not known."
        )
        self.leader = gauge("leader", "Whether this process is the one that acts.")
        self.watch_restarts = counter(
            "watch_restarts", "Watches that started again, by reason.", reason=WATCH_REASONS
        )
        self.unreadable_objects = gauge(
            "unreadable_objects", "Kubernetes objects that exist and cannot be read."
        )
        self.internal_errors = counter(
            "internal_errors", "Unhandled exceptions; the log has a traceback of each."
        )

    def render(self) -> bytes:
        """All metrics in the Prometheus text format."""
        return generate_latest(self._registry)


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


class JsonLines(logging.Handler):
    """One JSON object a line: time, level, event, message, and what the call gave as ``extra``."""

    _USUAL = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
    _encoder = msgspec.json.Encoder(enc_hook=str)

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        # With PYTHONUNBUFFERED stdout has no buffer, and may write only a part of a line.
        raw = isinstance(stream, io.RawIOBase)
        self._stream = io.BufferedWriter(stream) if raw else stream

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; a value that JSON lacks becomes text."""
        try:
            facts = {key: value for key, value in vars(record).items() if key not in self._USUAL}
            event, message = facts.pop("event", record.name), record.getMessage()
            if record.exc_info:
                text = "".join(traceback.format_exception(*record.exc_info))
                facts["traceback"] = text.rstrip()
            time = datetime.fromtimestamp(record.created, UTC)
            line = {
                "time": time.isoformat(timespec="milliseconds"),
                "level": record.levelname.lower(),
                "event": event,
                "message": message,
                **facts,
            }
            self._stream.write(printable_json(self._encoder.encode(line)) + b"\n")
            self._stream.flush()
        except Exception:  # Logging must not fail its caller.
            self.handleError(record)


class Bounded(logging.Filter):
    """Passes `LINES` warnings a minute from each line of code that any client can make log.

    ``suppressed`` of the next line says how many were dropped.
    """

    LINES = 20
    _EXPOSED = ("asyncio", "aiohttp", "istio_aux.start.webhook", "istio_aux.serving")

    def __init__(self) -> None:
        super().__init__()
        self._minutes: dict[tuple[str, int], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
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
