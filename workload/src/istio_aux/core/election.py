"""Who leads, by a Lease that several processes write in turn.

Only the rule may live here: what one process should do about the Lease it saw. The rules follow
client-go (tools/leaderelection ``tryAcquireOrRenew``). Times in a Lease are for people: clocks
differ between hosts, so a holder's time runs from when this process first saw the record.
"""

from __future__ import annotations

import msgspec

from istio_aux.core.pod import Struct


class LeaseRecord(Struct, frozen=True):
    """``spec`` of a Lease (coordination.k8s.io/v1); absent fields count as empty."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Observation(msgspec.Struct, frozen=True):
    """What this process saw.

    Attributes:
        record: the newest record that was there, None if there never was one.
        since: when this process first saw it, in seconds of its own steady clock.
        exists: whether the Lease is there now.
    """

    record: LeaseRecord | None = None
    since: float = 0.0
    exists: bool = False

    def then(self, record: LeaseRecord | None, now: float) -> Observation:
        """What is known after another look; the same record again does not start its time anew."""
        if record is None:
            return Observation(self.record, self.since, exists=False)
        since = self.since if record == self.record else now
        return Observation(record, since, exists=True)

    @property
    def holder(self) -> str:
        """Whom the last record names, empty if nobody."""
        return (self.record and self.record.holder_identity) or ""


class Acquire(msgspec.Struct, frozen=True):
    """Write the Lease as the new holder, for the ``transitions``-th change of holders."""

    transitions: int
    reason: str


class Renew(msgspec.Struct, frozen=True):
    """Write the Lease again: it is ours."""

    record: LeaseRecord
    reason: str


class Standby(msgspec.Struct, frozen=True):
    """Leave it to its holder; ``until`` is when it lapses if it is not renewed."""

    until: float
    reason: str


Step = Acquire | Renew | Standby


def decide(me: str, seen: Observation, now: float, duration: float) -> Step:
    """Say what to do about the Lease.

    Args:
        me: this process's identity.
        seen: what it last saw.
        now: seconds of the clock that ``seen.since`` is of.
        duration: seconds that a record counts for which names no duration.
    """
    record = seen.record
    if record is None:
        return Acquire(0, "there was no lease")
    transitions = record.lease_transitions or 0
    if seen.holder == me:
        return Renew(record, "the lease is held by this process")
    if not seen.holder:
        return Acquire(transitions + 1, "the lease was released")
    # A Lease that somebody deleted is still its holder's, who is about to write it again.
    until = seen.since + (record.lease_duration_seconds or duration)
    if now < until:
        return Standby(until, f"the lease is held by {seen.holder}")
    return Acquire(transitions + 1, f"the lease of {seen.holder} has lapsed")
