"""What tenants write leads to a decision, and no pattern is slow on it; what Events tell them."""

from __future__ import annotations

import ast
import functools
import importlib
import io
import json
import logging
import re
import time
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import product
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import istio_aux
import pytest
import yaml
from hypothesis import given, strategies as st
from istio_aux.kube import events
from istio_aux.kube.client import Client
from istio_aux.kube.clock import Timing
from istio_aux.kube.events import Events
from istio_aux.kube.objects import Key
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
from unit.apiserver import ApiServer
from unit.declared import KEYS, MODULES
from unit.process import background, logging_to, until
from unit.rules.pods import RUNNING, document, exited, planned
from unit.screens import Run

# What tenants write leads to a decision by `model.annotations`, and no pattern is slow on it.

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
    found = PodSettings.of(read := convert(pod)).remarks(read.metadata)
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


# Kubernetes Events on a pod: what is sent, and that nothing depends on it.

POD = Key("training", "job", "u-1")


@asynccontextmanager
async def recording(
    api: ApiServer, event: float = 0.001, source: str = ""
) -> AsyncGenerator[Events]:
    async with Client(api.access()) as client:
        recorder = Events(client, "host", source=source, timing=Timing(event=event))
        async with background(recorder.run()):
            yield recorder


@pytest.fixture
def recorder(api: ApiServer) -> AbstractAsyncContextManager[Events]:
    return recording(api)


def tell(recorder: Events, note: str = "it exited") -> None:
    recorder.emit(POD, "Normal", reason="ProxyQuit", action="Quit", note=note)


async def test_an_event_is_about_the_pod_and_says_who_did_what(
    api: ApiServer, recorder: Events
) -> None:
    tell(recorder)
    await until(lambda: api.events, "the Event is there")
    assert api.requests == ["POST /apis/events.k8s.io/v1/namespaces/training/events"]
    (event,) = api.events
    pod = {"apiVersion": "v1", "kind": "Pod", "namespace": "training", "name": "job", "uid": "u-1"}
    assert event.items() >= {
        "regarding": pod, "type": "Normal", "reason": "ProxyQuit", "action": "Quit",
        "note": "it exited", "reportingController": "istio-aux.io/istio-aux",
        "reportingInstance": "host",
    }.items()  # fmt: skip
    assert event["metadata"]["name"].startswith("job.")


async def test_an_event_that_a_pod_gets_once_has_the_same_name_in_every_process(
    api: ApiServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Across restarts and leaders of an application: one that exists already is no error."""
    other = Key("training", "job", "u-2")
    for note, source in (("first", "a/aux"), ("second", "a/aux"), ("third", "b/aux")):
        async with recording(api, source=source) as recorder:
            for pod in (POD, other):
                recorder.emit(
                    pod, "Warning", reason="NoSidecar", action="Report", note=note, once=True
                )
            tell(recorder, f"after the {note}")
            await until(functools.partial(noted, api, f"after the {note}"), "all are sent")
    assert [event["note"] for event in api.events] == [
        "first", "first", "after the first", "after the second", "third", "third",
        "after the third",
    ]  # fmt: skip
    assert not [record for record in caplog.records if record.name == events.__name__]


def noted(api: ApiServer, note: str) -> bool:
    """Whether there is an Event with this note."""
    return note in [event["note"] for event in api.events]


async def test_name_and_note_of_an_event_are_such_as_the_api_server_takes(
    api: ApiServer, recorder: Events
) -> None:
    """A pod's may be as long as an Event's, and end in a dash where it is cut."""
    pod = Key("training", f"{'a-' * 126}a", "u-1")
    for once in (True, False):
        note = "ü" * 2000
        recorder.emit(pod, "Warning", reason="NoSidecar", action="Report", note=note, once=once)
    await until(lambda: len(api.events) == 2, "both are there")
    for event in api.events:
        name = event["metadata"]["name"]
        assert len(name) <= 253
        assert len(event["note"].encode()) == events.NOTE
        assert re.fullmatch(
            r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", name
        )


async def test_a_flood_of_events_is_thinned_to_a_burst_and_a_rate() -> None:
    async with (
        ApiServer() as api,
        Client(api.access()) as client,
        recording(api, event=1000) as recorder,
    ):
        for _ in range(5 * events.WAITING):
            tell(recorder)
        await until(lambda: len(api.events) >= events.BURST, "the burst is through")
        for _ in range(20):  # Time enough for further Events.
            await client.get("/api/v1/pods")
        assert len(api.events) == events.BURST


async def test_a_warning_overtakes_what_is_a_matter_of_course(
    api: ApiServer, client: Client
) -> None:
    """A thousand pods that are freed at a start do not hide the one that lost its proxy.

    istio#45627.
    """
    recorder = Events(client, "host", timing=Timing(event=0.001))
    for _ in range(2 * events.WAITING):
        tell(recorder)
    for note in ("first", "second"):
        recorder.emit(POD, "Warning", reason="ProxyLost", action="Quit", note=note)
    async with background(recorder.run()):
        await until(lambda: len(api.events) > 2, "some are there")
    assert [event["note"] for event in api.events[:3]] == ["first", "second", "it exited"]


async def test_namespaces_with_thousands_of_events_hold_up_those_of_no_other_one(
    api: ApiServer, client: Client
) -> None:
    """They have an equal share of it, and take no places in the queue from others."""
    recorder = Events(client, "host", timing=Timing(event=0.001))
    for index in range(3 * events.WAITING):
        warn(recorder, f"crowd-{index % 2}", f"{index}")
    for number in range(3):
        warn(recorder, "quiet", f"quiet-{number}")
    recorder.emit(
        Key("calm", "job", "u-1"), "Normal", reason="ProxyQuit", action="Quit", note="calm"
    )
    async with background(recorder.run()):
        await until(lambda: len(api.events) >= 30, "some are there")
    told = [event["note"] for event in api.events[:30]]
    assert [note for note in told if "quiet" in note] == ["quiet-0", "quiet-1", "quiet-2"]
    assert told[:4] == ["0", "1", "quiet-0", "calm"]


async def test_a_tenant_with_many_namespaces_delays_the_first_event_of_no_other_one(
    api: ApiServer, client: Client
) -> None:
    """Also one that every pod may have, and that comes while warnings are sent all the time."""
    recorder = Events(client, "host", timing=Timing(event=0.001))
    for index in range(1500):
        warn(recorder, f"crowd-{index % 150}", "crowd")
    async with background(recorder.run()):
        await until(lambda: len(api.events) > 200, "each has had a turn")
        recorder.emit(POD, "Normal", reason="ProxyQuit", action="Quit", note="calm", mass=True)
        before = len(api.events)
        await until(lambda: noted(api, "calm"), "it is there")
    told = [event["note"] for event in api.events]
    assert told.index("calm") <= before + 3


def warn(recorder: Events, namespace: str, note: str) -> None:
    """Queue a Warning about a pod of this namespace."""
    pod = Key(namespace, "job", "u-1")
    recorder.emit(pod, "Warning", reason="ProxyLost", action="Quit", note=note)


async def test_of_namespaces_that_come_without_end_only_the_last_ones_are_kept(
    api: ApiServer, client: Client
) -> None:
    recorder = Events(client, "host")
    for index in range(5 * events.WAITING):
        warn(recorder, f"new-{index}", "new")
    assert len(recorder._waiting) == events.WAITING
    assert len(recorder._turns) <= 2 * events.WAITING


async def test_events_about_many_pods_are_dropped_first(api: ApiServer, client: Client) -> None:
    recorder = Events(client, "host", timing=Timing(event=0.001))
    for _ in range(2 * events.WAITING):
        recorder.emit(POD, "Warning", reason="NoSidecar", action="Report", note="mass", mass=True)
    tell(recorder)
    async with background(recorder.run()):
        await recorder.sent(60)
    told = [event["note"] for event in api.events]
    assert told == ["it exited"] + ["mass"] * (events.WAITING - 1)


async def test_a_refused_event_is_logged_once_and_the_next_is_sent(
    api: ApiServer,
    recorder: Events,
    caplog: pytest.LogCaptureFixture,
) -> None:
    api.refuse("/events", 403, "Forbidden", "events is forbidden", times=2)
    for _ in range(3):
        tell(recorder)
    await until(lambda: api.events, "the third is there")
    logged = [r.getMessage() for r in caplog.records if r.name == events.__name__]
    assert logged == ["Event not sent: 403 Forbidden: events is forbidden"]


async def test_an_event_that_is_throttled_is_sent_when_the_api_server_says(
    api: ApiServer, recorder: Events
) -> None:
    came = api.refuse("/events", 429, "TooManyRequests", "slow down", times=1, after=1)
    tell(recorder, "first")
    tell(recorder, "second")
    await until(lambda: len(api.events) == 2, "both are there")
    assert came[1] - came[0] >= 1
    assert [event["note"] for event in api.events] == ["first", "second"]
