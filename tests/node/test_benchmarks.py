"""The burst benchmark runs and writes its files; no number is judged here."""

from __future__ import annotations

import json
from pathlib import Path

import lab
import pytest

from benchmarks import burst, burst_report, machine
from benchmarks.burst_numbers import CLASSIC, NATIVE


@pytest.mark.nightly("unit/test_burst.py")
def test_the_burst_benchmark_measures_and_keeps_table_numbers_and_plot(
    cluster: lab.Cluster, tmp_path: Path
) -> None:
    """With a few Jobs: each proxy is told, by istio-aux or by the kubelet."""
    measured = burst.measure(cluster, burst.QUICK, machine.describe())
    burst_report.write(measured, tmp_path)

    kept = sorted(file.name for file in tmp_path.iterdir())
    assert kept == ["burst.json", "burst.md", "burst.svg"]
    numbers = json.loads((tmp_path / "burst.json").read_text())
    assert [one["kind"] for one in numbers["bursts"]] == [CLASSIC, NATIVE]
    for one in numbers["bursts"]:
        assert len(one["pods"]) == burst.QUICK.jobs
        assert all(0 < pod["started"] < pod["exited"] for pod in one["pods"])
        assert all((pod["sent"] is not None) == (one["kind"] == CLASSIC) for pod in one["pods"])
    assert all(verdict["measured"] for verdict in numbers["verdicts"])
