"""The promise is kept only when every part of it is, and says why when it is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from demo.promise import Promise, judge
from demo.story import JobStory
from unit.demo.stories import at, hanging_worker, helped, run, with_pod, without


def broken(promise: Promise) -> list[tuple[str, str]]:
    """The parts that are not kept, with their reasons."""
    return [(check.name, check.why) for check in promise.checks if not check.kept]


def test_a_hanging_job_without_the_label_and_a_finished_one_with_it_keep_the_promise() -> None:
    promise = judge(without(), helped())
    assert (promise.kept, broken(promise)) == (True, [])


def test_a_promise_without_parts_is_not_kept() -> None:
    assert not Promise(()).kept


@pytest.mark.parametrize(
    ("story", "name", "why"),
    [
        pytest.param(
            replace(helped(), condition="Running"),
            "with the label, the TFJob succeeds",
            "with/mnist is Running",
            id="the job with the label is still running",
        ),
        pytest.param(
            replace(helped(), condition=""),
            "with the label, the TFJob succeeds",
            "with/mnist is not over",
            id="the job with the label has no condition",
        ),
        pytest.param(
            with_pod(helped(), phase="Running"),
            "with the label, all 2 workers succeed",
            "mnist-worker-0: succeeded; mnist-worker-1: still running",
            id="one worker is still running",
        ),
        pytest.param(
            with_pod(helped(), payload=(run(4.1, 4.2, 1), run(5, 8, 0))),
            "with the label, every payload runs once and exits 0",
            "mnist-worker-0: exit codes [0]; mnist-worker-1: exit codes [1, 0]",
            id="a payload needed a second try",
        ),
        pytest.param(
            with_pod(helped(), payload=(run(1, 7.3, 0),)),
            "with the label, no payload starts before its proxy is ready",
            "mnist-worker-0: 0.1 s after it; mnist-worker-1: 3.1 s before it",
            id="a payload was started seconds before its proxy was ready",
        ),
        pytest.param(
            with_pod(helped(), payload=(run(4, 7.3, 0),), proxy_ready=at(4.6), first_word=at(4.5)),
            "with the label, no payload starts before its proxy is ready",
            "mnist-worker-0: 0.1 s after it; mnist-worker-1: 0.6 s before it",
            id="a payload spoke before its proxy was ready, in the same second",
        ),
        pytest.param(
            with_pod(helped(), proxy_ready=None),
            "with the label, no payload starts before its proxy is ready",
            "mnist-worker-0: 0.1 s after it; mnist-worker-1: proxy never ready",
            id="a proxy was never seen to be ready",
        ),
        pytest.param(
            with_pod(helped(), proxy=(run(1, 8, 137),)),
            "with the label, every proxy exits 0",
            "mnist-worker-0: exit code 0; mnist-worker-1: exit code 137",
            id="a proxy was killed",
        ),
        pytest.param(
            with_pod(helped(), proxy=(run(1),)),
            "with the label, every proxy exits 0",
            "mnist-worker-0: exit code 0; mnist-worker-1: still running",
            id="a proxy never exited",
        ),
        pytest.param(
            with_pod(helped(), proxy=()),
            "with the label, every proxy exits 0",
            "mnist-worker-0: exit code 0; mnist-worker-1: no proxy",
            id="a pod had no sidecar at all",
        ),
        pytest.param(
            replace(helped(), pods=helped().pods[:1]),
            "with the label, all 2 workers succeed",
            "mnist-worker-0: succeeded; 1 of 2 pods were never seen",
            id="a worker was never created",
        ),
    ],
)
def test_with_the_label_each_broken_part_is_named_with_its_reason(
    story: JobStory, name: str, why: str
) -> None:
    promise = judge(without(), story)
    assert not promise.kept
    assert (name, why) in broken(promise)


def test_a_payload_started_in_the_second_in_which_its_proxy_became_ready_is_in_time() -> None:
    same_second = with_pod(
        helped(), payload=(run(4, 7, 0),), proxy_ready=at(4.6), first_word=at(4.7)
    )
    assert judge(without(), same_second).kept


@pytest.mark.parametrize(
    ("story", "name", "why"),
    [
        pytest.param(
            replace(without(), condition="Succeeded"),
            "without the label, the TFJob does not succeed",
            "without/mnist is Succeeded after 24 s",
            id="it succeeded without help",
        ),
        pytest.param(
            with_pod(without(), payload=(run(1.1),)),
            "without the label, every payload ends and its proxy runs on",
            "mnist-worker-0: payload exit code 0, pod hangs; "
            "mnist-worker-1: payload not over, pod still running",
            id="a payload was still at work, so nothing is proved yet",
        ),
        pytest.param(
            with_pod(without(), phase="Pending", payload=(), proxy=()),
            "without the label, every payload ends and its proxy runs on",
            "mnist-worker-0: payload exit code 0, pod hangs; "
            "mnist-worker-1: payload not over, pod never started",
            id="a pod never started, so the sidecar is not to blame",
        ),
        pytest.param(
            replace(without(), pods=()),
            "without the label, every payload ends and its proxy runs on",
            "2 of 2 pods were never seen",
            id="no pod was ever created",
        ),
    ],
)
def test_without_the_label_only_a_hang_beside_the_proxy_counts(
    story: JobStory, name: str, why: str
) -> None:
    promise = judge(story, helped())
    assert not promise.kept
    assert (name, why) in broken(promise)


def test_a_payload_that_failed_for_good_beside_a_running_proxy_hangs_too() -> None:
    pod = replace(hanging_worker(0), payload=(run(1, 1.1, 1),))
    assert pod.hangs
