"""The oracle sees where the workload judges otherwise than the kubelet."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from oracle.comparison import compare
from oracle.kubelets import KUBELETS, Explained, Judged, Verdict
from oracle.pods import pod
from unit.rules.pods import RUNNING, State, document, exited, waiting

NEWEST = KUBELETS[-1]


def verdict(main: State, *, done: bool = False, **found: Any) -> Verdict:
    """Of a kubelet on a pod with this payload container and a running proxy."""
    stored = json.dumps(document({"main": main, "istio-proxy": RUNNING}))
    found = {"restarting": False, "completes": done, **found}
    states = {"main": done, "istio-proxy": False}
    return Verdict(done=states, phase="Running", pod=msgspec.Raw(stored.encode()), **found)


def explained(action: str, *, finished: bool) -> Explained:
    """The same by the workload."""
    judged = {
        "main": Judged("payload", finished, "why"),
        "istio-proxy": Judged("sidecar", finished=False, why="running"),
    }
    return Explained("u-1", action, "reason", judged)


def test_a_pod_is_the_same_in_every_run_of_its_seed() -> None:
    """A disagreement can be looked at again, without all the pods before it."""
    assert pod(1, 4711) == pod(1, 4711)
    assert pod(1, 4711) not in (pod(1, 4712), pod(2, 4711))


@pytest.mark.parametrize(
    ("kubelet", "ours", "disagreements", "cautions"),
    [
        (verdict(exited(1)), explained("wait", finished=True),
         ["main: finished (why), but the kubelet may start it again"], 0),
        (verdict(exited(1)), explained("quit", finished=False),
         ["quit, but the kubelet may start again main"], 0),
        (verdict(exited(0), done=True), explained("wait", finished=False),
         ["main: not finished (why), but the kubelet is done with it",
          "wait (reason), but only the proxy keeps the pod from completing"], 0),
        (verdict(exited(0), done=True, completes=False), explained("quit", finished=True),
         ["quit, but the pod does not complete when only the proxy exits"], 0),
        (verdict(waiting("CrashLoopBackOff"), done=True), explained("wait", finished=False), [], 1),
        (verdict(exited(0), done=True), explained("quit", finished=True), [], 0),
    ],
)  # fmt: skip
def test_a_wrong_decision_is_a_disagreement_and_caution_needs_a_reason(
    kubelet: Verdict, ours: Explained, disagreements: list[str], cautions: int
) -> None:
    """In both directions: too early, and without a reason too late."""
    found = compare(NEWEST, kubelet, ours)
    assert (list(found.disagreements), len(found.cautions)) == (disagreements, cautions)
