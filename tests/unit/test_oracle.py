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


def verdict(main: State, **found: Any) -> Verdict:
    """Of a kubelet on a pod with this payload container and a running proxy."""
    stored = json.dumps(document({"main": main, "istio-proxy": RUNNING}, **found.pop("more", {})))
    done = found.pop("done", False)
    return Verdict(
        done={"main": done, "istio-proxy": False},
        restarting=found.pop("restarting", False),
        phase="Running",
        completes=done,
        pod=msgspec.Raw(stored.encode()),
    )


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
    assert pod(1, 4711) != pod(1, 4712)
    assert pod(1, 4711) != pod(2, 4711)


@pytest.mark.parametrize(
    ("kubelet", "ours", "disagreement"),
    [
        (verdict(exited(1)), explained("wait", finished=True),
         "main: finished (why), but the kubelet may start it again"),
        (verdict(exited(1)), explained("quit", finished=False),
         "quit, but the kubelet may start again main"),
        (verdict(exited(0), done=True, restarting=True), explained("quit", finished=True),
         "quit, but the kubelet may start again all of it"),
        (verdict(exited(0)), explained("report", finished=False),
         "report, but the kubelet may start the proxy again"),
        (verdict(exited(0), done=True), explained("ignore", finished=True),
         "ignore (reason), but only the proxy keeps the pod from completing"),
        (verdict(exited(0), done=True), explained("wait", finished=False),
         "main: not finished (why), but the kubelet is done with it"),
    ],
)  # fmt: skip
def test_a_wrong_decision_is_a_disagreement(
    kubelet: Verdict, ours: Explained, disagreement: str
) -> None:
    """In both directions: too early, and without a reason too late."""
    assert disagreement in compare(NEWEST, kubelet, ours).disagreements


def test_a_quit_that_does_not_complete_the_pod_is_a_disagreement() -> None:
    """The kubelet would start the proxy again, for example."""
    found = msgspec.structs.replace(verdict(exited(0), done=True), completes=False)
    assert compare(NEWEST, found, explained("quit", finished=True)).disagreements == (
        "quit, but the pod does not complete when only the proxy exits",
    )


def test_caution_needs_a_reason() -> None:
    """A container that waits after its last exit is one."""
    found = compare(
        NEWEST,
        verdict(waiting("CrashLoopBackOff"), done=True),
        explained("wait", finished=False),
    )
    assert (found.disagreements, found.cautions) == ((), {"a container waits after its last exit"})


def test_agreement_is_neither() -> None:
    """Both are done, and the proxy goes."""
    found = compare(NEWEST, verdict(exited(0), done=True), explained("quit", finished=True))
    assert (found.disagreements, found.cautions, found.unchecked) == ((), frozenset(), False)
