"""JSON Patch operations (RFC 6902) as data that encodes itself; no knowledge of pods.

There is only ``add``. A patch that fails to apply makes the API server reject the request even when
the webhook's failurePolicy is Ignore, and ``test``, ``replace`` and ``remove`` can fail. ``add`` of
an object's member replaces a value that is there, and fails only without its parent.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import msgspec


class Add(msgspec.Struct, frozen=True, tag_field="op", tag="add"):
    """Set the member at ``path`` to ``value``."""

    path: str
    value: str | dict[str, str]


Op = Add


def pointer(*segments: str) -> str:
    """Join member names to a JSON Pointer (RFC 6901): ``~`` and ``/`` in them are escaped."""
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in segments)


def encode(ops: tuple[Op, ...]) -> bytes:
    """Encode operations as the JSON array that AdmissionReview's ``patch`` carries in base64."""
    return msgspec.json.encode(ops)


def apply(ops: Iterable[Op], document: dict[str, Any]) -> None:
    """Apply operations to a document in place, as the API server would to its own copy.

    Raises:
        KeyError: an operation's parent does not exist.
    """
    for op in ops:
        *parents, member = (
            part.replace("~1", "/").replace("~0", "~") for part in op.path.split("/")[1:]
        )
        target = document
        for parent in parents:
            target = cast("dict[str, Any]", target[parent])
        target[member] = op.value
