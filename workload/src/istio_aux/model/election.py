"""Leader election by a Lease, and the checkpoint that one leader leaves to the next.

`decide` follows client-go (tools/leaderelection ``tryAcquireOrRenew``). Times in a Lease are for
people: clocks differ between hosts, so the time of a holder starts when this process first sees the
record.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated

import msgspec

from istio_aux.model.annotations import Annotation
from istio_aux.model.pod import Struct
from istio_aux.model.text import UNDECODABLE

ANNOTATION = "istio-aux.io/checkpoint"  # Annotation of the Lease with a `Checkpoint`.
# Bounds of a checkpoint: its Lease is written every 2 s. First, the newest controllers whose
# restart failed, in 8 KiB.
FAILED = 100
# The newest controllers with a pod that is being replaced, in 10 KiB. Usually there are five at
# most, but a controller stays while its new pod does not come, or is not Ready.
REPLACED = 50
NEWEST = 5  # UIDs for each; only a new controller makes more pods in one second.
INJECTORS = 20  # Webhook configurations: a cluster has one for each revision and tag.
OWNER = 128  # Characters of a controller's key: a namespace has 63, a UID `pod.LONGEST_UID`.
LONGEST = 64 * 1024  # Characters that are read; checkpoints of this process are shorter.

# Seconds for which a holder's record counts at most. Units write 15. Otherwise, one write to the
# Lease could stop every unit for 68 years.
HONOURED = 60.0
# The most that the API server stores (coordination.k8s.io/v1, int32); the count begins again.
TRANSITIONS = 2**31 - 1

CHECKPOINT = Annotation(ANNOTATION, str, "a checkpoint", longest=LONGEST)

_Name = Annotated[str, msgspec.Meta(max_length=253)]


class LeaseRecord(Struct, frozen=True):
    """``spec`` of a Lease (coordination.k8s.io/v1); absent fields count as empty."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Observation(msgspec.Struct, frozen=True):
    """What this process saw of the Lease."""

    record: LeaseRecord | None = None  # The newest record, None if there never was one.
    since: float = 0.0  # When this process first saw it, in seconds of its monotonic clock.
    exists: bool = False  # Whether the Lease exists now.

    def then(self, record: LeaseRecord | None, now: float) -> Observation:
        """Add the record that was read. An unchanged one does not extend its holder's time."""
        if record is None:
            return Observation(self.record, self.since, exists=False)
        return Observation(record, self.since if record == self.record else now, exists=True)

    @property
    def holder(self) -> str:
        """The holder in the last record, or empty."""
        return (self.record and self.record.holder_identity) or ""


class Hold(msgspec.Struct, frozen=True):
    """Write the Lease as its holder, with acquireTime and transitions of ``before``."""

    before: LeaseRecord
    reason: str


class Standby(msgspec.Struct, frozen=True):
    """Leave the Lease to its holder. It lapses at ``until`` if it is not renewed."""

    until: float
    reason: str


Step = Hold | Standby


def decide(me: str, seen: Observation, now: float, duration: float) -> Step:
    """Decide what ``me`` does about the Lease.

    ``now`` is of the same clock as ``seen.since``. A record without a duration counts for
    ``duration`` seconds, and every record for `HONOURED` seconds at most.
    """
    record = seen.record
    if record is None:
        return Hold(LeaseRecord(), "there was no lease")
    if seen.holder == me:
        return Hold(record, "the lease is held by this process")
    # The holder of a Lease that was deleted is about to write it again.
    until = seen.since + min(record.lease_duration_seconds or duration, HONOURED)
    if seen.holder and now < until:
        return Standby(until, f"the lease is held by {seen.holder}")
    before = record.lease_transitions or 0
    new = LeaseRecord(lease_transitions=before + 1 if before < TRANSITIONS else 0)
    lapsed = f"the lease of {seen.holder} has lapsed"
    return Hold(new, lapsed if seen.holder else "the lease was released")


class Since(msgspec.Struct, frozen=True, array_like=True):
    """An injector's state, and since when it has it. Other versions may know other states."""

    state: Annotated[str, msgspec.Meta(max_length=40)]
    since: Annotated[datetime, msgspec.Meta(tz=True)]


class Replaced(msgspec.Struct, frozen=True):
    """A pod that is evicted, so that its controller makes a new one.

    The UIDs of all earlier pods would not fit, so the creationTimestamp of the newest one stands
    for them. The API server sets it, as it sets that of a new pod.
    """

    pod: _Name
    uid: _Name
    newest: float = 0.0  # creationTimestamp of the newest pod of the controller, since 1970.
    same: tuple[_Name, ...] = ()  # UIDs of pods created in that second; empty: too many.

    def knew(self, uid: str, created: float) -> bool:
        """Whether a pod was there before the eviction."""
        if created == self.newest and self.same:
            return uid in self.same
        return created <= self.newest


class Checkpoint(msgspec.Struct, frozen=True):
    """What the next leader cannot find in the cluster. Controllers are named by namespace/UID.

    Versions of istio-aux skip the fields that they do not know, and have a default for each.
    """

    # Controllers whose new pod had no sidecar either, and when that pod was created.
    failed: Mapping[_Name, Annotated[datetime, msgspec.Meta(tz=True)]] = {}
    injectors: Mapping[_Name, Since] = {}  # By the name of their configuration.
    # Controllers of which a pod is being replaced; the last one begun is last.
    replaced: Mapping[_Name, Replaced] = {}

    def text(self) -> str:
        """Encode the checkpoint for `read_checkpoint`."""
        failed = [(key, at) for key, at in self.failed.items() if len(key) <= OWNER]
        newest = sorted(failed, key=lambda item: (item[1], item[0]), reverse=True)[:FAILED]
        replaced = [(key, pod) for key, pod in self.replaced.items() if len(key) <= OWNER]
        return msgspec.json.encode(
            Checkpoint(
                dict(newest),
                dict(sorted(self.injectors.items())[:INJECTORS]),
                dict(replaced[-REPLACED:]),
            )
        ).decode()


_decoder = msgspec.json.Decoder(Checkpoint)


def read_checkpoint(text: str) -> Checkpoint | None:
    """Decode a checkpoint, which any client may have changed; None if it is none."""
    try:
        return _decoder.decode(text) if 0 < len(text) <= LONGEST else None
    except UNDECODABLE:
        return None
