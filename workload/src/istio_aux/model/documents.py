"""Manifests that people write, and JSON that is nested too deeply for decoders.

Files with pods: JSON, YAML, one or many documents, or lines of JSON. `read` says what is wrong with
each document that cannot be used. `shallow` cuts what is nested more deeply than a decoder follows:
msgspec stops at a RecursionError, and a tenant can store such an object in the API server.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Generator, Iterator
from itertools import accumulate
from typing import Any, TypeVar, cast

import msgspec
import yaml

from istio_aux.model.pod import Metadata
from istio_aux.model.selectors import DNS_LABEL, DNS_SUBDOMAIN, LONGEST_NAME
from istio_aux.model.text import problem, quoted

T = TypeVar("T")

Cooperative = Generator[None, None, T]  # A computation that yields, so that other tasks get a turn.

DEEPEST = 64  # Levels that are not cut. A list of pods has 13 that we read.

_OPENS = bytes.maketrans(b"[]{}", b"\x01\xff\x01\xff")
_CLOSES = bytes.maketrans(b"[]{}", b"\xff\x01\xff\x01")
_NO_MARKS = bytes({*range(256)} - {*b'"[]{}'})
# A tenant's string in JSON cannot match: each quote in it has a backslash before it.
_FIELDS = re.compile(rb'"managedFields"(?<!\\"managedFields")\s*+:\s*+\[')


def shallow(body: bytes, *, deepest: int = DEEPEST, most: int = 4000) -> bytes:
    """Replace managedFields, and what is nested more than ``deepest`` levels, with ``null``.

    ValueError: it takes more than ``most`` steps. 10 MiB take 2,560 steps, and each value that is
    cut takes a dozen more.
    """
    return run_now(cutting(body, deepest), most)


def run_now(work: Cooperative[T], most: int = sys.maxsize) -> T:
    """Do all of ``work`` now; ValueError: it takes more than ``most`` steps."""
    for _ in range(most):
        try:
            next(work)
        except StopIteration as done:
            return done.value
    raise ValueError(f"it takes more than {most} steps to read")


def cutting(body: bytes, deepest: int = DEEPEST) -> Cooperative[bytes]:
    """Do what `shallow` does, as a `Cooperative` computation; a text may be of any size."""
    kept, start = list[bytes](), 0
    while found := _FIELDS.search(body, start):
        kept += (body[start : found.end() - 1], b"null")
        start = yield from _behind(body, found.end(), _CLOSES, 1)
    body = b"".join((*kept, body[start:]))
    kept, start, levels = list[bytes](), 0, deepest + 1
    while (opened := (yield from _behind(body, start, _OPENS, levels))) <= len(body):
        kept += (body[start : opened - 1], b"null")
        start = yield from _behind(body, opened, _CLOSES, 1)
        levels = 1
    return b"".join((*kept, body[start:]))


def _behind(body: bytes, start: int, side: bytes, levels: int) -> Cooperative[int]:
    """Return the position after ``start`` where ``side`` has ``levels`` brackets more.

    ``start`` is not inside a string. If there is no such position, the result is behind the end.
    """
    size, growth, quoted = 32, 2, False
    while start < len(body):
        part = body[start : start + size]
        if (len(part) - len(part.rstrip(b"\\"))) % 2:
            part = body[start : start + size + 1]  # With a character that a backslash escapes.
        marks = part.replace(b"\\\\", b"").replace(b'\\"', b"").translate(side, _NO_MARKS)
        # An empty string does not change which brackets are inside strings.
        texts = marks.replace(b'""', b"").split(b'"')
        steps = b"".join(texts[quoted::2])
        if steps.count(1) < levels or levels not in accumulate(memoryview(steps).cast("b")):
            start += len(part)
            quoted ^= len(texts) % 2 == 0
            levels -= 2 * steps.count(1) - len(steps)
            # A step takes 0.2 ms at most: it looks at all brackets of 8 KiB together.
            size = min(size * growth, 8192)
            yield
        elif size > 1:
            size, growth = size // 2, 1  # The position is in this part, so in one half.
        else:
            return start + len(part)
    return len(body) + 1


class Document(msgspec.Struct, frozen=True):
    """One value as JSON."""

    place: str  # Where in the file: a line ``12``, or ``12: item 5``.
    body: bytes
    readable: bytes  # `body` without what is nested too deeply for a decoder.
    cut: bool = False  # Whether parts that are nested too deeply were replaced by ``null``.
    # Kind from the list that it came in, such as ``Pod`` for a PodList: items may lack it.
    kind: str = ""
    api_version: str = ""


class BadDocument(msgspec.Struct, frozen=True):
    """A document that cannot be read, and why, in one line."""

    place: str
    why: str


class BadNameError(ValueError):
    """A document has a name that no object can have."""


_SUBDOMAIN = DNS_SUBDOMAIN, f"a DNS subdomain of at most {LONGEST_NAME} characters (RFC 1123)"
_LABEL = DNS_LABEL, "a DNS label of at most 63 characters (RFC 1123)"
# A DNS label but for its case (apiextensions ValidateCustomResourceDefinitionNames).
_KIND = re.compile("[A-Za-z](?:[-A-Za-z0-9]{0,61}[A-Za-z0-9])?"), "letters, digits and '-'"


def check_names(kind: str, name: str, metadata: Metadata) -> None:
    """Refuse names that no object can have: they are in commands to paste. An empty one is absent.

    BadNameError: the message has the object, the field, its value and what is allowed.
    """
    found = [
        ("name", name, _LABEL if kind == "Namespace" else _SUBDOMAIN),
        ("namespace", metadata.namespace, _LABEL),
    ]
    for number, owner in enumerate(metadata.owner_references or ()):
        where = f"ownerReferences[{number}]"
        found += [(f"{where}.kind", owner.kind, _KIND), (f"{where}.name", owner.name, _SUBDOMAIN)]
    for field, value, (form, allowed) in found:
        if value and (len(value) > LONGEST_NAME or not form.fullmatch(value)):
            raise BadNameError(
                f"{kind} {quoted(name)}: metadata.{field}: {quoted(value)}: expected {allowed}"
            )


class _Items(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    items: list[msgspec.Raw] | None = None


_UNREADABLE = (msgspec.MsgspecError, ValueError, TypeError, RecursionError, yaml.YAMLError)


def read(body: bytes) -> Iterator[Document | BadDocument]:
    """Yield the documents of a file, each with its line, and the items of lists one by one.

    JSON may be one document, one a line, or several in a row. Anything else is YAML, whose empty
    documents are skipped, as kubectl does.
    """
    body = body.removeprefix(b"\xef\xbb\xbf").rstrip()
    first = _line(body)
    body = body.lstrip()
    whole = _readable(body) if body.startswith(b"{") else None
    for line, item in [(0, body)] if whole else _split(body):
        place = str(first + line)
        if isinstance(item, bytes):
            yield from _expand(place, item, whole or _readable(item) or item)
        else:
            yield BadDocument(place, problem(item))


def first(text: str, what: str) -> bytes:
    """The first document of a text as JSON; of none, that of an empty object.

    ValueError: it cannot be read; the message begins with ``what``.
    """
    document = next(read(text.encode()), None)
    if isinstance(document, BadDocument):
        raise ValueError(f"{what}: {document.why}")  # noqa: TRY004  (of the text, not of a type)
    return document.body if document else b"{}"


def _line(text: bytes) -> int:
    """The line of the first character that is no space; the first line is 1."""
    return text[: len(text) - len(text.lstrip())].count(b"\n") + 1


def _readable(body: bytes) -> bytes | None:
    """The text, without what is nested too deeply for a decoder; None if it is no JSON."""
    try:
        try:
            msgspec.json.decode(body, type=msgspec.Raw)
        except RecursionError:
            body = shallow(body, most=sys.maxsize)
            msgspec.json.decode(body, type=msgspec.Raw)
    except _UNREADABLE:
        return None
    return body


def _expand(place: str, body: bytes, readable: bytes) -> Iterator[Document | BadDocument]:
    """Replace a List, such as a PodList, by its items."""
    try:
        value = msgspec.json.decode(readable, type=_Items)
    except _UNREADABLE as error:
        yield BadDocument(place, problem(error))
        return
    if value.items is None or not value.kind.endswith("List"):
        yield Document(place, body, readable)
        return
    kind = value.kind.removesuffix("List")
    for number, item in enumerate(map(bytes, value.items), start=1):
        yield Document(
            f"{place}: item {number}",
            item,
            item,
            readable is not body,
            kind,
            value.api_version if kind else "",
        )


# The number of lines before a document, and the document, or why there is none.
_Part = tuple[int, bytes | Exception]


def _split(body: bytes) -> Iterator[_Part]:
    if _SEPARATOR.search(body):
        yield from _split_yaml(body)
    elif any(line.startswith(b"{") and _readable(line) for line in body.splitlines()):
        yield from ((number, line) for number, line in enumerate(body.split(b"\n")) if line.strip())
    elif body.startswith(b"{"):
        yield from _split_json(body)
    else:
        yield from _split_yaml(body)


def _split_json(body: bytes) -> Iterator[_Part]:
    """Split JSON values that follow one another, up to the first bad one."""
    decoder = json.JSONDecoder()
    line = 0
    try:
        text = body.decode()
        position = 0
        while position < len(text):
            _, end = decoder.raw_decode(text, position)
            yield line, text[position:end].encode()
            while end < len(text) and text[end].isspace():
                end += 1
            line += text.count("\n", position, end)
            position = end
    except _UNREADABLE as error:
        yield line, error


# libyaml's scanner is the one that go-yaml v2 descends from, and ten times faster than the pure
# one, which only source installations of PyYAML without libyaml use.
LOADER = cast("type[yaml.SafeLoader]", getattr(yaml, "CSafeLoader", yaml.SafeLoader))
# The stubs of PyYAML leave yaml.parse without annotations.
parse_events = cast("Callable[..., Iterator[yaml.Event]]", yaml.parse)  # pyright: ignore[reportUnknownMemberType]

_DEEPEST_YAML = 500

_SEPARATOR = re.compile(rb"^---(?=\s|$)", re.MULTILINE)


def _split_yaml(body: bytes) -> Iterator[_Part]:
    """Split at the separators first: an error in one document must not hide the next."""
    before = 0
    for text in _SEPARATOR.split(body):
        try:
            value = load_yaml(text, _loader)
            if value is not None:
                yield before + _line(text) - 1, msgspec.json.encode(value)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark
            yield (
                before + (mark.line if mark else _line(text) - 1),
                ValueError(error.problem or "no YAML"),
            )
        except _UNREADABLE as error:
            yield before + _line(text) - 1, error
        before += text.count(b"\n")


def load_yaml(text: bytes, loader: type[yaml.SafeLoader] = LOADER) -> object:
    """Load a document of YAML, unless it would take all memory, or end the process.

    ValueError: its aliases stand for far more than the text has, or it is nested so deeply that
    libyaml's composer, which is recursive C, could overflow its stack. YAMLError: it is no YAML.
    """
    most = min(10 * len(text), 64 << 20)  # What aliases may expand to.
    written = 0.0
    sizes = [0.0]  # Sizes of the open collections, with their aliases expanded.
    anchors = list[str | None]()  # Anchors of the open collections.
    anchored = dict[str | None, float]()
    for event in parse_events(text, Loader=LOADER):
        match event:
            case yaml.CollectionStartEvent():
                anchored[event.anchor] = math.inf  # An alias inside its own anchor has no end.
                anchors.append(event.anchor)
                sizes.append(0.0)
                if len(anchors) > _DEEPEST_YAML:
                    raise ValueError(f"it is nested more than {_DEEPEST_YAML} levels deep")
                continue
            case yaml.AliasEvent():
                size = anchored.get(event.anchor, 0.0)
            case yaml.CollectionEndEvent():
                size = 1 + sizes.pop()
                written += 1
                anchored[anchors.pop()] = size
            case yaml.ScalarEvent():
                size = 1 + len(event.value)
                written += size
                anchored[event.anchor] = size
            case _:
                continue
        sizes[-1] += size
        if sizes[-1] > written + most:
            raise ValueError("excessive aliasing: its aliases stand for far more than it has")
    return cast("object", yaml.load(text, Loader=loader))  # noqa: S506 - a SafeLoader


# Reads scalars as Kubernetes does (sigs.k8s.io/yaml). For PyYAML ``2024-01-01`` is a date and
# ``12:30:45`` the number 45045; here both are strings.
_loader: Any = type("KubernetesLoader", (LOADER,), {})
_loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in resolvers if tag.endswith((":null", ":bool", ":merge"))]
    for first, resolvers in LOADER.yaml_implicit_resolvers.items()
}
_loader.add_implicit_resolver(
    "tag:yaml.org,2002:int",
    re.compile(r"[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)$"),
    [*"-+.0123456789"],
)
_loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?([0-9]+[eE]|([0-9][0-9_]*)?\.[0-9_]+([eE]|$))([-+]?[0-9]+)?$"),
    [*"-+.0123456789"],
)


def to_yaml(value: object) -> str:
    """Write YAML that Kubernetes reads as the same value; what is not ASCII is escaped."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=sys.maxsize)


class _Dumper(yaml.SafeDumper):
    """Quotes what YAML 1.1, or Kubernetes, would not read as text."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        return True


def _text_node(dumper: Any, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, "|" if "\n" in value else None)


_Dumper.add_representer(str, _text_node)
_Dumper.yaml_implicit_resolvers = {
    first: [*resolvers, *_loader.yaml_implicit_resolvers.get(first, ())]
    for first, resolvers in yaml.SafeDumper.yaml_implicit_resolvers.items()
}
