"""The arithmetic and the drawing of the benchmarks."""

from __future__ import annotations

import base64
import json
from xml.etree import ElementTree

import pytest
from istio_aux.model.policy import Start
from istio_aux.start import review

from benchmarks import pods, reviews, svg
from benchmarks.admission_numbers import (
    BUSY,
    CONTROLLER,
    DISTINCT,
    LARGE,
    OURS,
    SAME,
    SMALL,
    Load,
    Results,
    Round,
    Sizes,
)
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


@pytest.mark.parametrize("kind", reviews.bodies())
def test_every_review_of_the_load_asks_for_a_change(kind: str) -> None:
    answer = review.answer(reviews.bodies()[kind].encode(), Start())

    assert (answer.uid, answer.outcome) == (reviews.UID, "hold")


@pytest.mark.parametrize(("kind", "merged"), [(SMALL, False), (SAME, True), (DISTINCT, True)])
def test_some_reviews_have_a_configuration_to_merge_into(kind: str, merged: bool) -> None:
    answer = json.loads(review.answer(reviews.bodies()[kind].encode(), Start()).body)

    patch = base64.b64decode(answer["response"]["patch"]).decode()
    assert ("ISTIO_META_DNS_CAPTURE" in patch) is merged


@pytest.mark.parametrize(("size", "least", "most"), [(SMALL, 6e3, 6.5e3), (LARGE, 24.5e3, 25.5e3)])
def test_reviews_are_as_large_as_their_names_say(size: str, least: float, most: float) -> None:
    assert least < len(reviews.bodies()[size]) < most


def load(webhook: str, *cpu: float) -> Load:
    rounds = [
        Round(reviews=1, cpu=spent, rate=1, p50=1, p99=1, generator=0, latencies=[])
        for spent in cpu
    ]
    return Load(webhook=webhook, body=SMALL, size=6000, load=BUSY, rounds=rounds)


def test_webhooks_are_compared_round_by_round() -> None:
    """A machine that is slow for a while is slow for both."""
    results = Results(
        sizes=Sizes(
            rounds=3,
            seconds=1,
            scheduled=1,
            warm=1,
            blocks=1,
            creations=1,
            troubled=1,
            patience=False,
        ),
        machine={},
        loads=[load(OURS, 10, 90, 12), load(CONTROLLER, 100, 900, 100)],
        used={},
        creations=[],
        troubles=[],
    )

    assert results.ratio(SMALL, CONTROLLER) == 0.1
