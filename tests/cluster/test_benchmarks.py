"""The benchmarks run and write their files; no number is judged here."""

from __future__ import annotations

import json
from pathlib import Path

import lab
import pytest
from lab.versions import WEBSOCKETS

from benchmarks import admission, admission_report, attack, report, scale, scale_knobs
from benchmarks import quit as quitting

CHECKOUT = Path(__file__).parents[2]
pytestmark = pytest.mark.nightly("cluster/test_quit.py, cluster/test_admission.py")


@WEBSOCKETS.needed
def test_the_quit_benchmark_measures_and_keeps_table_numbers_and_plot(
    cluster: lab.Cluster, tmp_path: Path
):
    """With a few pods, also for another checkout: every proxy is told, once. Their node speaks no
    SPDY."""
    measured = quitting.measure(cluster, quitting.QUICK, alone=False, before=CHECKOUT)
    report.write(measured, tmp_path)

    assert sorted(file.name for file in tmp_path.iterdir()) == ["quit.json", "quit.md", "quit.svg"]
    numbers = json.loads((tmp_path / "quit.json").read_text())
    names = [one["name"] for one in numbers["programs"]]
    assert names == ["controller-runtime", "istio-aux before", "istio-aux"]
    for one in numbers["programs"]:
        assert one["freed"]["execs"] == len(one["freed"]["ended"]) == quitting.QUICK.start
        assert len(one["latency"]["from-sent"]) == quitting.QUICK.steady
    assert numbers["verdicts"]
    assert all(verdict["measured"] for verdict in numbers["verdicts"])


def test_the_admission_benchmark_measures_and_keeps_table_numbers_and_plot(
    cluster: lab.Cluster, tmp_path: Path
):
    """A moment of each load, and a few pods: all reviews are answered, each target has a number."""
    measured = admission.measure(cluster, admission.QUICK)
    admission_report.write(measured, tmp_path)

    kept = sorted(file.name for file in tmp_path.iterdir())
    assert kept == ["admission.json", "admission.md", "admission.svg"]
    numbers = json.loads((tmp_path / "admission.json").read_text())
    assert numbers["loads"]
    assert all(one["rounds"][0]["reviews"] for one in numbers["loads"])
    assert {len(one["milliseconds"]) for one in numbers["creations"]} == {admission.QUICK.creations}
    assert numbers["verdicts"]
    assert all(verdict["measured"] for verdict in numbers["verdicts"])


@WEBSOCKETS.needed
def test_the_scale_benchmark_plays_every_scene_and_keeps_table_and_numbers(tmp_path: Path):
    """With a hundred pods, on a cluster of its own: what it ends would be missed by others."""
    scale.main(scale.QUICK, tmp_path)

    assert sorted(file.name for file in tmp_path.iterdir()) == ["scale.json", "scale.md"]
    numbers = json.loads((tmp_path / "scale.json").read_text())
    assert [one["name"] for one in numbers["programs"]] == ["controller-runtime", "istio-aux"]
    assert [one["failed"] for one in numbers["programs"]] == [{}, {}]
    assert all(verdict["measured"] != "-" for verdict in numbers["verdicts"])


@WEBSOCKETS.needed
@pytest.mark.parametrize("knob", scale_knobs.LADDERS)
def test_a_knob_of_the_scale_benchmark_is_turned(knob: str, tmp_path: Path):
    scale_knobs.main(knob, tmp_path, quick=True)

    numbers = json.loads((tmp_path / f"scale-{knob}.json").read_text())
    assert numbers["steps"]
    assert all(step["numbers"] for step in numbers["steps"])


def test_the_attack_benchmark_floods_and_keeps_table_and_numbers(tmp_path: Path):
    """A moment of each flood, on a cluster of its own."""
    attack.main(tmp_path, None, quick=True)

    assert sorted(file.name for file in tmp_path.iterdir()) == ["attack.json", "attack.md"]
    floods = json.loads((tmp_path / "attack.json").read_text())["floods"]
    assert floods
    assert all(one["answered"] for one in floods)
