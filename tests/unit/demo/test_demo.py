"""The demo: a story is told from objects, judged, and drawn."""

from __future__ import annotations

from pathlib import Path

from demo import report, scenes

TESTS = Path(__file__).parents[2]


def test_the_picture_of_the_readme_is_what_the_demo_draws_today() -> None:
    """If it is not: `make picture`, as root."""
    text = (TESTS.parent / "docs/timeline.svg").read_text(encoding="utf-8")

    drawn = report.drawn_from(text)

    assert report.svg(drawn.jobs, drawn.title) == text
    shown = [(job.kind, job.namespace, job.helped, job.native) for job in drawn.jobs]
    assert shown == [
        ("TFJob", scenes.WITHOUT.namespace, False, False),
        ("TFJob", scenes.WITH.namespace, True, False),
        ("TFJob", scenes.NATIVE.namespace, True, True),
    ]
