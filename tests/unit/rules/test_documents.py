"""Files that people hand over: every layout of JSON and YAML, and what is wrong with the rest."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from istio_aux.model.documents import BadDocument, Document, read

A, B = {"kind": "Pod", "metadata": {"name": "a"}}, {"kind": "Pod", "metadata": {"name": "b"}}
LINE_A, LINE_B = json.dumps(A), json.dumps(B)


def values(text: str) -> list[Any]:
    """Documents by value; for a bad one, its line."""
    return [
        json.loads(item.body.decode())
        if isinstance(item, Document)
        else f"{item.place}: {item.why}"
        for item in read(text.encode())
    ]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"{LINE_A}\n{LINE_B}\n", id="JSON lines"),
        pytest.param(f"\n{LINE_A}\n\n\n{LINE_B}", id="JSON lines with blank ones"),
        pytest.param(f"{json.dumps(A, indent=2)}\n{json.dumps(B, indent=2)}", id="JSON in a row"),
        pytest.param(f"{LINE_A}{LINE_B}", id="JSON without space between"),
        pytest.param(
            "kind: Pod\nmetadata: {name: a}\n---\nkind: Pod\nmetadata:\n  name: b", id="YAML"
        ),
        pytest.param(f"---\n{LINE_A}\n---\n# nothing\n---\n{LINE_B}\n---\n", id="YAML with gaps"),
        pytest.param(json.dumps({"kind": "List", "items": [A, B]}), id="a List"),
        pytest.param(f"kind: PodList\nitems: [{LINE_A}, {LINE_B}]", id="a PodList in YAML"),
        pytest.param(f"\ufeff{LINE_A}\n{LINE_B}", id="a byte order mark"),
    ],
)
def test_two_documents_are_found(text: str) -> None:
    """In every layout in which people and tools write them."""
    assert values(text) == [A, B]


@pytest.mark.parametrize("text", ["", "\n \n", "---\n---\n", "# nothing"])
def test_nothing_is_no_document(text: str) -> None:
    """`kubectl get pods -o json | jq -c '.items[]'` of an empty namespace is fine."""
    assert values(text) == []


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        pytest.param("a: [", "did not find expected node content, line 3", id="incomplete"),
        pytest.param("? {a: b}\n: c", "found unhashable key, line 2", id="a mapping as a key"),
        pytest.param("? [1]\n: c", "found unhashable key, line 2", id="a list as a key"),
        pytest.param(
            "!!python/object:x {}", "could not determine a constructor", id="a foreign tag"
        ),
        pytest.param("&a [*a]", "recursion", id="a list that holds itself"),
    ],
)
def test_a_bad_document_does_not_stop_the_others(bad: str, why: str) -> None:
    """It is an item in its place, with one line on what is wrong."""
    first, second, third = values(f"{LINE_A}\n---\n{bad}\n---\n{LINE_B}")
    assert (first, third) == (A, B)
    assert second.startswith("document 2: ")
    assert why in second


def test_the_indices_of_list_items_are_named() -> None:
    """The second document is a list of two."""
    text = f"{LINE_A}\n{json.dumps({'kind': 'List', 'items': [A, B]})}"
    assert [(item.place, getattr(item, "listed", None)) for item in read(text.encode())] == [
        ("document 1", False),
        ("document 2 item 1", True),
        ("document 2 item 2", True),
    ]


def test_items_make_no_list_of_another_kind() -> None:
    """Only what calls itself a list is taken apart."""
    found = {"kind": "Menu", "items": [A, B]}
    assert values(json.dumps(found)) == [found]


@pytest.mark.parametrize(
    ("scalar", "expected"),
    [
        ("2024-01-01", "2024-01-01"),
        ("2024-01-01 10:00:00", "2024-01-01 10:00:00"),
        ("12:30:45", "12:30:45"),
        ("08a", "08a"),
        ("0644", 0o644),
        ("-3", -3),
        ("1_000", 1000),
        ("1.5", 1.5),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("yes", True),
        ("~", None),
    ],
)
def test_yaml_scalars_are_read_as_kubernetes_reads_them(scalar: str, expected: object) -> None:
    """Dates and times of day are strings; the rest is what YAML 1.1 says."""
    [value] = values(f"a: {scalar}")
    assert value == {"a": expected}


def test_bytes_that_are_no_text_are_one_bad_document() -> None:
    """A file of the wrong kind gives one line."""
    [item] = read(b"\xff\xfe\x00")
    assert isinstance(item, BadDocument)
    assert "\n" not in item.why


@given(
    st.binary(max_size=40)
    | st.text(st.sampled_from('{}[]":,a-\n ?&*'), max_size=40).map(str.encode)
)
def test_no_input_breaks_it(body: bytes) -> None:
    """Each document is JSON-like bytes or one line."""
    for item in read(body):
        assert isinstance(item, Document) or "\n" not in item.why
