"""The arithmetic and the drawing of the benchmarks."""

from __future__ import annotations

import base64
import json

import pytest
from istio_aux.model.policy import Start
from istio_aux.start import review

from benchmarks import reviews
from benchmarks.admission_numbers import (
    DISTINCT,
    SAME,
    SMALL,
)
from benchmarks.numbers import percentile


@pytest.mark.parametrize(
    ("percent", "value"), [(0, 1.0), (50, 2.0), (75, 3.0), (99, 4.0), (100, 4.0)]
)
def test_a_percentile_is_a_value_that_was_measured(percent: float, value: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], percent) == value


@pytest.mark.parametrize("kind", reviews.bodies())
def test_every_review_of_the_load_asks_for_a_change(kind: str) -> None:
    answer = review.answer(reviews.bodies()[kind].encode(), Start())

    assert (answer.uid, answer.outcome) == (reviews.UID, "hold")


@pytest.mark.parametrize(("kind", "merged"), [(SMALL, False), (SAME, True), (DISTINCT, True)])
def test_some_reviews_have_a_configuration_to_merge_into(kind: str, merged: bool) -> None:
    answer = json.loads(review.answer(reviews.bodies()[kind].encode(), Start()).body)

    patch = base64.b64decode(answer["response"]["patch"]).decode()
    assert ("ISTIO_META_DNS_CAPTURE" in patch) is merged
