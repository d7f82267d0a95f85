"""What to do about a Lease that was seen."""

from __future__ import annotations

import pytest
from istio_aux.core.election import Acquire, LeaseRecord, Observation, Renew, Standby, Step, decide

ME, OTHER = "me", "other"


def held_by(holder: str | None, transitions: int | None = 4, **more: str) -> LeaseRecord:
    return LeaseRecord(
        holder_identity=holder, lease_duration_seconds=15, lease_transitions=transitions, **more
    )


def seen(record: LeaseRecord | None, since: float = 100.0, *, exists: bool = True) -> Observation:
    return Observation(record, since, exists=exists and record is not None)


MINE = held_by(ME)


@pytest.mark.parametrize(
    ("what", "observation", "now", "step"),
    [
        ("none was ever there", seen(None), 100, Acquire(0, "there was no lease")),
        ("it is mine", seen(MINE), 101, Renew(MINE, "the lease is held by this process")),
        ("it is mine though I was late", seen(MINE), 500,
         Renew(MINE, "the lease is held by this process")),
        ("it was mine and is deleted", seen(MINE, exists=False), 101,
         Renew(MINE, "the lease is held by this process")),
        ("it is another's", seen(held_by(OTHER)), 114.9,
         Standby(115, "the lease is held by other")),
        ("it was another's", seen(held_by(OTHER)), 115,
         Acquire(5, "the lease of other has lapsed")),
        ("another's is deleted", seen(held_by(OTHER), exists=False), 101,
         Standby(115, "the lease is held by other")),
        ("another's was deleted long ago", seen(held_by(OTHER), exists=False), 116,
         Acquire(5, "the lease of other has lapsed")),
        ("it was released", seen(held_by("")), 100, Acquire(5, "the lease was released")),
        ("somebody made an empty one", seen(LeaseRecord()), 100,
         Acquire(1, "the lease was released")),
        ("it names no duration", seen(LeaseRecord(holder_identity=OTHER)), 109,
         Standby(110, "the lease is held by other")),
        ("its times are those of a wrong clock",
         seen(held_by(OTHER, renew_time="1999-01-01T00:00:00.000000Z")), 101,
         Standby(115, "the lease is held by other")),
    ],
)  # fmt: skip
def test_what_to_do(what: str, observation: Observation, now: float, step: Step) -> None:
    """The duration of ten seconds counts only for a record that names none."""
    assert decide(ME, observation, now, 10) == step, what


def test_a_renewal_gives_the_holder_new_time() -> None:
    first = Observation().then(held_by(OTHER, renew_time="08:00"), 100)
    again = first.then(held_by(OTHER, renew_time="08:02"), 102)
    assert (first.since, again.since) == (100, 102)


def test_the_same_record_seen_again_gives_the_holder_no_new_time() -> None:
    record = held_by(OTHER, renew_time="08:00")
    assert Observation().then(record, 100).then(record, 102).since == 100


def test_a_lease_that_is_deleted_leaves_its_holder_the_rest_of_its_time() -> None:
    deleted = Observation().then(held_by(OTHER), 100).then(None, 110)
    assert (deleted.since, deleted.holder, deleted.exists) == (100, OTHER, False)
