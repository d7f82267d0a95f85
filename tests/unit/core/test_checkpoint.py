"""What a process leaves to the next one, as an annotation that anybody may have changed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from istio_aux.core.checkpoint import FAILED, INJECTORS, LONGEST, Checkpoint, Since, read
from istio_aux.core.liveness import State

NOW = datetime(2026, 11, 22, 14, 0, 0, 250_000, tzinfo=UTC)


def test_what_was_written_is_read() -> None:
    left = Checkpoint({"u-1": NOW}, {"istio-revision-tag-default": Since(State.LIVE, NOW)})
    assert read(left.text()) == left
    assert read(Checkpoint().text()) == Checkpoint()


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
        "{}" + " " * LONGEST,
    ],
)
def test_nothing_is_remembered_of_a_text_that_is_not_ours(text: str) -> None:
    assert read(text) == Checkpoint()


def test_what_is_left_is_bounded_and_of_controllers_it_is_the_newest() -> None:
    failed = {f"{number:036}": NOW + timedelta(seconds=number) for number in range(1000)}
    states = {f"{number:0253}": Since(State.NO_CA_BUNDLE, NOW) for number in range(1000)}
    text = Checkpoint(failed, states).text()
    assert len(text) < LONGEST / 4
    left = read(text)
    assert list(left.failed) == list(reversed(failed))[:FAILED]
    assert len(left.injectors) == INJECTORS


def test_a_uid_that_no_api_server_gave_is_not_left() -> None:
    """A Lease that is too large could not be renewed."""
    assert Checkpoint({"u" * 129: NOW, "u" * 128: NOW}).text().count(":00.250000Z") == 1
