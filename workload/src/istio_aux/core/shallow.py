"""JSON text reduced to what may be read: nothing that is nested too deep, and no managedFields.

Decoders walk values that nobody reads by recursion, and Python bounds that at a depth of 1,000 or
so. The API server takes 10,000 levels (Go encoding/json), and whoever may create a pod can have
them in ``metadata.managedFields[].fieldsV1``. This cuts without recursion, in linear time.
"""

from __future__ import annotations

import re
from collections.abc import Generator

DEEPEST = 64
"""Levels that stay. A list of pods has 13 where we read it."""

MOST = 200_000
"""Brackets and strings in one text; more take tens of milliseconds. A pod of 1.5 MB, the most that
etcd stores, has fewer unless it was made for that."""

_STRETCH = 4096
"""Tokens between two chances for others: less than a millisecond."""

_TOKEN = re.compile(
    rb'[^"\[\]{}]*+(?:("managedFields"\s*+:\s*+\[)|([\[{])|([\]}])|"(?:[^"\\]++|\\.)*+"?|\Z)',
    re.DOTALL,
)


def shallow(body: bytes, *, deepest: int = DEEPEST, most: int = MOST) -> bytes:
    """Replace what is nested deeper than ``deepest`` levels, and managedFields, by ``null``.

    What is no JSON stays none.

    Raises:
        ValueError: there are more than ``most`` brackets and strings.
    """
    work = cutting(body, deepest)
    for _ in range(0, most, _STRETCH):
        try:
            next(work)
        except StopIteration as done:
            return done.value
    raise ValueError(f"it has more than {most} values")


def cutting(body: bytes, deepest: int = DEEPEST) -> Generator[None, None, bytes]:
    """Do the same for a text of any size, with pauses that others may use; returns the result."""
    kept: list[bytes] = []
    depth = start = cut = 0  # ``cut`` is the depth at which the part begins that is left out.
    for number, token in enumerate(_TOKEN.finditer(body), start=1):
        kind = token.lastindex
        if kind == 3:
            if cut and depth == cut:
                cut, start = 0, token.end()
            depth -= 1
        elif kind:
            depth += 1
            if not cut and (kind == 1 or depth > deepest):
                cut = depth
                kept += (body[start : token.end() - 1], b"null")
        if number % _STRETCH == 0:
            yield
    if not cut:
        kept.append(body[start:])
    return b"".join(kept)
