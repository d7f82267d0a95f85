"""How the quit controller tells what it does: log lines, metrics and Events, all in this place.

Only the telling may live here. One log line for each decision that is a new one, each failed
attempt and each end; Events on the pod for what its owner should see.
"""

from __future__ import annotations

import logging

from istio_aux.core.pod import PROXY
from istio_aux.kube.events import Events
from istio_aux.quit.proof import Gone, Outcome, ProxyExit, Superseded
from istio_aux.quit.record import STUCK_AFTER, Record, Work
from istio_aux.telemetry import Telemetry

_log = logging.getLogger(__name__)


class Narrator:
    """Knows all the ears there are; the controller knows none."""

    def __init__(self, telemetry: Telemetry, events: Events) -> None:
        """Tell ``telemetry`` and ``events``, and the log."""
        self._telemetry, self._events = telemetry, events

    def decided(self, record: Record) -> None:
        """A decision differs from the last one on the same pod."""
        # What there is nothing to do about is most of all pods, and interests nobody.
        level = logging.DEBUG if record.verdict == "ignore" else logging.INFO
        self._say(level, "decision", record, action=record.verdict, reason=record.reason)

    def attempts(self, record: Record, work: Work) -> None:
        """The command is about to be sent."""
        self._telemetry.quit_attempts.inc()
        self._say(logging.DEBUG, "attempt", record, attempt=work.attempts)

    def failed(self, record: Record, work: Work) -> None:
        """An attempt did not make the proxy exit; there will be another."""
        level = logging.ERROR if work.failures == STUCK_AFTER else logging.WARNING
        self._say(level, "attempt-failed", record, attempts=work.attempts, reason=work.failure)
        # The 1st, 2nd, 4th, 8th ... failure: a pod that is stuck for days must not fill etcd.
        if work.failures and work.failures & (work.failures - 1) == 0:
            note = f"failure {work.failures}: {work.failure}"
            self._events.emit(
                record.key, "Warning", reason="ProxyQuitFailed", action="Quit", note=note
            )

    def tripped(self, record: Record) -> None:
        """An error that nobody foresaw is being handled."""
        self._telemetry.internal_errors.inc()
        _log.exception("%s", record.key, extra={"event": "internal-error"})

    def ended(self, record: Record, work: Work, outcome: Outcome) -> None:
        """Nothing is to be done about the pod any more."""
        match outcome:
            case ProxyExit(exit_code=code, after_payload=after):
                label = "exited" if code == 0 else "exited-nonzero"
                when = "" if after is None else f", {after:g} s after the payload"
                reason = f"{PROXY} exited with {code}{when}"
                self._exited(record, outcome, reason)
            case Gone():
                label, reason = "gone", "the pod is gone"
            case Superseded(reason=why):
                label, reason = "superseded", why
        self._telemetry.quits.labels(label).inc()
        self._say(
            logging.INFO, "quit", record,
            outcome=label, attempts=work.attempts, reason=reason,
        )  # fmt: skip

    def _exited(self, record: Record, outcome: ProxyExit, reason: str) -> None:
        if outcome.after_payload is not None:
            self._telemetry.exit_to_exit.observe(outcome.after_payload)
        self._telemetry.quits_total += 1
        kind = "Normal" if outcome.exit_code == 0 else "Warning"
        note = f"every payload container is finished; {reason}"
        self._events.emit(record.key, kind, reason="ProxyQuit", action="Quit", note=note)

    def _say(self, level: int, event: str, record: Record, **facts: object) -> None:
        namespace, name, uid = record.key
        named = {"namespace": namespace, "pod": name, "uid": uid}
        _log.log(level, "%s", record.key, extra={"event": event, **named, **facts})
