"""What the process tells about itself: Prometheus metrics with bounded labels, and JSON log lines.

Only definitions may live here; whoever does the work counts it. Metrics live in a registry of their
own, so that several can be made in one process.
"""

from __future__ import annotations

import io
import logging
import sys
import traceback
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from itertools import product
from typing import BinaryIO

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector

from istio_aux.core.liveness import State
from istio_aux.core.quit import Rung

QUIT_OUTCOMES = ("exited", "exited-nonzero", "gone", "superseded")
"""How a quit can end: exit 0, another exit code, the pod gone first, no longer needed."""

NO_RUNG = "none"
"""Rung of a quit that ended before the first attempt."""

DEAD_PROXY_ACTIONS = ("reported", "deleted", "delete-failed")
"""What was done about a pod that lost its proxy."""

SIDECAR_RESTARTS = ("evicted", "refused", "suspended", "resumed", "stopped", "failed")
"""What became of a restart for a sidecar: "refused" by a PodDisruptionBudget, "stopped" because the
new pod has none either; "suspended" and "resumed" are Jobs."""

PROBE_WAYS = ("direct", "dry-run")
PROBE_OUTCOMES = ("injected", "refused", "unreachable")
"""What came of asking an injector: a sidecar, an answer without one, no answer."""

REVIEW_OUTCOMES = (
    "native", "hold", "moved", "labelled", "unchanged", "malformed", "too-large", "timeout",
    "not-allowed", "busy",
)  # fmt: skip
"""How a review can be answered: the first five with 200, "malformed" with 200 or 400, the others
with an HTTP error."""


class Closed(StrEnum):
    """Why a connection to the webhook came to its end."""

    PEER = "peer"
    """The client wished it, or is gone."""
    HANDSHAKE = "handshake"
    """It failed, or was not over in time."""
    TIMEOUT = "timeout"
    """A request was not complete in time."""
    REFUSED = "refused"
    """A request was refused before its end."""
    IDLE = "idle"
    LIMIT = "limit"
    """There were too many connections."""
    UNREAD = "unread"
    """The client did not take its answers."""
    DRAIN = "drain"
    """The process ends."""


WATCH_REASONS = (
    "ended", "relist", "expired", "silent", "connection", "throttled", "server-error", "refused",
    "went-back",
)  # fmt: skip
"""Why a watch started again; the first two are a matter of course."""


class Telemetry:
    """All metrics. A class because counters belong to a process, not to a module."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        GCCollector(registry=registry)
        self._registry = registry
        self.quits = Counter(
            "istio_aux_quits", "Proxies dealt with, by how it ended and the way tried last.",
            ["outcome", "rung"], registry=registry,
        )  # fmt: skip
        self.quit_attempts = Counter(
            "istio_aux_quit_attempts", "Attempts to make a proxy exit, by way.", ["rung"],
            registry=registry,
        )  # fmt: skip
        self.dead_proxies = Counter(
            "istio_aux_dead_proxies", "Pods that lost their proxy, by what was done.", ["action"],
            registry=registry,
        )  # fmt: skip
        self.stuck_pods = Gauge(
            "istio_aux_stuck_pods", "Pods whose proxy withstood several attempts.",
            registry=registry,
        )  # fmt: skip
        self.blocked_pods = Gauge(
            "istio_aux_blocked_pods",
            "Pods that a container keeps from completing although another one is finished.",
            registry=registry,
        )  # fmt: skip
        self.lost_pods = Gauge(
            "istio_aux_lost_pods", "Pods whose proxy is gone while a payload may still run.",
            registry=registry,
        )  # fmt: skip
        self.would_quit_pods = Gauge(
            "istio_aux_would_quit_pods", "Pods whose proxy only a dry run leaves running.",
            registry=registry,
        )  # fmt: skip
        self.injectors = Gauge(
            "istio_aux_injectors", "Istio's injectors, by how far they are from being live.",
            ["state"], registry=registry,
        )  # fmt: skip
        self.injector_probes = Counter(
            "istio_aux_injector_probes", "Questions put to Istio's injectors, by way.",
            ["way", "outcome"], registry=registry,
        )  # fmt: skip
        self.unmeshed_pods = Gauge(
            "istio_aux_unmeshed_pods", "Pods that should have a sidecar and have none.",
            registry=registry,
        )  # fmt: skip
        self.sidecar_restarts = Counter(
            "istio_aux_sidecar_restarts", "Restarts of pods for their sidecar, by what became of"
            " them.", ["outcome"], registry=registry,
        )  # fmt: skip
        self.suspended_jobs = Gauge(
            "istio_aux_suspended_jobs", "Jobs that are suspended until their pods are gone.",
            registry=registry,
        )  # fmt: skip
        self.leader = Gauge(
            "istio_aux_leader", "Whether this process is the one that acts.", registry=registry
        )
        self.watched_pods = Gauge(
            "istio_aux_watched_pods", "Pods that may need their proxy to quit.", registry=registry
        )
        self.watch_restarts = Counter(
            "istio_aux_watch_restarts", "Watches that started again, by why.", ["reason"],
            registry=registry,
        )  # fmt: skip
        self.reviews = Counter(
            "istio_aux_admission_reviews", "Admission reviews, by how they were answered.",
            ["outcome"], registry=registry,
        )  # fmt: skip
        self.called_before = Gauge(
            "istio_aux_configurations_called_before_ours",
            "Istio's webhook configurations that the API server calls before ours.",
            registry=registry,
        )  # fmt: skip
        self.review_seconds = Histogram(
            "istio_aux_admission_seconds", "Time from the complete request to its answer.",
            registry=registry, buckets=(0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3),
        )  # fmt: skip
        self.connections = Gauge(
            "istio_aux_admission_connections", "Connections to the webhook.", registry=registry
        )
        self.closed_connections = Counter(
            "istio_aux_admission_connections_closed", "Connections to the webhook that ended, by"
            " why.", ["reason"], registry=registry,
        )  # fmt: skip
        self.exit_to_exit = Histogram(
            "istio_aux_payload_exit_to_proxy_exit_seconds",
            "From the last payload container's exit to the proxy's; the kubelet's clock, in whole"
            " seconds.",
            registry=registry, buckets=(1, 2, 3, 5, 10, 30, 60, 300, 900, 3600),
        )  # fmt: skip
        self.internal_errors = Counter(
            "istio_aux_internal_errors", "Errors that nobody foresaw; each has a traceback in the"
            " log.", registry=registry,
        )  # fmt: skip
        self.unreadable_objects = Gauge(
            "istio_aux_unreadable_objects", "Objects of the API that are there but cannot be read.",
            registry=registry,
        )  # fmt: skip
        # A series that is there from the start, at zero, is what rate() and alerts can see rise.
        for outcome, rung in product(QUIT_OUTCOMES, (NO_RUNG, *Rung)):
            self.quits.labels(outcome, rung)
        for way, outcome in product(PROBE_WAYS, PROBE_OUTCOMES):
            self.injector_probes.labels(way, outcome)
        for state in State:
            self.injectors.labels(state)
        for counter, values in (
            (self.quit_attempts, tuple(Rung)),
            (self.dead_proxies, DEAD_PROXY_ACTIONS),
            (self.sidecar_restarts, SIDECAR_RESTARTS),
            (self.closed_connections, tuple(Closed)),
            (self.watch_restarts, WATCH_REASONS),
        ):
            for value in values:
                counter.labels(value)
        self.reviews_by_outcome = {value: self.reviews.labels(value) for value in REVIEW_OUTCOMES}
        """The children of `reviews`: looking one up costs as much as answering a review."""

        self.quits_total = 0
        """Proxies that were told to exit and did; `/status` shows it."""

    def render(self) -> bytes:
        """All metrics in the Prometheus text format."""
        return generate_latest(self._registry)


class JsonLines(logging.Handler):
    """One JSON object a line: time, level, event, message, and what the call gave as ``extra``.

    A handler that formats by itself, because the text that a formatter returns would be encoded
    once more on its way to the stream.
    """

    _USUAL = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
    _encoder = msgspec.json.Encoder(enc_hook=str)

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        # With PYTHONUNBUFFERED standard output has no buffer, and may take only a part of a line.
        raw = isinstance(stream, io.RawIOBase)
        self._stream = io.BufferedWriter(stream) if raw else stream

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; a value that JSON does not know is shown as text."""
        try:
            facts = {key: value for key, value in vars(record).items() if key not in self._USUAL}
            event, message = facts.pop("event", record.name), record.getMessage()
            if record.exc_info:
                text = "".join(traceback.format_exception(*record.exc_info))
                facts["traceback"] = text.rstrip()
            whole = int(record.created)
            line = {
                "time": f"{_second(whole)}.{int((record.created - whole) * 1000):03d}+00:00",
                "level": record.levelname.lower(),
                "event": event,
                "message": message,
                **facts,
            }
            self._stream.write(self._encoder.encode(line) + b"\n")
            self._stream.flush()
        except Exception:  # Logging must not fail its caller.
            self.handleError(record)


class Bounded(logging.Filter):
    """At most `LINES` lines a minute from each place in the code that outsiders can make log.

    The first line of a later minute has their number in ``suppressed``. A class because it counts.
    """

    LINES = 20
    _OUTSIDERS = ("asyncio", "aiohttp", "istio_aux.admission", "istio_aux.serving")

    def __init__(self) -> None:
        super().__init__()
        self._minutes: dict[tuple[str, int], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is to be written."""
        if record.levelno < logging.WARNING or not record.name.startswith(self._OUTSIDERS):
            return True
        place = (record.name, record.lineno)
        began, count = self._minutes.get(place, (record.created, 0))
        if record.created - began >= 60:
            if count > self.LINES:
                record.suppressed = count - self.LINES
            began, count = record.created, 0
        self._minutes[place] = (began, count + 1)
        return count < self.LINES


@lru_cache(maxsize=2)
def _second(seconds: int) -> str:
    """The time of day, without a zone; most lines are of the same second as the one before."""
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()


def log_to(stream: BinaryIO | None = None, level: str = "info") -> None:
    """Send all logging to ``stream``, or standard output, as JSON lines, from ``level`` on."""
    handler = JsonLines(stream or sys.stdout.buffer)
    handler.addFilter(Bounded())
    root = logging.getLogger()
    for other in root.handlers[:]:
        root.removeHandler(other)
    root.addHandler(handler)
    root.setLevel(level.upper())
    logging.captureWarnings(capture=True)
