"""The demo's process: the steps that it prints, and the cluster that it keeps (DEMO_KEEP)."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from demo.narration import Narrator
from demo.steps import Steps
from rich.console import Console
from unit.demo.stories import helped, run, with_pod, without

TESTS = Path(__file__).parents[2]

# The child tells its pid, reports 7, and says on a pipe of the test's own that it ended.
STAYS = """
import os, sys
from demo import keeping

def play(stay):
    print(os.getpid(), flush=True)
    stay(7)
    os.write(int(sys.argv[1]), b"told")

sys.exit(keeping.in_child(play))
"""
FAILS = """
import sys
from demo import keeping

def play(stay):
    raise SystemExit("no cluster")

sys.exit(keeping.in_child(play))
"""


def test_the_demo_names_the_kubernetes_that_it_runs() -> None:
    said = (
        "from demo import api, node; print(api.MADE['Kubernetes']); print(node.MADE['Kubernetes'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", said],
        cwd=TESTS,
        env={**os.environ, "LAB_KUBERNETES": "1.32"},
        capture_output=True,
        text=True,
        check=True,
    )

    versions = [line.partition(":")[0] for line in done.stdout.splitlines()]
    assert versions == ["1.32.2", "1.32.2"]


def test_the_demo_returns_its_status_and_its_child_stays_until_a_signal() -> None:
    reading, writing = os.pipe()
    command = [sys.executable, "-c", STAYS, str(writing)]
    done = subprocess.run(
        command, cwd=TESTS, pass_fds=[writing], stdout=subprocess.PIPE, text=True, check=False
    )
    os.close(writing)
    assert done.returncode == 7

    os.kill(int(done.stdout), 15)

    assert os.read(reading, 10) == b"told"
    os.close(reading)


def test_a_child_that_ends_without_a_report_means_status_2() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAILS], cwd=TESTS, check=False, capture_output=True
    )
    assert done.returncode == 2


def test_each_fact_of_a_story_is_printed_once() -> None:
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


def test_a_payload_that_fails_before_its_proxy_is_ready_is_printed_with_the_reason() -> None:
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
