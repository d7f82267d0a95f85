"""How the quit controller tells what it does: log lines, metrics and Events, all in this place.

Only the telling may live here. One log line for each decision that is a new one, each failed
attempt and each end; Events on the pod for what its owner should see.
"""

from __future__ import annotations

import logging
from typing import Literal

from istio_aux.core.annotations import IGNORE_CONTAINERS
from istio_aux.core.pod import PROXY
from istio_aux.core.quit import Rung
from istio_aux.kube.events import Events
from istio_aux.quit.proof import Gone, Outcome, ProxyExit, Superseded
from istio_aux.quit.record import STUCK_AFTER, Record, Work
from istio_aux.telemetry import NO_RUNG, Telemetry

_log = logging.getLogger(__name__)


class Narrator:
    """Knows all the ears there are; the controller knows none.

    Attributes:
        quiet: whether Events are somebody else's to send.
    """

    def __init__(self, telemetry: Telemetry, events: Events) -> None:
        """Tell ``telemetry`` and ``events``, and the log."""
        self._telemetry, self._events = telemetry, events
        self.quiet = False

    def decided(self, record: Record, *, dry: bool) -> None:
        """A decision differs from the last one on the pod; ``dry``: it will not be acted on."""
        # What there is nothing to do about is most of all pods, and interests nobody.
        level = logging.DEBUG if record.verdict == "ignore" else logging.INFO
        if record.verdict == "report":
            level = logging.WARNING
        action = "would quit" if dry and record.verdict == "quit" else record.verdict
        self._say(level, "decision", record, action=action, reason=record.reason)

    def rehearsed(self, record: Record) -> None:
        """A pod that was read again would now be told to quit, were this no dry run."""
        if record.first("ProxyQuitDryRun"):
            note = f"{record.reason}; a dry run leaves {PROXY} running"
            self._event(record, "Normal", "ProxyQuitDryRun", note, once=True)

    def attempts(self, record: Record, work: Work, rung: Rung) -> None:
        """The proxy is about to be told to exit."""
        self._telemetry.quit_attempts.labels(rung).inc()
        self._say(logging.DEBUG, "attempt", record, attempt=work.attempts, rung=rung)

    def failed(self, record: Record, work: Work) -> None:
        """An attempt had no success; there will be another."""
        level = logging.ERROR if work.failures == STUCK_AFTER else logging.WARNING
        self._say(
            level, "attempt-failed", record,
            errand=work.errand, attempts=work.attempts, reason=work.failure,
        )  # fmt: skip
        # The 1st, 2nd, 4th, 8th ... failure: a pod that is stuck for days must not fill etcd.
        if work.errand == "quit" and work.failures and work.failures & (work.failures - 1) == 0:
            note = f"failure {work.failures}: {work.failure}"
            self._event(record, "Warning", "ProxyQuitFailed", note)

    def tripped(self, record: Record) -> None:
        """An error that nobody foresaw is being handled."""
        self._telemetry.internal_errors.inc()
        _log.exception("%s", record.key, extra={"event": "internal-error"})

    def ended(self, record: Record, work: Work, outcome: Outcome) -> None:
        """Nothing is to be done about the proxy any more."""
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
        rung = work.rung or NO_RUNG
        self._telemetry.quits.labels(label, rung).inc()
        self._say(
            logging.INFO, "quit", record,
            outcome=label, rung=rung, attempts=work.attempts, reason=reason,
        )  # fmt: skip

    def lost(self, record: Record) -> None:
        """A second look confirms that the proxy is dead and a payload container is not."""
        if record.first("ProxyLost"):
            self._telemetry.dead_proxies.labels("reported").inc()
            self._event(record, "Warning", "ProxyLost", record.reason, once=True)

    def deleted(self, record: Record) -> None:
        """The pod with the dead proxy is deleted."""
        self._telemetry.dead_proxies.labels("deleted").inc()
        self._say(logging.WARNING, "dead-proxy-pod-deleted", record, reason=record.reason)
        note = f"deleted, so that its controller makes a new one: {record.reason}"
        self._event(record, "Normal", "DeadProxyPodDeleted", note)

    def not_deleted(self) -> None:
        """The deletion of a pod with a dead proxy failed; `failed` says why."""
        self._telemetry.dead_proxies.labels("delete-failed").inc()

    def blocked(self, record: Record) -> None:
        """A pod has been kept from completing for long."""
        if record.first("ProxyQuitBlocked"):
            by = ", ".join(record.blocked_by)
            self._say(logging.INFO, "blocked", record, by=by, reason=record.reason)
            note = (
                f"{PROXY} is kept by {by}: {record.reason}; annotation {IGNORE_CONTAINERS} names"
                " containers that nobody has to wait for"
            )
            self._event(record, "Normal", "ProxyQuitBlocked", note, once=True)

    def _exited(self, record: Record, outcome: ProxyExit, reason: str) -> None:
        if outcome.after_payload is not None:
            self._telemetry.exit_to_exit.observe(outcome.after_payload)
        self._telemetry.quits_total += 1
        kind = "Normal" if outcome.exit_code == 0 else "Warning"
        note = f"every payload container is finished; {reason}"
        self._event(record, kind, "ProxyQuit", note)

    def _event(
        self,
        record: Record,
        kind: Literal["Normal", "Warning"],
        reason: str,
        note: str,
        *,
        once: bool = False,
    ) -> None:
        if not self.quiet:
            self._events.emit(record.key, kind, reason=reason, action="Quit", note=note, once=once)

    def _say(self, level: int, event: str, record: Record, **facts: object) -> None:
        namespace, name, uid = record.key
        named = {"namespace": namespace, "pod": name, "uid": uid}
        _log.log(level, "%s", record.key, extra={"event": event, **named, **facts})
