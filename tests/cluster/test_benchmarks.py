"""The benchmark runs and leaves its files; what it measures is nobody's business here."""

from __future__ import annotations

import json
from pathlib import Path

import lab

from benchmarks import quit as quitting
from benchmarks import report


def test_the_quit_benchmark_measures_and_keeps_table_numbers_and_plot(
    cluster: lab.Cluster, tmp_path: Path
):
    """With a few pods: every proxy is told, and each target has a number beside it."""
    measured = quitting.measure(cluster, quitting.QUICK, alone=False)
    report.write(measured, tmp_path)

    assert sorted(file.name for file in tmp_path.iterdir()) == ["quit.json", "quit.md", "quit.svg"]
    numbers = json.loads((tmp_path / "quit.json").read_text())
    assert len(numbers["freed"]["ended"]) == quitting.QUICK.start
    assert len(numbers["latency"]["from-sent"]) == quitting.QUICK.steady
    assert all(verdict["measured"] for verdict in numbers["verdicts"])
