"""The kubelet's own code judges pods as `explain` does; it is compiled, as Kubernetes is."""

from __future__ import annotations

import pytest
from lab.nightly import NIGHT, sampled
from oracle.play import KUBELETS, play

NEWEST = KUBELETS[-1]


def test_twenty_thousand_pods_are_judged_as_by_the_kubelet() -> None:
    """`tox -e oracle` shows a million to three versions (uds-core#687, uds-core#913, KEP-5307)."""
    tally = play([NEWEST], seed=17, pods=20_000)[NEWEST]
    assert tally.disagreements == []
    counts = tally.counts
    assert counts["agreed"] + counts["cautious"] + counts["refused"] == counts["pods"] == 20_000
    assert [name for name in ("quit", "wait", "report", "ignore") if counts[name] <= 500] == []


@pytest.mark.nightly("20,000 pods of one seed, by one kubelet")
def test_the_pods_of_this_night_are_judged_as_by_each_kubelet() -> None:
    tallies = play(KUBELETS, NIGHT, 100_000).values()
    found = [each for tally in tallies for each in tally.disagreements]
    assert sampled(f"tox -e oracle -- --pods 100000 --seed {NIGHT}", found) == []
