"""The arithmetic and the drawing of the benchmarks."""

from __future__ import annotations

import json

import matrix
import pytest
from istio_aux.model.policy import Start
from istio_aux.start import review

from benchmarks import reviews
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


# The table of versions is what was measured.


def test_the_table_of_versions_has_the_numbers_that_were_kept() -> None:
    numbers = json.loads(matrix.NUMBERS.read_text())
    document = matrix.TABLE.read_text()

    assert numbers.keys() <= set(matrix.ROWS)
    assert matrix.written(document, numbers) == document
