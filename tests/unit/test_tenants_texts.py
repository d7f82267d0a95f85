"""What tenants write leads to a decision by `model.annotations`, and no pattern is slow on it."""

from __future__ import annotations

import ast
import importlib
import io
import json
import logging
import re
import time
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import istio_aux
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from istio_aux.model.annotations import (
    MOST_NAMES,
    NAMES,
    Annotation,
    BadValueError,
    Label,
    mark,
    names,
    text_label,
)
from istio_aux.model.pod import Metadata, convert
from istio_aux.model.pod_settings import PodSettings, unread
from istio_aux.model.text import printable, printable_json
from istio_aux.start.plan import remarks
from unit.apiserver import ApiServer
from unit.declared import KEYS, MODULES
from unit.process import logging_to, until
from unit.rules.pods import RUNNING, document, exited, planned
from unit.screens import Run
from unit.test_events import recording, tell

SOURCES = Path(istio_aux.__file__).parent
FILES = sorted(SOURCES.rglob("*.py"))
ELSEWHERE = {
    # They copy or measure annotations, and write them: no value decides.
    ("start/plan.py", "before_injection"),
    ("start/plan.py", "_too_large"),
    ("start/plan.py", "of"),
    ("model/templates.py", "_step"),
    ("model/pod_settings.py", "of"),
    ("model/pod_settings.py", "unread"),
    # The Lease as it was read: it is written again, and `election.CHECKPOINT` reads it.
    ("kube/lease.py", "_annotations"),
}
"""The only functions that touch annotations beside the keys."""

READS = re.compile(
    r"""\.annotations\b                                        # Any use.
    | \.labels\b (?:\ or\ {}\))? (?:\[ | \.(?:get|values|pop)\b)   # A value of a label.
    | (?:\.get\( | \[) '(?:annotations|labels)' [)\]] (?!\ =[^=])""",  # Of a decoded document.
    re.VERBOSE,
)


def reads(source: str) -> list[tuple[str, str]]:
    """What reads annotations, or a value of a label, by the function that does."""
    functions = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return [
        (function.name, found)
        for function in functions
        for found in READS.findall(ast.unparse(function))
    ]


def test_only_the_keys_read_annotations_and_values_of_labels() -> None:
    """Whoever needs a value declares it: its type, its longest text and its most entries."""
    found = {
        (str(file.relative_to(SOURCES)), function): what
        for file in FILES
        if file.name != "annotations.py"
        for function, what in reads(file.read_text())
    }
    assert found.keys() == ELSEWHERE, found


def test_each_key_is_declared_once_for_each_type() -> None:
    """Two declarations would be two bounds."""
    found = [(type(key).__name__, key.name, key.longest) for key in KEYS]
    assert len(found) == len(set(found)) > 20


@pytest.mark.parametrize("text", ["x" * 6, "true " * 10_000, "maybe"])
def test_a_bad_value_names_the_key_the_value_and_what_is_allowed(text: str) -> None:
    key = Annotation("a/b", {"true": True}.__getitem__, "true", longest=5)
    with pytest.raises(BadValueError) as caught:
        key.of({"a/b": text})
    shown = text if len(text) <= 60 else f"{text[:60]}…"
    assert str(caught.value).startswith(f'annotation a/b: "{shown}": expected true')
    assert (f"it has {len(text)} characters, not at most 5" in str(caught.value)) is (len(text) > 5)
    assert key.get({"a/b": text}) is None


@pytest.mark.parametrize(
    ("kind", "key", "code", "meant"),
    [
        ("annotations", "istio-aux.io/quit-grase", "IA0201", "istio-aux.io/quit-grace"),
        ("annotations", "istio-aux.io/Quit", "IA0201", "istio-aux.io/quit"),
        ("annotations", "istio-aux.i/quit", "IA0201", "istio-aux.io/quit"),
        ("annotations", "istio-aux.io/unheard-of", "IA0201", ""),
        (
            "annotations",
            "sidecar.istio.io/nativeSideCar",
            "IA0201",
            "sidecar.istio.io/nativeSidecar",
        ),
        ("annotations", "proxy.istio.io/configs", "IA0201", "proxy.istio.io/config"),
        ("labels", "sidecar.istio.io.inject", "IA0201", "sidecar.istio.io/inject"),
        ("labels", "istio-aux.io/quit", "IA0203", "istio-aux.io/quit as annotation"),
        ("annotations", "istio.io/dataplane-mode", "IA0203", "istio.io/dataplane-mode as label"),
        ("annotations", "sidecar.istio.io/inject", "", None),
        ("annotations", "istio-aux.io/started-with", "", None),
        ("labels", "sidecar.istio.io/inject", "", None),
        ("annotations", "sidecar.istio.io/rewriteAppHTTPProbers", "", None),
        ("annotations", "traffic.sidecar.istio.io/excludeOutboundPorts", "", None),
        ("labels", "app", "", None),
        ("annotations", "", "", None),
    ],
)
def test_a_key_that_nothing_reads_is_named_with_what_was_meant(
    kind: str, key: str, code: str, meant: str | None
) -> None:
    """community-distribution#3589. The author is warned, and `explain` and `mutate` say it."""
    pod = document({"main": None})
    pod["metadata"][kind] = {key: "false", "a": "b"}
    hint = f": did you mean {meant}?" if meant else ""
    wanted = [] if meant is None else [f'{code}: {kind[:-1]} "{key}": nothing reads it{hint}']

    assert [text for text in planned(pod).warnings if "nothing reads" in text] == wanted
    found = remarks(read := convert(pod), PodSettings.of(read))
    assert [str(told) for told in found if "nothing" in told.text] == wanted


def test_of_thousands_of_keys_a_few_are_told() -> None:
    """Each is as near to a key as one can be, or very long."""
    near = dict.fromkeys((f"istio-aux.io/quit-grac{at}" for at in range(9999)), "")
    assert len(unread(Metadata(annotations=near, labels=near))) == 10
    [told] = unread(Metadata(annotations={f"istio-aux.io/{'x' * 200_000}": ""}))
    assert len(str(told)) < 120


def test_a_text_that_is_too_long_is_never_given_to_its_type() -> None:
    def never(_text: str) -> bool:
        raise AssertionError

    assert Label("a", never, "nothing", longest=3).get({"a": "long"}) is None


def test_a_mark_is_there_whatever_its_text_is() -> None:
    metadata = Metadata(annotations={"a/b": "x" * 300_000})
    assert mark("a/b").on(metadata)
    assert not text_label("a/b").on(metadata)


def test_a_list_has_a_number_of_names() -> None:
    allowed = ",".join(f"c{number}" for number in range(MOST_NAMES))
    assert len(names(allowed)) == MOST_NAMES
    assert len(allowed) < NAMES
    key = Annotation("a/b", names, "names", longest=NAMES)
    for more in (f"{allowed},another", "," * NAMES):
        with pytest.raises(BadValueError, match="expected names"):
            key.of({"a/b": more})


# Patterns.

Pattern = re.Pattern[Any]
USES = ("match", "fullmatch", "search", "findall", "split", "sub")
LENGTH = 32 * 1024
"""Characters of the texts that patterns are tried on. A quadratic pattern takes seconds."""
PATIENCE = 0.1
"""Seconds of CPU for one text: linear patterns take a hundredth of that."""


def patterns_of(module: ModuleType) -> Iterator[tuple[str, Pattern]]:
    """The patterns of a module, in its constants, its classes and the closures of its functions."""

    def within(value: object) -> Iterator[Pattern]:
        inner: Iterable[object] = ()
        match value:
            case re.Pattern():
                yield value
            case list() | tuple() | set() | frozenset():
                inner = value
            case dict():
                inner = value.values()
            case FunctionType():
                inner = [cell.cell_contents for cell in value.__closure__ or ()]
            case type() if value.__module__ == module.__name__:
                inner = [each for each in vars(value).values() if isinstance(each, re.Pattern)]
            case _:
                pass
        for each in inner:
            yield from within(each)

    for name, value in vars(module).items():
        for pattern in within(value):
            yield f"{module.__name__}.{name}", pattern


PATTERNS = {
    f"{name} {pattern.pattern!r:.40}": pattern
    for module in MODULES
    for name, pattern in patterns_of(module)
}


def how(name: str) -> set[str]:
    """How the module uses a pattern: by which methods, `match` if another library does."""
    module, _, short = name.rpartition(".")
    source = Path(importlib.import_module(module).__file__ or "").read_text()
    source = source.replace(".finditer(", ".findall(")  # Which looks through the text likewise.
    return set(re.findall(rf"\b{short}\.({'|'.join(USES)})\(", source)) or {"match"}


def hostile(pattern: Pattern) -> Iterator[Any]:
    """Long texts of what a pattern consists of, which it does not match at their end."""
    text = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode()
    letters = sorted({*re.sub(r"[\\^$*+?(){}|]", "", text), *'0a.- "\n\\[{,:'})
    words = [w for w in re.findall(r"[A-Za-z -]{4,}", text) if len(w) < 40]
    units = [*letters, *(a + b for a, b in product('0a.- "\n\\[{', repeat=2)), *words]
    for unit, end in product(units, ("", "\x00", "x")):
        found = unit * (LENGTH // len(unit)) + end
        yield found if isinstance(pattern.pattern, str) else found.encode()


def seconds(pattern: Pattern, use: str, text: Any) -> float:
    """CPU that one use takes; texts that are shorter come first, so that nothing takes minutes."""
    took = 0.0
    for share in (16, 4, 1):
        part = text[len(text) - len(text) // share :]
        began = time.thread_time()
        if use == "sub":
            pattern.sub(part[:0], part)
        else:
            getattr(pattern, use)(part)
        if (took := time.thread_time() - began) > PATIENCE:
            break
    return took


@pytest.mark.parametrize("found", PATTERNS)
def test_no_pattern_takes_more_than_linear_time(found: str) -> None:
    """Tenants choose the text, and one loop serves everybody."""
    name, pattern = found.partition(" ")[0], PATTERNS[found]
    texts = [*hostile(pattern)]
    slow = [
        (use, text[:40], took)
        for use in sorted(how(name))
        for text in texts
        if (took := seconds(pattern, use, text)) > PATIENCE
    ]
    assert not slow


def test_no_pattern_repeats_a_group_possessively() -> None:
    """Debian 12 has Python 3.11.2, which matches `(?:…)*+` wrongly: python/cpython#100061."""
    repeated = re.compile(r"\)(?:[*+?]|\{[0-9,]+\})\+")
    texts = {name: str(pattern.pattern) for name, pattern in PATTERNS.items()}
    assert [name for name, text in texts.items() if repeated.search(text)] == []


def test_every_pattern_is_compiled_where_the_tests_find_it() -> None:
    """Others would escape the test above. `settings.matching` keeps its own in a closure."""
    found = {
        f"{file.name} {function.name}"
        for file in FILES
        for tree in [ast.parse(file.read_text())]
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "re"
        and node.attr not in {"Match", "Pattern"}
    }
    assert found == {"settings.py matching"}


# Whatever reads it: a terminal obeys none of it.


HOSTILE = {
    "escape": "\x1b[2J",
    "delete": "\x7f",
    "control sequence of C1": "\x9b2J",
    "next line of C1": "\x85",
    "override": "\u202e",
    "isolate": "\u2066",
    "zero width": "\u200b",
    "byte order mark": "\ufeff",
    "line separator": "\u2028",
    "paragraph separator": "\u2029",
    "tag beyond U+FFFF": "\U000e0041",
    "private": "\ue000",
}
each_text = pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)


def is_text(lines: str) -> bool:
    return bool(lines) and all(line.isprintable() for line in lines.split("\n"))


@each_text
@pytest.mark.parametrize("output", ["json", "text"])
def test_explain_shows_text(text: str, output: str, run: Run) -> None:
    pod = document(
        {f"main{text}": exited(0), "istio-proxy": RUNNING},
        annotations={"istio-aux.io/quit-grace": text},
    )
    _, out, _ = run("explain", "-o", output, "-f", "-", columns=None, stdin=json.dumps(pod))
    assert is_text(out)
    if output == "json":
        assert f"main{text}" in json.loads(out)["containers"]


@each_text
@pytest.mark.parametrize("output", ["json", "yaml"])
def test_mutate_shows_text_and_its_warnings_are_text(text: str, output: str, run: Run) -> None:
    """Who reads the JSON or the YAML gets what was written."""
    pod = document({"main": None}, annotations={"istio-aux.io/start": text, "note": text})
    _, out, err = run("mutate", "-o", output, "-f", "-", columns=None, stdin=json.dumps(pod))
    assert is_text(out)
    assert is_text(err)
    read = json.loads if output == "json" else yaml.safe_load
    assert read(out)["metadata"]["annotations"]["note"] == text


@each_text
def test_a_log_line_is_text(text: str) -> None:
    with logging_to(io.BytesIO()) as log:
        logging.getLogger("any").warning("%s", text, extra={"reason": text})
        written = log.getvalue().decode()
    assert is_text(written)
    assert json.loads(written)["reason"] == text


@each_text
async def test_the_note_of_an_event_is_text(text: str) -> None:
    """`kubectl describe` shows it."""
    async with ApiServer() as api, recording(api) as recorder:
        tell(recorder, f"main{text}")
        await until(lambda: api.events, "the Event is there")
    assert is_text(api.events[0]["note"])


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_json_means_the_same_and_is_text(value: Any) -> None:
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(
        errors="surrogatepass"
    )
    assert is_text(printable_json(body).decode())
    assert json.loads(printable_json(body)) == value


@given(st.text())
def test_printable_text_stays_as_it_is(text: str) -> None:
    assert printable(text).isprintable()
    assert (printable(text) == text) is text.isprintable()
