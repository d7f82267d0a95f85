"""Reviews of pods that were made to be hard to read."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from istio_aux.core import review
from istio_aux.core.policy import Start
from istio_aux.core.review import Outcome
from unit.core.pods import document
from unit.core.test_review import request, response


def buried(*values: str, **pod: Any) -> bytes:
    """A review of a pod with managedFields that say ``values``, as the API server writes it."""
    found = request(**pod)
    found["request"]["uid"] = "705ab4f5-0000-4000-8000-000000000000"
    found = {key: found[key] for key in ("kind", "apiVersion", "request")}
    found["request"]["object"]["metadata"]["managedFields"] = "@"
    fields = ",".join(f'{{"manager":"me","fieldsV1":{value}}}' for value in values)
    text = json.dumps(found, separators=(",", ":"))
    return text.replace('"@"', f"[{fields}]").encode()


def nested(levels: int, innermost: str = "{}") -> str:
    return '{"f:a":' * levels + innermost + "}" * levels


@pytest.mark.parametrize("levels", [1500, 6000])
@pytest.mark.parametrize("innermost", ["{}", '{"v:[]":{}}', '{"k:{\\"a\\":1}":{}}'])
def test_a_pod_with_deep_managed_fields_is_started_like_any_other(
    levels: int, innermost: str
) -> None:
    answer = review.answer(buried(nested(levels, innermost)), Start())
    assert answer.outcome is Outcome.HOLD
    assert answer.warnings == ()


def test_a_review_that_would_take_long_to_read_is_allowed_with_a_warning() -> None:
    # More levels than any Python decodes.
    body = buried(nested(20_000, '{"v:[]":{}}'))
    began = time.process_time()
    answer = review.answer(body, Start())
    assert time.process_time() - began < 0.2
    found = response(answer.body, "705ab4f5-0000-4000-8000-000000000000")
    assert "patch" not in found
    assert found["warnings"] == [
        "istio-aux: left alone: malformed AdmissionReview: it has more than 20000 values"
    ]


def test_a_pod_is_named_shortly_however_long_its_name_is() -> None:
    """No name has been validated yet; what is said of it goes into one line of the log."""
    pod = document({"main": None}, phase=None)
    pod["metadata"]["name"] = "x\n" * 100_000
    assert len(review.answer(json.dumps(request(object=pod)).encode(), Start()).pod) <= 318
