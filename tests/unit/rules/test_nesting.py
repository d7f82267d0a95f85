"""What is cut out of JSON before it is decoded: what is nested too deep, and managedFields."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from istio_aux.model.documents import shallow

WORDS = st.sampled_from(
    ['"', "\\", "]", "}{", "managedFields", "a", '"managedFields":[', "\n", "é"]
)
TEXTS = st.lists(WORDS, max_size=4).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=30,
)


def cut(value: Any, deepest: int) -> Any:
    """The same by recursion."""
    if isinstance(value, dict | list) and deepest == 0:
        return None
    if isinstance(value, list):
        return [cut(item, deepest - 1) for item in value]
    if isinstance(value, dict):
        return {
            key: None
            if key == "managedFields" and isinstance(item, list)
            else cut(item, deepest - 1)
            for key, item in value.items()
        }
    return value


@given(VALUES, st.integers(1, 5), st.sampled_from([None, 1]), st.booleans())
def test_all_stays_but_what_is_too_deep_and_managed_fields(
    value: Any, deepest: int, indent: int | None, plain: bool
) -> None:
    body = json.dumps(value, indent=indent, ensure_ascii=plain).encode()
    assert json.loads(shallow(body, deepest=deepest)) == cut(value, deepest)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b'{"a":[', b"]]]", b'"', b'{"a', b'{"a\\', b'{"managedFields":[{"f', b"}{]["],
)
def test_what_is_no_json_stays_none(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"Expecting|Unterminated|Extra data|Invalid"):
        json.loads(shallow(body))


@pytest.mark.parametrize(
    "body",
    [b"[" * (1 << 20), b'"' + b"\\" * (1 << 20), b'"\\' * (1 << 19), b"1" * (1 << 20),
     b'{"managedFields":' * (1 << 16), b'"' * (1 << 20)],
    ids=["brackets", "backslashes", "quotes", "digits", "managedFields", "strings"],
)  # fmt: skip
def test_a_mebibyte_that_was_made_to_be_slow_takes_linear_time(body: bytes) -> None:
    """What is not linear would take minutes."""
    began = time.process_time()
    shallow(body, most=1 << 30)
    assert time.process_time() - began < 5


def test_a_text_with_too_many_values_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 5000 values"):
        shallow(b"[" + b"[[[]]]," * 10_000 + b"1]", most=5000)
