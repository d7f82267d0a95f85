"""The arithmetic and the drawing of the benchmarks."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from benchmarks import pods, svg
from benchmarks.numbers import percentile
from benchmarks.svg import Limit, Line, Panel


@pytest.mark.parametrize(
    ("percent", "value"), [(0, 1.0), (50, 2.0), (75, 3.0), (99, 4.0), (100, 4.0)]
)
def test_a_percentile_is_a_value_that_was_measured(percent: float, value: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], percent) == value


def test_a_plot_is_well_formed_and_keeps_its_lines_within_the_panel() -> None:
    line = Line("a < b", [(0, 0), (7, 93)], dots=True)
    text = svg.document([Panel("one & two", "x", "y", [line], [Limit("target", y=80)])])

    drawn = ElementTree.fromstring(text)

    points = next(drawn.iter("{http://www.w3.org/2000/svg}polyline")).attrib["points"]
    pixels = [tuple(map(float, point.split(","))) for point in points.split()]
    assert pixels[0] == (svg.LEFT, svg.HEIGHT - svg.BOTTOM)
    assert svg.LEFT < pixels[1][0] <= svg.WIDTH - svg.RIGHT
    assert svg.TOP <= pixels[1][1] < svg.HEIGHT - svg.BOTTOM


def test_the_pods_are_as_large_as_istio_leaves_them() -> None:
    bodies = pods.bodies("mesh", "node")

    assert len(bodies["pod"]) + len(bodies["running"]) > 9_000


@pytest.mark.parametrize(
    ("body", "states"),
    [
        ("running", {"istio-proxy": "running", "main": "running"}),
        ("finished", {"istio-proxy": "running", "main": "terminated"}),
        ("finish", {"istio-proxy": "running", "main": "terminated"}),
        ("exited", {"istio-proxy": "terminated", "main": "terminated"}),
    ],
)
def test_each_patch_shows_both_containers_as_its_name_says(
    body: str, states: dict[str, str]
) -> None:
    status = json.loads(pods.bodies("mesh", "node")[body])["status"]

    assert {c["name"]: next(iter(c["state"])) for c in status["containerStatuses"]} == states
