"""Cut deeply nested values and managedFields out of JSON text.

Decoders recurse also into values that they skip, and Python limits recursion to about 1,000 levels.
The API server accepts 10,000 (Go encoding/json), and anybody who may create a pod can put them into
``metadata.managedFields[].fieldsV1``. This needs no recursion, and linear time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")

DEEPEST = 64  # Levels that stay. We read 13 of a list of pods.

# Brackets and strings in one text. More takes tens of milliseconds; a pod of 1.5 MB, the most that
# etcd stores, has fewer unless somebody made it for that.
MOST = 200_000

_STRETCH = 4096  # Tokens between two pauses of `cutting`: less than a millisecond.

_TOKEN = re.compile(
    rb'[^"\[\]{}]*+(?:("managedFields"\s*+:\s*+\[)|([\[{])|([\]}])|"(?:[^"\\]++|\\.)*+"?|\Z)',
    re.DOTALL,
)


def shallow(body: bytes, *, deepest: int = DEEPEST, most: int = MOST) -> bytes:
    """Replace managedFields, and what is nested more than ``deepest`` levels, with ``null``.

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


def decoded(decode: Callable[[bytes], T], body: bytes, *, most: int = MOST) -> T:
    """Decode a text; if it is nested too deeply for that, cut it first.

    Raises:
        ValueError: see `shallow`; and what ``decode`` raises.
    """
    try:
        return decode(body)
    except RecursionError:
        return decode(shallow(body, most=most))


def cutting(body: bytes, deepest: int = DEEPEST) -> Generator[None, None, bytes]:
    """Do what `shallow` does for a text of any size, and yield now and then."""
    kept: list[bytes] = []
    depth = start = cut = 0  # ``cut`` is the depth at which the part that is left out begins.
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
