"""CEL adds hold to texts exactly as the workload does, or leaves them alone."""

from __future__ import annotations

import itertools
import re
from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from istio_aux.core import proxyconfig
from lab import start_texts

import celmerge
from celmerge import FLOW_ENTRY, HOLD, HOLD_PROTO, LIMIT, LINE


def matches(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text) is not None


def merged(text: str) -> str:
    """What the expression of that name comes to; a real API server is asked in the cluster tier."""
    if len(text) > LIMIT:
        return ""
    if not text:
        return LINE
    if HOLD in text or HOLD_PROTO in text:
        return ""
    if matches(celmerge.BLOCK, f"{text}\n"):
        return f"{text}{LINE}\n" if text.endswith("\n") else f"{text}\n{LINE}"
    if matches(celmerge.FLOW, text):
        comma = "," if text[1] in " \n" else ", "
        return "{" + FLOW_ENTRY + ("" if matches(celmerge.FLOW_EMPTY, text) else comma) + text[1:]
    return ""


def settled(text: str) -> bool:
    lines = f"{text}\n"
    block = matches(celmerge.BLOCK, lines) and matches(celmerge.BLOCK_SETTLED, lines)
    return block or (matches(celmerge.FLOW, text) and matches(celmerge.FLOW_SETTLED, text))


def agree(text: str) -> str:
    """Raise AssertionError unless it is right to do so; returns what is done with the text."""
    result = merged(text)
    if result:
        assert proxyconfig.hold(text).text == result
        assert settled(result)
        return "merged"
    if settled(text):
        decision = proxyconfig.hold(text)
        assert decision.text is None
        # Of several values the last one counts. Whether that one is good, only the webhook can say.
        assert decision.warning is None or text.count(HOLD) + text.count(HOLD_PROTO) > 1
        return "settled"
    return "left"


# Whatever means something in YAML, in a mapping of this kind, or to a regular expression.
ATOMS = (
    *("a", "key", "A.b-c", "_x", "1", "0x1", "true", "null", "NULL", "nul", "number", "n", "~"),
    *(".inf", "-.inf", ".nan", "12:30:45", "1_000", "é", "\u2028", "\x85", "\ufeff", "\x00"),
    *("-", "- ", ": ", ":", "::", "?", "? ", "#", " #c", "# c\n", ",", ", ", "{", "}", "[", "]"),
    *('"', "'", '"x y"', "'z'", "''", "\\", '"k": ', '"k":', "{}", "[]", "{a: b}", "[a, b]"),
    *(" ", "  ", "    ", "\t", "\n", "\n\n", "\r", "\r\n", "---", "...", "%YAML 1.1", "|", ">"),
    *("&a", "*a", "!t", "!!null", "<<", "<<: ", "%", "@", "`", "=", "(", "/", "$", "^"),
    *("a: b", "b: 1\n", "k:\n", "  c: d\n", "  e:\n", "    f: g\n", "  - h\n", "    - i\n"),
    *(HOLD, HOLD_PROTO, LINE, f"{HOLD}: false\n", f'"{HOLD}": true', f"{HOLD_PROTO}: "),
)
LINES = ("a: b", "k:", "  c: d", "  e:", "    f: g", "  - h", "    - i", "#", "", " ", LINE, "---")


@given(st.lists(st.sampled_from(ATOMS), max_size=14).map("".join))
@example("a: b\n" * 1000)
@example(f"{'k' * 1025}: v")
def test_texts_made_of_what_yaml_is_made_of(text: str) -> None:
    agree(text)


@given(st.lists(st.sampled_from(LINES), max_size=10), st.booleans())
def test_texts_made_of_lines(lines: list[str], ends: bool) -> None:
    agree("\n".join(lines) + "\n" * ends)


@given(st.text(max_size=20))
def test_any_text(text: str) -> None:
    agree(text)
    agree(f"a: {text}")
    agree(f"{text}: a\n")
    agree(f"{{a: {text}}}")


def test_every_short_text() -> None:
    """Of two atoms, four lines, or five characters; many texts of each fate are among them."""
    atoms = map("".join, itertools.product(ATOMS, repeat=2))
    lines = map("\n".join, itertools.product(LINES, repeat=4))
    characters = map("".join, itertools.product("a:-#{},' \n", repeat=5))

    fates = Counter(map(agree, itertools.chain(atoms, lines, characters)))

    assert all(count > 500 for count in fates.values()), fates
    assert fates.keys() == {"merged", "settled", "left"}


@pytest.mark.parametrize(
    ("texts", "fate"),
    [
        (start_texts.MERGED, {"merged"}),
        (start_texts.DECIDED, {"settled"}),
        ({**start_texts.LEFT, **start_texts.REFUSED}, {"left"}),
    ],
)
def test_texts_of_the_table(texts: start_texts.Texts, fate: set[str]) -> None:
    assert {agree(text) for text, _ in texts.values()} == fate
