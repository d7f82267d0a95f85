"""How hold gets into the user's own text, and how that text survives."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from istio_aux.model.pod import Metadata, Pod
from istio_aux.start.hold import ANNOTATION, HOLD, HOLD_PROTO, Merge, merged, read

GOLDEN = Path(__file__).parents[2] / "data" / "hold"
MEANING = json.loads((GOLDEN / "meaning.json").read_text())

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


def golden(folder: str) -> Any:
    """The texts of a folder of tests/data/hold, each a row of a table."""
    files = sorted((GOLDEN / folder).glob("*.in"))
    return pytest.mark.parametrize("file", files, ids=[file.stem for file in files])


def text_of(file: Path) -> str:
    return file.read_bytes().decode()


def meaning(file: Path) -> Any:
    """What Istio's own reader makes of a text; a string that it refuses it."""
    found = MEANING[str(file.relative_to(GOLDEN))]
    return found["json"] if "json" in found else f"refused: {found['error']}"


@golden("merged")
def test_hold_is_added_and_all_else_is_kept(file: Path) -> None:
    """Comments, order, indent, quotes and line ends stay; one key comes in."""
    assert merged(text_of(file)) == Merge(
        text=text_of(file.with_suffix(".out")), reason=f"added {HOLD}", holds=True
    )


@golden("merged")
def test_istio_reads_the_old_mapping_and_our_key(file: Path) -> None:
    """As its own library reads both texts, not as ours does."""
    assert meaning(file.with_suffix(".out")) == {**(meaning(file) or {}), HOLD: True}


@golden("kept")
def test_an_explicit_value_is_left_alone(file: Path) -> None:
    """The author has decided, in whichever spelling; ``false`` is an opt-out."""
    merge = merged(text_of(file))
    assert (merge.text, merge.warning) == (None, None)
    found = meaning(file)
    assert merge.holds == bool(found.get(HOLD, found.get(HOLD_PROTO)))


@golden("refused")
def test_what_istio_refuses_stays_byte_for_byte_and_is_reported(file: Path) -> None:
    """Istio refuses such a pod with its own message; we say that we kept away."""
    merge = merged(text_of(file))
    assert not isinstance(meaning(file), dict)
    assert merge.text is None
    assert merge.warning is not None
    assert merge.warning.isprintable()


@pytest.mark.parametrize(
    "text",
    [
        *("null: 1", "a: .inf", "a: *nobody", "a: &x [*x]", "<<: a", "# why?\na: b"),
        "\n".join(f"a{number}: {'b' * 50}" for number in range(250)),
    ],
    ids=lambda text: text[:12],
)
def test_what_only_istios_own_reader_refuses_gets_the_key(text: str) -> None:
    """Istio refuses the pod with the key or without it, and says why. Long texts get it, too."""
    assert merged(text).text == f"{text}\n{HOLD}: true"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f'{HOLD}: "true"', "expected true or false"),
        (f"{HOLD}: [true]", "expected true or false"),
        (f"<<: {{{HOLD}: false}}", "merge key"),
        (f"a: &x {HOLD}\n*x : false", "alias"),
        ("\ufeffa: 1", "byte order mark"),
        ("? a\n: 1", "no place was found"),
        ("[" * 16_000, "nested more than 100"),
        ("{a: " * 4_000, "nested more than 100"),
        ("? " * 8_000, "nested more than 100"),
        ("a: [" + "1, " * 1000 + "]", "more than 1000 keys"),
        ("a: 1\n  b: 2", "mapping values are not allowed in this context, line 2"),
    ],
    ids=[
        "a quoted boolean", "a list of booleans", "a decision in a merge key",
        "a decision behind an alias", "a byte order mark", "an explicit key", "a deep list",
        "a deep mapping", "a deep key", "many values", "a second value",
    ],
)  # fmt: skip
def test_what_may_be_misread_stays_and_is_reported(text: str, why: str) -> None:
    """Where it is not certain what Istio would make of it, and where to read it takes long."""
    merge = merged(text)
    assert merge.text is None
    assert why in (merge.warning or "")


def test_a_very_long_text_stays_and_is_reported() -> None:
    """What the author wrote is not even looked at; Istio may well take it."""
    long = Pod(metadata=Metadata(annotations={ANNOTATION: "a: " + "b" * 17_000}))
    assert read(long).text is None
    assert "longer than 16 KiB" in (read(long).warning or "")


def is_inserted(text: str, result: str) -> bool:
    """Whether the result is the text with something put in at one place."""
    more = len(result) - len(text)
    return any(text == result[:place] + result[place + more :] for place in range(len(text) + 1))


@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=4), st.sampled_from(STYLES))
def test_the_result_is_the_old_mapping_plus_the_key(
    mapping: dict[str, Any], style: Callable[[Any], str]
) -> None:
    text = style(mapping)
    merge = merged(text)
    assert merge.text is not None, merge.reason
    assert is_inserted(text, merge.text)
    assert strings(merge.text) == {**strings(text), HOLD: "true"}
    assert merged(merge.text).text is None


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
    merge = merged(text)
    if merge.text is None:
        return
    assert merged(merge.text).text is None
    [added] = first_document(f"{HOLD}: true")
    try:
        before = first_document(text) if text.strip() else None
    except yaml.YAMLError:  # An alias without its anchor, which Istio refuses.
        return
    if not isinstance(before, list):
        assert before in {None, ("tag:yaml.org,2002:null", ""), ("tag:yaml.org,2002:null", "~")}
        before = []
    assert first_document(merge.text) in ([*before, added], [added, *before])
