"""The promise is kept only when every part of it is, and says why when it is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from demo.promise import Promise, judge
from demo.story import JobStory
from unit.demo.stories import at, hanging_worker, helped, run, with_pod, without

SUCCEEDS = "with the label, the TFJob succeeds"
WORKERS = "with the label, all 2 workers succeed"
ONCE = "with the label, every payload runs once and exits 0"
HELD = "with the label, no payload starts before its proxy is ready"
EXITS = "with the label, every proxy exits 0"
FAILS = "without the label, the TFJob does not succeed"
HANGS = "without the label, every payload ends and its proxy runs on"
EARLY = {"payload": (run(4, 7.3, 0),), "proxy_ready": at(4.6)}


def broken(promise: Promise) -> dict[str, str]:
    """The parts that are not kept, with their reasons."""
    return {check.name: check.why for check in promise.checks if not check.kept}


def test_a_hanging_job_without_the_label_and_a_finished_one_with_it_keep_the_promise() -> None:
    promise = judge(without(), helped())
    assert (promise.kept, broken(promise)) == (True, {})
    assert not Promise(()).kept, "nothing was judged"


@pytest.mark.parametrize(
    ("story", "name", "why"),
    [
        (replace(helped(), condition="Running"), SUCCEEDS, "with/mnist is Running"),
        (replace(helped(), condition=""), SUCCEEDS, "with/mnist is not over"),
        (with_pod(helped(), phase="Running"), WORKERS, "mnist-worker-1: still running"),
        (replace(helped(), pods=helped().pods[:1]), WORKERS, "1 of 2 pods were never seen"),
        (with_pod(helped(), payload=(run(4.1, 4.2, 1), run(5, 8, 0))), ONCE, "exit codes [1, 0]"),
        (with_pod(helped(), payload=(run(1, 7.3, 0),)), HELD, "mnist-worker-1: 3.1 s before it"),
        # It spoke before its proxy was ready, in the same second.
        (with_pod(helped(), **EARLY, first_word=at(4.5)), HELD, "mnist-worker-1: 0.6 s before it"),
        (with_pod(helped(), proxy_ready=None), HELD, "mnist-worker-1: proxy never ready"),
        (with_pod(helped(), proxy=(run(1, 8, 137),)), EXITS, "mnist-worker-1: exit code 137"),
        (with_pod(helped(), proxy=(run(1),)), EXITS, "mnist-worker-1: still running"),
        (with_pod(helped(), proxy=()), EXITS, "mnist-worker-1: no proxy"),
    ],
)
def test_with_the_label_each_broken_part_is_named_with_its_reason(
    story: JobStory, name: str, why: str
) -> None:
    promise = judge(without(), story)
    assert not promise.kept
    assert why in broken(promise)[name]


def test_a_payload_started_in_the_second_in_which_its_proxy_became_ready_is_in_time() -> None:
    assert judge(without(), with_pod(helped(), **EARLY, first_word=at(4.7))).kept


@pytest.mark.parametrize(
    ("story", "name", "why"),
    [
        (replace(without(), condition="Succeeded"), FAILS, "without/mnist is Succeeded after 24 s"),
        # Nothing is proved yet.
        (with_pod(without(), payload=(run(1.1),)), HANGS, "payload not over, pod still running"),
        # The sidecar is not to blame.
        (
            with_pod(without(), phase="Pending", payload=(), proxy=()), HANGS,
            "payload not over, pod never started",
        ),
        (replace(without(), pods=()), HANGS, "2 of 2 pods were never seen"),
    ],
)  # fmt: skip
def test_without_the_label_only_a_hang_beside_the_proxy_counts(
    story: JobStory, name: str, why: str
) -> None:
    promise = judge(story, helped())
    assert not promise.kept
    assert why in broken(promise)[name]


def test_a_payload_that_failed_for_good_beside_a_running_proxy_hangs_too() -> None:
    assert replace(hanging_worker(0), payload=(run(1, 1.1, 1),)).hangs
