"""JSON Patch operations (RFC 6902) as data that encodes itself; no knowledge of pods.

There are only ``add`` and ``move``. A patch that fails to apply makes the API server reject the
request even when the webhook's failurePolicy is Ignore, and ``test``, ``replace`` and ``remove``
can fail. ``add`` of an object's member replaces a value that is there, and fails only without its
parent; ``move`` fails only without what is to be moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec


class Add(msgspec.Struct, frozen=True, tag_field="op", tag="add"):
    """Set the object's member at ``path`` to ``value``."""

    path: str
    value: str | dict[str, Any] | list[Any]


class Move(msgspec.Struct, frozen=True, tag_field="op", tag="move"):
    """Take the item of a list at ``source`` out and insert it at ``path``."""

    path: str
    source: str = msgspec.field(name="from")


Op = Add | Move


class Step(msgspec.Struct, frozen=True):
    """A part of what admission changes: why, annotations to set, operations, and warnings."""

    reason: str = ""
    writes: Mapping[str, str] = {}
    ops: tuple[Op, ...] = ()
    warnings: tuple[str, ...] = ()  # Shown to the author of the pod.
    started_with: str | None = None  # ``native`` or ``hold``; None: no start order is asked for.
    native: bool = False  # Whether the pod's proxy is native, or will be.


_encoder = msgspec.json.Encoder()


def pointer(*segments: str | int) -> str:
    """Join member names and indices to a JSON Pointer (RFC 6901), escaping ``~`` and ``/``."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in segments)


def encode(ops: tuple[Op, ...]) -> bytes:
    """Encode operations as the JSON array that AdmissionReview's ``patch`` carries in base64."""
    return _encoder.encode(ops)


def apply(ops: Iterable[Op], document: dict[str, Any]) -> None:
    """Apply operations to a document in place, as the API server would to its own copy.

    Raises KeyError or IndexError: what an operation needs does not exist.
    """
    for op in ops:
        value = op.value if isinstance(op, Add) else _take(document, op.source)
        parent, member = _find(document, op.path)
        if isinstance(parent, list):
            cast("list[Any]", parent).insert(member, value)
        else:
            parent[member] = value


def _take(document: Any, path: str) -> Any:
    parent, member = _find(document, path)
    return parent.pop(member)


def _find(document: Any, path: str) -> tuple[Any, Any]:
    """The object or list that holds what ``path`` names, and its key or index there."""
    *parents, last = path.split("/")[1:]
    for segment in parents:
        document = document[_key(document, segment)]
    return document, _key(document, last)


def _key(parent: Any, segment: str) -> Any:
    if isinstance(parent, list):
        return int(segment)
    return segment.replace("~1", "/").replace("~0", "~")
