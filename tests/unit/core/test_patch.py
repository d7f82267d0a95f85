"""Our own application of a patch, beside that of a library."""

from __future__ import annotations

from typing import Any

import jsonpatch
from hypothesis import given
from hypothesis import strategies as st
from istio_aux.core import patch

KEYS = st.text("ab/~1é", max_size=4)


@given(
    st.dictionaries(KEYS, st.text(max_size=2), max_size=3),
    st.lists(st.integers(), min_size=1, max_size=4),
    KEYS,
    st.data(),
)
def test_it_agrees_with_the_library(
    found: dict[str, Any], items: list[int], key: str, data: st.DataObject
) -> None:
    """Members whose names have to be escaped, and items that change their place."""
    place, source = data.draw(st.tuples(*[st.integers(0, len(items) - 1)] * 2))
    document = {"map": found, "list": items}
    ops = (
        patch.Add(patch.pointer("map", key), "new"),
        patch.Move(patch.pointer("list", place), patch.pointer("list", source)),
    )
    expected = jsonpatch.apply_patch(document, patch.encode(ops).decode())
    patch.apply(ops, document)
    assert document == expected
    assert document["map"][key] == "new"
