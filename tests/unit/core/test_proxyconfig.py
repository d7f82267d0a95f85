"""How hold gets into the user's own text, and how that text survives (T32)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from istio_aux.core.proxyconfig import HOLD, HOLD_PROTO, hold

KEYS = st.one_of(
    st.text("abcXYZ-_.", min_size=1, max_size=8), st.sampled_from(["proxyMetadata", "concurrency"])
)
SCALARS = st.one_of(
    st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), max_size=12),
    st.integers(),
    st.booleans(),
    st.none(),
    st.sampled_from(["12:30:45", "2024-01-01", "yes", "1e3", "- x", "# no comment", "a: b\nc\n\n"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
MAPPINGS = st.dictionaries(KEYS, VALUES, min_size=1, max_size=4)
STYLES: list[Callable[[Any], str]] = [
    lambda value: yaml.safe_dump(value, default_flow_style=False, allow_unicode=True),
    lambda value: yaml.safe_dump(value, default_flow_style=True, width=40),
    lambda value: yaml.safe_dump(value, explicit_start=True, explicit_end=True),
    lambda value: yaml.safe_dump(value).rstrip("\n"),
    lambda value: "# a comment\n" + yaml.safe_dump(value) + "# the end",
    lambda value: yaml.safe_dump(value, default_style='"', indent=6),
    lambda value: json.dumps(value, ensure_ascii=False),
    lambda value: json.dumps(value, ensure_ascii=False, indent=2) + "\n",
]


def strings(text: str) -> Any:
    """What a text means, with every scalar as it is spelt: an oracle without a schema."""
    return yaml.load(text, Loader=yaml.BaseLoader)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(None, f"{HOLD}: true", id="an absent annotation"),
        pytest.param("", f"{HOLD}: true", id="an empty annotation"),
        pytest.param(" \n", f"{HOLD}: true", id="a blank annotation"),
        pytest.param("null", f"{HOLD}: true", id="a null"),
        pytest.param("# mine\n", f"# mine\n{HOLD}: true\n", id="only a comment"),
        pytest.param(
            "# mine\nconcurrency: 2 # two\n\nproxyMetadata:\n  AT: 12:30:45\n",
            f"# mine\nconcurrency: 2 # two\n\nproxyMetadata:\n  AT: 12:30:45\n{HOLD}: true\n",
            id="a block mapping, with comments",
        ),
        pytest.param("a: b", f"a: b\n{HOLD}: true", id="a last line without a newline"),
        pytest.param("  a: b\n  c: d\n", f"  a: b\n  c: d\n  {HOLD}: true\n", id="an indent"),
        pytest.param("a: 1\r\n", f"a: 1\r\n{HOLD}: true\n", id="carriage returns"),
        pytest.param("---\na: b\n", f"---\na: b\n{HOLD}: true\n", id="a document start"),
        pytest.param("a: b\n...\n", f"{HOLD}: true\na: b\n...\n", id="a document end"),
        pytest.param("a: b\n---\nc: d", f"{HOLD}: true\na: b\n---\nc: d", id="a second document"),
        pytest.param("a: |\n  b", f"{HOLD}: true\na: |\n  b", id="a block scalar at the end"),
        pytest.param("a: &x 1\nb: *x", f"a: &x 1\nb: *x\n{HOLD}: true", id="an alias"),
        pytest.param("{}", f'{{"{HOLD}": true}}', id="an empty flow mapping"),
        pytest.param("{a: b}", f'{{"{HOLD}": true, a: b}}', id="a flow mapping"),
        pytest.param('{"a":"é"}', f'{{"{HOLD}": true, "a":"é"}}', id="JSON"),
        pytest.param(
            f"a:\n  {HOLD}: false\n", f"a:\n  {HOLD}: false\n{HOLD}: true\n", id="the key, deeper"
        ),
    ],
)
def test_hold_is_added_and_all_else_is_kept(before: str | None, after: str) -> None:
    """Comments, order, indent and spelling stay; one key comes in."""
    assert hold(before).text == after
    assert hold(before).warning is None


@pytest.mark.parametrize("spelling", [HOLD, HOLD_PROTO])
@pytest.mark.parametrize("value", ["true", "false", "null", "on", "No"])
@pytest.mark.parametrize(
    "layout", ["{key}: {value}", 'a: b\n"{key}": {value}\n', "{{{key}: {value}}}"]
)
def test_an_explicit_value_is_left_alone(spelling: str, value: str, layout: str) -> None:
    """The user has decided, in whichever spelling; ``false`` is an opt-out (T32)."""
    merge = hold(layout.format(key=spelling, value=value))
    assert merge.text is None
    assert merge.warning is None
    assert spelling in merge.reason


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("- a\n- b\n", "not a mapping", id="a list"),
        pytest.param("concurrency", "not a mapping", id="a scalar"),
        pytest.param("{a: b", "not YAML", id="an open brace"),
        pytest.param("a: b: c", "not YAML", id="two colons"),
        pytest.param("\ta: b", "not YAML", id="a tab"),
        pytest.param("a: \x00", "not YAML", id="a control character"),
        pytest.param("a: *b", "alias *b has no anchor", id="an alias of nothing"),
        pytest.param("<<: {a: b}\n", "merge key", id="a merge key"),
        pytest.param(f'{HOLD}: "true"', "expected true or false", id="a quoted boolean"),
        pytest.param(f"{HOLD}: [true]", "expected true or false", id="a list of booleans"),
        pytest.param("? [a]\n: b\n", "no place was found", id="a complex key"),
        pytest.param("[" * 60_000, "nested more than 100", id="a deep nesting"),
        pytest.param("a: " + "b" * 70_000, "longer than 64 KiB", id="a very long text"),
    ],
)
def test_garbage_stays_byte_for_byte_and_is_reported(text: str, why: str) -> None:
    """Istio refuses such a pod with its own message; we only say that we kept away (T32)."""
    merge = hold(text)
    assert merge.text is None
    assert merge.warning is not None
    assert why in merge.warning
    assert "\n" not in merge.warning


def test_a_hostile_text_costs_no_time() -> None:
    """A scanner that is quadratic in the depth would take seconds for these."""
    start = time.perf_counter()
    for text in ("[" * 60_000, "{a: " * 16_000, "? " * 30_000):
        hold(text)
    assert time.perf_counter() - start < 2


@given(MAPPINGS, st.sampled_from(STYLES))
def test_the_result_is_the_old_mapping_plus_the_key(
    mapping: dict[str, Any], style: Callable[[Any], str]
) -> None:
    """For every mapping in every style; and asking twice is asking once."""
    text = style(mapping)
    merge = hold(text)
    assert merge.text is not None, merge.reason
    assert strings(merge.text) == {**strings(text), HOLD: "true"}
    assert hold(merge.text).text is None


def nodes(node: yaml.Node | None, above: tuple[int, ...] = ()) -> Any:
    """A node as nested tuples of tags and values; a node within itself is named by its depth."""
    if node is None or id(node) in above:
        return above.index(id(node)) if node else None
    path = (*above, id(node))
    if isinstance(node, yaml.MappingNode):
        return [(nodes(key, path), nodes(value, path)) for key, value in node.value]
    if isinstance(node, yaml.SequenceNode):
        return (node.tag, [nodes(item, path) for item in node.value])
    return (node.tag, node.value)


def first_document(text: str) -> Any:
    """The meaning of what Istio reads: the first document, by the scanner of Istio's kind."""
    return nodes(next(iter(yaml.compose_all(text, Loader=yaml.CSafeLoader)), None))


@given(st.text(st.sampled_from("ab:-{}[],#'\"|>&*!?% \n\t.é"), max_size=30))
def test_no_text_breaks_it(text: str) -> None:
    """Whatever the text, it is kept, or it is a mapping, or nothing, that got the key."""
    merge = hold(text)
    if merge.text is None:
        return
    [added] = first_document(f"{HOLD}: true")
    before = first_document(text) if text.strip() else None
    if not isinstance(before, list):
        assert before in {None, ("tag:yaml.org,2002:null", ""), ("tag:yaml.org,2002:null", "~")}
        before = []
    assert first_document(merge.text) in ([*before, added], [added, *before])
    assert hold(merge.text).text is None
