"""The benchmarks run and write their tables; no number is judged here."""

from __future__ import annotations

from pathlib import Path

import lab
import pytest
from lab.workloads import WEBSOCKETS

from benchmarks import attack, scale, scale_rows, tables
from benchmarks import quit as quitting

CHECKOUT = Path(__file__).parents[2]
pytestmark = pytest.mark.nightly("cluster/test_quit.py, cluster/test_admission.py")


@WEBSOCKETS.needed
def test_the_quit_benchmark_measures_each_program(cluster: lab.Cluster):
    """With a few pods, also for another checkout: every proxy is told, once. Their node speaks no
    SPDY."""
    programs = quitting.measure(cluster, quitting.QUICK, alone=False, before=CHECKOUT)

    names = [one.name for one in programs]
    assert names == ["controller-runtime", "istio-aux before", "istio-aux"]
    assert {one.numbers["execs"] for one in programs} == {quitting.QUICK.start}
    found = list(tables.verdicts(quitting.rows(quitting.QUICK), programs))
    assert found
    assert "-" not in {verdict.measured for verdict in found}


@WEBSOCKETS.needed
def test_the_scale_benchmark_plays_every_scene_and_keeps_its_tables(tmp_path: Path):
    """With a hundred pods, on a cluster of its own: what it ends would be missed by others."""
    programs = scale.main(scale_rows.QUICK, tmp_path)

    assert [one.name for one in programs] == ["controller-runtime", "istio-aux"]
    assert [one.failed for one in programs] == [{}, {}]
    found = list(tables.verdicts(scale_rows.rows(scale_rows.QUICK), programs))
    assert "-" not in {verdict.measured for verdict in found}
    assert "kill -9 of the leader" in (tmp_path / "scale.md").read_text()


def test_the_attack_benchmark_floods_and_keeps_its_table(tmp_path: Path):
    """A moment of each flood, on a cluster of its own."""
    lines = attack.main(tmp_path, None, quick=True)

    assert lines
    assert "0" not in {answered for *_, answered in lines}
    assert lines[0][0] in (tmp_path / "attack.md").read_text()
