"""The timeline and the table are read at a glance, in 100 columns, in a pipe, without colour."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from demo import table, timeline
from demo.chart import Kind, chart
from rich.console import Console
from unit.demo.stories import at, helped, run, with_pod, without


def printed(*things: object) -> list[str]:
    """The lines that a pipe of 100 columns gets."""
    out = io.StringIO()
    console = Console(file=out, width=100, highlight=False)
    for thing in things:
        console.print(thing)
    return out.getvalue().splitlines()


def lanes(line: str) -> str:
    """The part of a line between the names and the notes."""
    return line[timeline.NAMES : timeline.NAMES + timeline.BARS]


def test_a_timeline_line_shows_tries_work_and_a_proxy_that_runs_on() -> None:
    lines = printed(timeline.render(chart((without(), helped()))))
    payload, proxy = lines[2], lines[3]
    assert [lanes(payload).count(mark) for mark in "✗█"] == [2, 6]
    assert lanes(proxy).strip().strip("░").strip("▒").strip("▓") == "▶"
    assert (payload.split()[-6:], proxy.split()[-3:]) == (
        ["done", "at", "16.2", "s,", "try", "3"],
        ["does", "not", "exit"],
    )


def test_a_helped_payload_is_held_until_its_proxy_is_ready_and_the_proxy_ends_with_it() -> None:
    (job,) = chart((helped(),)).groups
    payload, proxy = job.pods[0].lanes
    assert [(bar.kind, bar.start, bar.end, bar.open) for bar in payload.bars] == [
        (Kind.HELD, 1.1, 4.2, False),
        (Kind.WORKING, 4.2, 7.3, False),
    ]
    assert [(bar.kind, bar.start, bar.end, bar.open) for bar in proxy.bars] == [
        (Kind.STARTING, 1.1, 4.1, False),
        (Kind.READY, 4.1, 7.3, False),
        (Kind.IDLE, 7.3, 8.2, False),
    ]


def test_both_jobs_share_one_scale() -> None:
    both = chart((without(), helped()))
    assert both.span == 24
    assert both.ticks == (0, 5, 10, 15, 20)


def test_a_heading_says_how_each_job_ended() -> None:
    lines = printed(timeline.render(chart((without(), helped()))))
    assert [line for line in lines if "label" in line] == [
        "Without the label, TFJob mnist in namespace without: still running after 24 s",
        "With the label, TFJob mnist in namespace with: succeeded after 10 s",
    ]


@pytest.mark.parametrize(
    "name", ["mnist-worker-0", "a-name-as-long-as-kubernetes-allows-" + "x" * 27]
)
def test_no_line_is_wider_than_a_hundred_columns(name: str) -> None:
    story = with_pod(without(), name=name)
    lines = printed(timeline.render(chart((story, helped()))), table.render((story, helped())))
    assert max(map(len, lines)) <= 100


def test_long_names_of_two_pods_of_one_job_stay_apart() -> None:
    names = [f"quite-a-long-job-name-worker-{number}" for number in (0, 1)]
    story = without()
    pods = tuple(replace(pod, name=name) for pod, name in zip(story.pods, names, strict=True))
    lines = printed(timeline.render(chart((replace(story, pods=pods),))))
    shown = [line.split()[0] for line in lines if "payload " in line and line.startswith("  quite")]
    assert len(set(shown)) == 2


def test_a_pipe_that_cannot_show_blocks_gets_plain_characters() -> None:
    lines = printed(timeline.render(chart((without(),)), timeline.glyphs("ascii")))
    assert "\n".join(lines).isascii()
    assert timeline.glyphs("UTF-8") is timeline.UNICODE


def test_a_pod_without_a_sidecar_and_one_that_never_started_are_drawn_as_such() -> None:
    (job,) = chart((with_pod(without(), payload=(), proxy=(), phase="Pending"),)).groups
    assert [lane.note for lane in job.pods[1].lanes] == ["never starts", "no sidecar"]
    assert [lane.bars for lane in job.pods[1].lanes] == [(), ()]


def test_a_proxy_that_was_never_ready_is_drawn_as_starting_to_its_end() -> None:
    (job,) = chart((with_pod(without(), proxy_ready=None, payload=(run(1),)),)).groups
    bars = job.pods[1].lanes[1].bars
    assert [(bar.kind, bar.end, bar.open) for bar in bars] == [(Kind.STARTING, 24, True)]


def test_the_table_has_a_row_for_each_pod_with_times_exit_codes_and_result() -> None:
    rows = [row.cells for job in (without(), helped()) for row in table.rows(job)]
    assert rows[0] == (
        "without/mnist-worker-0",
        "13.1 s, try 3",
        "16.2 s, exit 0",
        "4.3 s",
        "no",
        "hangs",
    )
    assert rows[3] == (
        "with/mnist-worker-1",
        "4.2 s",
        "7.3 s, exit 0",
        "4.1 s",
        "8.2 s, exit 0",
        "succeeded",
    )


def test_the_table_says_of_what_did_not_happen_that_it_did_not() -> None:
    story = with_pod(without(), payload=(), proxy=(), proxy_ready=at(3), phase="Pending")
    assert table.rows(story)[1].cells[1:] == ("never", "-", "no sidecar", "-", "never started")
