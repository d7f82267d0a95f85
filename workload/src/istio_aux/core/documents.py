"""Documents that a person hands over: JSON, JSON lines or YAML bytes to one JSON text each.

Only reading and placing of documents may live here, not what is in them. One that cannot be read is
an item of the result, so that it stops none of the others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import cast

import msgspec
import yaml


class Document(msgspec.Struct, frozen=True):
    """One value as JSON, and its place in the input: ``document 2``, ``document 2 item 5``."""

    place: str
    body: bytes
    listed: bool = False
    """Whether it came in a list, whose items may do without ``kind`` and ``apiVersion``."""


class BadDocument(msgspec.Struct, frozen=True):
    """A place in the input that cannot be read, and why, in one line."""

    place: str
    why: str


class _List(msgspec.Struct, frozen=True):
    kind: str = ""
    items: list[msgspec.Raw] | None = None


_UNREADABLE = (msgspec.MsgspecError, ValueError, TypeError, RecursionError, yaml.YAMLError)
_list_decoder = msgspec.json.Decoder(_List)


def read(body: bytes) -> Iterator[Document | BadDocument]:
    """Split the bytes of a file into documents, counted from 1; the items of lists stand alone.

    JSON may be one document, one a line, or several in a row; anything else is YAML, of which empty
    documents are skipped, as kubectl does.
    """
    for index, item in enumerate(_split(body.removeprefix(b"\xef\xbb\xbf").strip()), start=1):
        place = f"document {index}"
        if isinstance(item, bytes):
            yield from _expand(place, item)
        else:
            yield BadDocument(place, _one_line(item))


def _expand(place: str, body: bytes) -> Iterator[Document | BadDocument]:
    """Replace a List, a PodList for example, by its items."""
    if b'"items"' not in body:  # Looking at the bytes spares most documents a second decoding.
        yield Document(place, body)
        return
    try:
        found = _list_decoder.decode(body)
    except _UNREADABLE as error:
        yield BadDocument(place, _one_line(error))
        return
    if found.items is None or not found.kind.endswith("List"):
        yield Document(place, body)
        return
    for number, item in enumerate(found.items, start=1):
        yield Document(f"{place} item {number}", bytes(item), listed=True)


def _split(body: bytes) -> Iterator[bytes | Exception]:
    if body.startswith(b"{") and _is_json(body):
        yield body
    elif _SEPARATOR.search(body):
        yield from _split_yaml(body)
    elif any(line.startswith(b"{") and _is_json(line) for line in body.splitlines()):
        yield from (line for line in body.splitlines() if line.strip())
    elif body.startswith(b"{"):
        yield from _split_json(body)
    else:
        yield from _split_yaml(body)


def _is_json(body: bytes) -> bool:
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
    except _UNREADABLE:
        return False
    return True


def _split_json(body: bytes) -> Iterator[bytes | Exception]:
    """Split JSON values that follow one another; after a bad one there is no telling them apart."""
    decoder = json.JSONDecoder()
    try:
        text, position = body.decode(), 0
        while position < len(text):
            _, end = decoder.raw_decode(text, position)
            yield text[position:end].encode()
            while end < len(text) and text[end].isspace():
                end += 1
            position = end
    except _UNREADABLE as error:
        yield error


_SEPARATOR = re.compile(rb"^---(?=\s|$)", re.MULTILINE)


def _split_yaml(body: bytes) -> Iterator[bytes | Exception]:
    """Split at the separators first, so that a document with an error does not hide the next."""
    for text in _SEPARATOR.split(body):
        try:
            value = cast("object", yaml.load(text, Loader=_loader))  # noqa: S506 - a SafeLoader
            if value is not None:
                yield msgspec.json.encode(value)
        except _UNREADABLE as error:
            yield error


def _kubernetes_loader() -> type[yaml.SafeLoader]:
    """Make a loader that reads scalars as Kubernetes does (sigs.k8s.io/yaml).

    For plain PyYAML, ``2024-01-01`` is a date and ``12:30:45`` the number 45045; here both are
    strings.
    """
    base = cast("type[yaml.SafeLoader]", getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    loader = cast("type[yaml.SafeLoader]", type("KubernetesLoader", (base,), {}))
    kept = {f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "merge")}
    resolvers = {
        first: [resolver for resolver in resolvers if resolver[0] in kept]
        for first, resolvers in base.yaml_implicit_resolvers.items()
    }
    for first in "-+.0123456789":
        resolvers.setdefault(first, []).extend(_NUMBERS)
    loader.yaml_implicit_resolvers = resolvers
    return loader


_NUMBERS = [
    (f"tag:yaml.org,2002:{name}", re.compile(pattern))
    for name, pattern in (
        ("int", r"[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)$"),
        ("float", r"[-+]?([0-9]+[eE]|([0-9][0-9_]*)?\.[0-9_]+([eE]|$))([-+]?[0-9]+)?$"),
    )
]
_loader = _kubernetes_loader()


def _one_line(error: Exception) -> str:
    problem = getattr(error, "problem", None) or str(error) or type(error).__name__
    mark = getattr(error, "problem_mark", None)
    where = f", line {mark.line + 1}" if mark else ""
    return " ".join(str(problem).split()) + where
