"""A story is told from objects as an API server sent them (provenance: tests/data/README.md)."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from demo.observe import Line, Seen, moment, pod_story, refine
from demo.story import Run

DATA = Path(__file__).parents[2] / "data" / "demo"


def clock(text: str, microsecond: int = 0) -> datetime:
    """A time of the day of the recording."""
    hour, minute, second = map(int, text.split(":"))
    return datetime(2026, 11, 21, hour, minute, second, microsecond, tzinfo=UTC)


@pytest.fixture
def watched() -> tuple[Seen, ...]:
    """Every event of a classic-sidecar Job's pod; arrival is the time of its newest change."""
    events = (
        json.loads(line)
        for line in (DATA / "watch-classic-job.jsonstream").read_text().splitlines()
    )
    objects = [event["object"] for event in events]
    return tuple(
        Seen(max(moment(m["time"]) for m in o["metadata"]["managedFields"]), o) for o in objects
    )


def test_a_watched_classic_job_hangs_until_its_proxy_is_told_to_quit(
    watched: tuple[Seen, ...],
) -> None:
    endings = [pod_story(watched[: count + 1]).result for count in range(len(watched))]
    assert endings == [
        *["never started"] * 6,
        *["still running"] * 4,
        "hangs",
        # Every container is over, the phase is not: still running, and no second quit.
        *["still running"] * 2,
        *["succeeded"] * 2,
    ]


def test_a_log_that_agrees_with_the_whole_seconds_gives_the_fraction(
    watched: tuple[Seen, ...],
) -> None:
    log = (Line(clock("08:16:26", 400_000), "hello"), Line(clock("08:16:29", 500_000), "done"))
    story = pod_story(watched, {"main": log})
    assert story.payload == (Run(clock("08:16:26", 400_000), clock("08:16:29", 500_000), 0),)
    assert story.first_word == clock("08:16:26", 400_000)


@pytest.mark.parametrize(
    ("hint", "refined"),
    [
        (clock("08:16:24", 900_000), clock("08:16:24", 900_000)),
        (clock("08:16:25"), clock("08:16:24")),
        (clock("08:16:23", 999_999), clock("08:16:24")),
        (None, clock("08:16:24")),
    ],
)
def test_a_fraction_counts_only_within_the_second_that_kubernetes_reports(
    hint: datetime | None, refined: datetime
) -> None:
    assert refine(clock("08:16:24"), hint) == refined
