"""What to do about a Lease, and the checkpoint in it, which anybody may have changed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from istio_aux.model.answers import Liveness
from istio_aux.model.election import (
    FAILED,
    INJECTORS,
    LONGEST,
    NEWEST,
    REPLACED,
    Checkpoint,
    Hold,
    LeaseRecord,
    Observation,
    Replaced,
    Since,
    Standby,
    Step,
    decide,
    read_checkpoint,
)

ME, OTHER = "me", "other"
NOW = datetime(2026, 11, 22, 14, 0, 0, 250_000, tzinfo=UTC)


def held_by(holder: str | None, transitions: int | None = 4, **more: str) -> LeaseRecord:
    return LeaseRecord(
        holder_identity=holder, lease_duration_seconds=15, lease_transitions=transitions, **more
    )


def seen(record: LeaseRecord | None, since: float = 100.0, *, exists: bool = True) -> Observation:
    return Observation(record, since, exists=exists and record is not None)


MINE = held_by(ME)


def acquire(transitions: int, reason: str) -> Hold:
    return Hold(LeaseRecord(lease_transitions=transitions), reason)


@pytest.mark.parametrize(
    ("what", "observation", "now", "step"),
    [
        ("none was ever there", seen(None), 100, Hold(LeaseRecord(), "there was no lease")),
        ("it is mine", seen(MINE), 101, Hold(MINE, "the lease is held by this process")),
        ("it was mine and is deleted", seen(MINE, exists=False), 101,
         Hold(MINE, "the lease is held by this process")),
        ("it is another's", seen(held_by(OTHER)), 114.9,
         Standby(115, "the lease is held by other")),
        ("it was another's", seen(held_by(OTHER)), 115,
         acquire(5, "the lease of other has lapsed")),
        ("another's is deleted", seen(held_by(OTHER), exists=False), 101,
         Standby(115, "the lease is held by other")),
        ("it was released", seen(held_by("")), 100, acquire(5, "the lease was released")),
        ("somebody made an empty one", seen(LeaseRecord()), 100,
         acquire(1, "the lease was released")),
        ("it names 68 years", seen(LeaseRecord(OTHER, 2**31 - 1)), 159.9,
         Standby(160, "the lease is held by other")),
        ("it named 68 years", seen(LeaseRecord(OTHER, 2**31 - 1)), 160,
         acquire(1, "the lease of other has lapsed")),
        ("its count of transitions is full", seen(held_by("", 2**31 - 1)), 100,
         acquire(0, "the lease was released")),
    ],
)  # fmt: skip
def test_what_to_do(what: str, observation: Observation, now: float, step: Step) -> None:
    """The duration of ten seconds counts only for a record that names none."""
    assert decide(ME, observation, now, 10) == step, what


@pytest.mark.parametrize(
    ("record", "since"),
    [
        (held_by(OTHER, renew_time="08:02"), 110),
        (held_by(OTHER, renew_time="08:00"), 100),
        (None, 100),
    ],
    ids=["a renewal", "the same record seen again", "its deletion"],
)
def test_only_a_renewal_gives_the_holder_new_time(record: LeaseRecord | None, since: float) -> None:
    first = Observation().then(held_by(OTHER, renew_time="08:00"), 100)
    found = first.then(record, 110)
    assert (found.since, found.holder, found.exists) == (since, OTHER, record is not None)


def test_what_was_written_is_read_back() -> None:
    since = {"istio-revision-tag-default": Since(Liveness.LIVE, NOW)}
    replaced = Replaced("web-1", "u-2", 1e9, ("u-2", "u-3"))
    left = Checkpoint({"u-1": NOW}, since, {"shop/u-1": replaced})
    assert read_checkpoint(left.text()) == left
    assert read_checkpoint(Checkpoint().text()) == Checkpoint()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "so",
        "[]",
        '{"failed": {"u-1": 3}}',
        '{"failed": {"u-1": "2026-11-22T14:00:00"}}',
        '{"injectors": {"default": ["%s", "2026-11-22T14:00:00Z"]' % ("s" * 41) + "}}",
        '{"injectors": {"default": ["live"]}}',
        '{"failed": {"%s": "2026-11-22T14:00:00Z"}}' % ("u" * 254),
        '{"more": ' + "[" * 30_000 + "]" * 30_000 + "}",
        '{"failed": {"u-1": "2026-11-22T14:00:00Z"}}' + " " * LONGEST,
    ],
)
def test_nothing_is_remembered_of_a_text_that_is_not_ours(text: str) -> None:
    assert read_checkpoint(text) is None


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (
            '{"failed":{"u-1":"2026-11-22T14:00:00Z"},"injectors":{}}',
            Checkpoint({"u-1": datetime(2026, 11, 22, 14, tzinfo=UTC)}),
        ),
        (
            '{"replaced":{"a/b":{"pod":"web-1","uid":"u-1","more":[1]}},"more":{"so":1}}',
            Checkpoint(replaced={"a/b": Replaced("web-1", "u-1")}),
        ),
    ],
    ids=["an older one", "a newer one"],
)
def test_versions_of_istio_aux_understand_each_other(text: str, left: Checkpoint) -> None:
    """A field that is missing has a default, and an unknown one is skipped."""
    assert read_checkpoint(text) == left


def test_what_is_left_is_bounded_by_what_an_api_server_stores() -> None:
    """A Lease that is too large could not be renewed: a UID that no API server gave is not left."""
    uids = tuple(f"{number:036}" for number in range(NEWEST))
    replaced = {f"{n:0128}": Replaced("p" * 253, uids[0], 1e9, uids) for n in range(200)}
    failed = {f"{number:0128}": NOW + timedelta(seconds=number) for number in range(1000)}
    states = {f"{number:0253}": Since(Liveness.NO_CA_BUNDLE, NOW) for number in range(1000)}
    text = Checkpoint({"u" * 129: NOW + timedelta(days=1)} | failed, states, replaced).text()
    assert len(text) < LONGEST
    left = read_checkpoint(text)
    assert left
    assert list(left.replaced) == list(replaced)[-REPLACED:]
    assert list(left.failed) == list(reversed(failed))[:FAILED]
    assert len(left.injectors) == INJECTORS
