"""Every panel of the dashboard, evaluated by a real Prometheus that scrapes a real workload.

With DRAW_DASHBOARD=1 in the environment, the picture of docs/observability.md is drawn again.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lab
import lab.istio
import pytest
from lab.prometheus import Prometheus, required
from lab.scene import Scene
from lab.workload import Workload

from benchmarks.svg import Line, Panel, document
from relations import cos

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "src/grafana_dashboards/istio-aux.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
TOPOLOGY = cos.Topology(
    "kubeflow", "00000000-0000-4000-8000-000000000000", "istio-aux", "istio-aux/0", "istio-aux"
)
# Series that exist only after something went wrong, which it does not here.
QUIET = {"Restarts, by outcome", "Watches that started again, and exceptions"}
SOON = 60.0
# For the picture; fewer give each panel an answer, too.
DRAW = bool(os.environ.get("DRAW_DASHBOARD"))
JOBS = 30 if DRAW else 6


def query(target: dict[str, str]) -> str:
    """A panel's query, with its variables as Grafana fills them in."""
    text = target["expr"].replace("$__rate_interval", "15s")
    for name in ("juju_model", "juju_model_uuid", "juju_application"):
        text = text.replace(f'"${name}"', '".*"')
    assert "$" not in text
    return text


@pytest.fixture(scope="module")
def prometheus(
    cluster: lab.Cluster,
    istio: lab.istio.Istio,
    webhook: Workload,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Prometheus]:
    required()
    target = f"{cluster.host}:{webhook.status_port}"
    folder = tmp_path_factory.mktemp("prometheus")
    server = Prometheus(cluster, folder, target, TOPOLOGY.labels())
    yield server
    server.process.kill()


@pytest.fixture
def story(prometheus: Prometheus, selected: Scene) -> tuple[float, float]:
    """When it began and ended: Jobs finish, one is stuck, another container blocks one."""
    start = time.time()

    def await_answer(*queries: str) -> None:
        lab.until(
            lambda: all(prometheus.history(q, start=start, end=time.time()) for q in queries),
            timeout=SOON,
            what=f"Prometheus to answer {', '.join(queries)}",
        )

    # A rate needs a sample from before the first quit.
    await_answer('istio_aux_injectors{state="live"} > 0')
    stuck = selected.start("stuck")
    selected.kubelet.misbehave(stuck, "lie")
    blocked = selected.start("blocked", payload=["main", "uploader"])
    for pod in (stuck, blocked):
        selected.kubelet.finish(pod, "main")
    for number in range(JOBS):
        pod = selected.start(f"train-{number}")
        selected.kubelet.finish(pod, "main")
        selected.await_phase(pod, "Succeeded")
    freed = f'sum(istio_aux_quits_total{{outcome="exited"}}) >= {JOBS}'
    await_answer(freed, 'rate(istio_aux_quits_total{outcome="exited"}[15s]) > 0')
    return start, time.time()


def test_every_panel_has_an_answer_and_shows_what_happens(
    prometheus: Prometheus, story: tuple[float, float]
) -> None:
    start, end = story
    drawn: list[Panel] = []
    assert {panel["title"] for panel in PANELS} > QUIET
    for panel in PANELS:
        lines: list[Line] = []
        for target in panel["targets"]:
            found = prometheus.history(query(target), start=start, end=end)
            lines += [line(series, target, start) for series in found]
        assert lines or panel["title"] in QUIET, panel["title"]
        if panel["type"] == "timeseries" and (lines := strongest(lines)):
            unit = panel["fieldConfig"]["defaults"]["unit"].replace("short", "")
            drawn.append(Panel(panel["title"], "seconds", unit, lines))
    if DRAW:
        (ROOT / "docs/dashboard.svg").write_text(document(drawn, columns=3))


def line(series: dict[str, Any], target: dict[str, str], start: float) -> Line:
    """A series as Grafana names and draws it."""
    name = target["legendFormat"]
    for label, value in series["metric"].items():
        name = name.replace(f"{{{{{label}}}}}", value)
    points = [(moment - start, float(value)) for moment, value in series["values"]]
    return Line(name, [point for point in points if not math.isnan(point[1])])


def strongest(lines: list[Line]) -> list[Line]:
    """The three lines that a small panel has room for, without those that stay at zero."""
    most = {each.name: max((y for _, y in each.points), default=0.0) for each in lines}
    risen = [each for each in lines if most[each.name] > 0]
    return sorted(risen, key=lambda each: -most[each.name])[:3]
