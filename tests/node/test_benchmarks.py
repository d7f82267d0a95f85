"""The burst benchmark runs; no number is judged here."""

from __future__ import annotations

import lab
import pytest

from benchmarks import burst, burst_report
from benchmarks.burst_numbers import CLASSIC, NATIVE


@pytest.mark.nightly("a benchmark: test_endings.py plays such Jobs")
def test_the_burst_benchmark_measures_both_kinds_of_sidecars(cluster: lab.Cluster) -> None:
    """With a few Jobs: each proxy is told, by istio-aux or by the kubelet."""
    bursts = burst.measure(cluster, burst.QUICK)

    assert [one.kind for one in bursts] == [CLASSIC, NATIVE]
    for one in bursts:
        assert len(one.pods) == burst.QUICK.jobs
        assert all(0 < pod.started < pod.exited for pod in one.pods)
        assert all((pod.sent is not None) == (one.kind == CLASSIC) for pod in one.pods)
    assert "native's = 1" in burst_report.markdown(burst.QUICK, {}, bursts)
    assert "native: proxy: to its exit" in burst_report.details(bursts)
