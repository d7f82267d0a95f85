"""The demo: a story is told from objects, judged, and drawn."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from demo import report, scenes
from demo.promise import Promise, judge
from demo.story import JobStory, PodStory, Run

TESTS = Path(__file__).parents[2]
CREATED = datetime(2026, 11, 21, 10, 0, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """A moment so many seconds after the job was created."""
    return CREATED + timedelta(seconds=seconds)


def run(start: float, finish: float | None = None, code: int | None = None) -> Run:
    """A run of a container, in seconds since the job was created."""
    return Run(at(start), None if finish is None else at(finish), code)


def job(namespace: str, condition: str, pod: PodStory) -> JobStory:
    """A TFJob with two such pods."""
    pods = tuple(replace(pod, name=f"mnist-worker-{number}") for number in (0, 1))
    helped = namespace == "with"
    return JobStory("TFJob", namespace, "mnist", helped, 2, CREATED, at(24), condition, pods)


# Fails before the proxy is ready, works on the second try, and then hangs.
HANGS = PodStory(
    "without", "", "Running", (run(1.1, 1.2, 1), run(13.1, 16.2, 0)), (run(1.2),), at(4.3)
)
# Held until the proxy is ready, works, and ends with its proxy.
ENDS = PodStory("with", "", "Succeeded", (run(4.2, 7.3, 0),), (run(1.1, 8.2, 0),), at(4.1), at(4.3))
WITHOUT, HELPED = job("without", "Running", HANGS), job("with", "Succeeded", ENDS)


def changed(story: JobStory, **facts: object) -> JobStory:
    """The job with some facts about its second pod changed."""
    return replace(story, pods=(story.pods[0], replace(story.pods[1], **facts)))


@pytest.mark.parametrize(
    ("without", "helped", "broken"),
    [
        (WITHOUT, HELPED, ""),
        (WITHOUT, replace(HELPED, condition="Running"), "with/mnist is Running"),
        (WITHOUT, changed(HELPED, phase="Running"), "mnist-worker-1: still running"),
        (WITHOUT, replace(HELPED, pods=HELPED.pods[:1]), "1 of 2 pods were never seen"),
        (WITHOUT, changed(HELPED, payload=(run(4, 5, 1), run(5, 8, 0))), "exit codes [1, 0]"),
        (WITHOUT, changed(HELPED, payload=(run(1, 7.3, 0),)), "mnist-worker-1: 3.1 s before it"),
        # It spoke before its proxy was ready, in the same second.
        (WITHOUT, changed(HELPED, proxy_ready=at(4.6)), "mnist-worker-1: 0.4 s before it"),
        (WITHOUT, changed(HELPED, proxy_ready=at(4.6), first_word=at(4.7)), ""),
        (WITHOUT, changed(HELPED, proxy=(run(1, 8, 137),)), "mnist-worker-1: exit code 137"),
        (replace(WITHOUT, condition="Succeeded"), HELPED, "without/mnist is Succeeded after 24 s"),
        # Nothing is proved yet.
        (changed(WITHOUT, payload=(run(1.1),)), HELPED, "payload not over, pod still running"),
        (changed(WITHOUT, payload=(run(1, 2, 1),)), HELPED, ""),
    ],
)
def test_the_promise_is_broken_by_each_part_that_is_not_kept(
    without: JobStory, helped: JobStory, broken: str
) -> None:
    promise = judge(without, helped)

    assert promise.kept is not bool(broken)
    assert broken in "; ".join(check.why for check in promise.checks if not check.kept)
    assert not Promise(()).kept, "nothing was judged"


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
