"""Cut deeply nested values and managedFields out of JSON text.

Decoders recurse also into values that they skip, and Python limits recursion to about 1,000 levels.
The API server accepts 10,000 (Go encoding/json), and anybody who may create a pod can put them into
``metadata.managedFields[].fieldsV1``. This needs no recursion, and linear time.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")

DEEPEST = 64  # Levels that stay. We read 13 of a list of pods.

# Tokens of one text. More takes tens of milliseconds; a pod of 1.5 MB, the most that etcd stores,
# has fewer unless somebody made it for that.
MOST = 200_000

# Tokens, and bytes, between two pauses of `cutting`: a millisecond or two.
_STRETCH, _BYTES = 4096, 64 * 1024

# A token is a bracket with what is before it. To read hundreds of thousands of siblings at once,
# that may be values of up to two levels, of which most of a pod consists. A value is tried three
# times at most; the bounds keep a token below a millisecond.
_FIELDS = rb'"managedFields"\s*+:\s*+\['
_PLAIN = rb'[^"\[\]{}]++|(?!' + _FIELDS + rb')"(?:[^"\\]++|\\.)*+"?+'
_FLAT = rb"[\[{](?:" + _PLAIN + rb"){0,20}+[\]}]"
_VALUE = rb"[\[{](?:" + _PLAIN + rb"|" + _FLAT + rb"){0,20}+[\]}]"
_END = rb"(?:(" + _FIELDS + rb")|([\[{])|([\]}])|)"
_TOKEN = re.compile(rb"(?:" + _PLAIN + rb"){0,100}+" + _END, re.DOTALL)
_LONG_TOKEN = re.compile(rb"(?:" + _PLAIN + rb"|" + _VALUE + rb"){0,100}+" + _END, re.DOTALL)
_LEVELS = 2  # Of values within a long token.


def shallow(body: bytes, *, deepest: int = DEEPEST, most: int = MOST) -> bytes:
    """Replace managedFields, and what is nested more than ``deepest`` levels, with ``null``.

    Raises:
        ValueError: there are more than ``most`` tokens.
    """
    return _finished(_cutting(body, deepest, most))


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
    return _cutting(body, deepest, sys.maxsize)


def _finished(work: Generator[None, None, bytes]) -> bytes:
    while True:
        try:
            next(work)
        except StopIteration as done:
            return done.value


def _cutting(body: bytes, deepest: int, most: int) -> Generator[None, None, bytes]:
    kept: list[bytes] = []
    depth = start = cut = 0  # ``cut`` is the depth at which the part that is left out begins.
    number = position = paused = 0
    while position < len(body):
        # Nothing of a long token is too deep, or all of it is left out.
        pattern = _LONG_TOKEN if cut or depth + _LEVELS <= deepest else _TOKEN
        token = pattern.match(body, position)
        if token is None or token.end() == position:  # The patterns leave no byte out.
            raise ValueError(f"no JSON at byte {position}")
        position, kind, number = token.end(), token.lastindex, number + 1
        if kind == 3:
            if cut and depth == cut:
                cut, start = 0, position
            depth -= 1
        elif kind:
            depth += 1
            if not cut and (kind == 1 or depth > deepest):
                cut = depth
                kept += (body[start : position - 1], b"null")
        if number > most:
            raise ValueError(f"it has more than {most} values")
        if number % _STRETCH == 0 or position - paused > _BYTES:
            paused = position
            yield
    if not cut:
        kept.append(body[start:])
    return b"".join(kept)
