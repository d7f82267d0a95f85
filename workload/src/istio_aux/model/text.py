"""Texts of tenants on their way to people.

A terminal obeys more than the control characters that JSON escapes: C1 controls (U+009B is a CSI),
and marks that reverse or hide text (U+202E). So everything that Unicode does not call printable is
escaped before it reaches a terminal, a log line or an Event.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

_SHOWN = 60  # Characters of a value; an annotation may have 256 KiB.
_LISTED = 20  # Names of a list; a pod may have thousands of containers.


def quoted(value: str) -> str:
    """Quote, escape and shorten a value for a line of text."""
    shown = value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…"
    return printable_json(msgspec.json.encode(shown)).decode()


def listed(names: Collection[str], gap: str = ", ") -> str:
    """Join names; of many, the first ones, and how many more there are."""
    more = len(names) - _LISTED
    if more <= 0:
        return gap.join(names)
    return f"{gap.join([*names][:_LISTED])} and {more} more"


def printable(text: str) -> str:
    """Escape what is not printable, as Python writes it in a string."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_json(body: bytes) -> bytes:
    r"""Escape what is not printable in JSON, as ``\uXXXX``: it means the same."""
    text = body.decode()
    return body if text.isprintable() else "".join(map(_escaped, text)).encode()


def _escaped(char: str) -> str:
    if char.isprintable():
        return char
    units = char.encode("utf-16-be").hex()  # Two for a character beyond U+FFFF.
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
