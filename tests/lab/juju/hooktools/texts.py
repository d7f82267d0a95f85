"""JSON by CPython's own speedups.

The module ``json`` imports ``re``, and that takes as long as the tool itself.
"""

from __future__ import annotations

from _json import encode_basestring_ascii, make_encoder, make_scanner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class _Rules:
    """What ``json.JSONDecoder`` has if nothing else is asked for (Lib/json/decoder.py)."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int, parse_constant = float, int, float


def _refuse(value: object) -> object:
    raise TypeError(f"{value!r} has no JSON")


# typeshed takes the scanner for its own context.
_scan = make_scanner(_Rules)  # pyright: ignore[reportArgumentType]
_encode = make_encoder(None, _refuse, encode_basestring_ascii, None, ": ", ", ", False, False, True)


def loads(text: str) -> Any:
    """Read one JSON value; raises ValueError or StopIteration when there is none."""
    return _scan(text.strip(), 0)[0]


def dumps(value: Any) -> str:
    """Write a JSON value in one line."""
    return "".join(_encode(value, 0))
