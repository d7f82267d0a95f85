"""The workload judges generated pods as the kubelet does."""

from __future__ import annotations

from oracle.kubelets import KUBELETS
from oracle.play import play

NEWEST = KUBELETS[-1]


def test_twenty_thousand_pods_are_judged_as_by_the_kubelet() -> None:
    """`tox -e oracle` shows a million to three versions (T1 to T5, T9, T12)."""
    tally = play([NEWEST], seed=17, pods=20_000)[NEWEST]
    assert [(found.number, found.what) for found in tally.disagreements] == []
    assert tally.agreed + tally.cautious + tally.refused == tally.pods == 20_000
    assert {name: tally.actions[name] > 500 for name in ("quit", "wait", "report", "ignore")} == {
        "quit": True,
        "wait": True,
        "report": True,
        "ignore": True,
    }
