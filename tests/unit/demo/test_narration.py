"""Steps are said once each, with the time, as the story grows."""

from __future__ import annotations

import io
from dataclasses import replace

from demo.narration import Narrator
from demo.steps import Steps
from rich.console import Console
from unit.demo.stories import helped, run, with_pod, without


def test_each_fact_of_a_story_is_said_when_it_is_first_true_and_never_again() -> None:
    narrator = Narrator()
    bare = replace(helped(), condition="Running", pods=())
    assert narrator.news(bare) == ["with: TFJob mnist created, 2 workers"]
    assert narrator.news(bare) == []
    assert narrator.news(helped()) == [
        "with: mnist-worker-0: payload done",
        "with: mnist-worker-0: proxy exits with 0",
        "with: mnist-worker-1: payload done",
        "with: mnist-worker-1: proxy exits with 0",
        "with: TFJob mnist Succeeded",
    ]


def test_a_payload_that_fails_before_its_proxy_is_ready_is_said_to_have_come_too_early() -> None:
    early = with_pod(without(), payload=(run(1, 1.1, 1),), proxy_ready=None)
    late = with_pod(without(), payload=(run(9, 9.1, 3),))
    said = [Narrator().news(story)[-1] for story in (early, late)]
    assert said == [
        "without: mnist-worker-1: payload fails with exit code 1, its proxy is not ready yet",
        "without: mnist-worker-1: payload fails with exit code 3",
    ]


def test_a_step_is_one_line_with_the_seconds_since_the_start() -> None:
    times = iter([100.0, 112.34])
    out = io.StringIO()
    steps = Steps(Console(file=out, width=20), clock=lambda: next(times))
    steps.done("a step with a text that is longer than the console [is wide]")
    assert out.getvalue() == (
        "   12.3 s  a step with a text that is longer than the console [is wide]\n"
    )
