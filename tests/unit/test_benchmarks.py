"""The arithmetic and the drawing of the benchmarks."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import matrix
import pytest
import summary
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


# The table of versions is what was measured.


def test_the_table_of_versions_has_the_numbers_that_were_kept() -> None:
    numbers = json.loads(matrix.NUMBERS.read_text())
    document = matrix.TABLE.read_text()

    assert numbers.keys() <= set(matrix.ROWS)
    assert matrix.written(document, numbers) == document


def test_a_row_says_what_was_left_out_and_why() -> None:
    row = {
        "kubernetes": "1.32.2", "python": "python3.11", "day": "2026-11-23", "passed": 9,
        "failed": 1, "seconds": 61, "lacking": {"no policies: the webhook does it": 2},
    }  # fmt: skip
    text = matrix.written(f"# Title\n{matrix.BEGIN}\nold\n{matrix.END}\nend", {"1.32/cluster": row})

    assert "| 1.32.2 | 3.11 | cluster | 9 | 1 | 2 | 1 min 01 s | 2026-11-23 |" in text
    assert "| no policies: the webhook does it | 1.32.2 cluster: 2 |" in text
    assert text.startswith("# Title\n")
    assert text.endswith("\nend")
    assert "old" not in text


def test_a_report_of_make_test_is_taken_for_its_row(tmp_path: Path) -> None:
    report = tmp_path / "node.xml"
    report.write_text(
        '<testsuites><testsuite tests="4" failures="1" errors="0" skipped="1" time="61.4">'
        '<testcase name="a"><skipped message="v1.32.2: no policies"/></testcase>'
        "</testsuite></testsuites>"
    )

    found = matrix.counted("1.32/node", report)

    assert (found.kubernetes, found.passed, found.failed, found.seconds) == ("1.32.2", 2, 1, 61)
    assert found.lacking == {"no policies": 1}


def test_the_slowest_tests_of_a_report_come_first(tmp_path: Path) -> None:
    report = tmp_path / "unit.xml"
    report.write_text(
        '<testsuites><testsuite tests="2" failures="0" errors="0" skipped="0" time="9">'
        '<testcase classname="tests.unit.test_a" name="fast" time="0.5"/>'
        '<testcase classname="tests.unit.test_a" name="slow" time="7.5"/>'
        "</testsuite></testsuites>"
    )

    found = summary.times(report)

    assert summary.slowest(found, 1) == [(("tests/unit/test_a.py", "slow"), 7.5)]
    assert len(found) == 2
