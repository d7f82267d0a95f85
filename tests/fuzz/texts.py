"""Random texts of `proxy.istio.io/config`, and damage to any JSON: odd and hostile. Pure."""

from __future__ import annotations

import copy
from itertools import accumulate
from random import Random
from typing import Any

_HOLD = "holdApplicationUntilProxyStarts"
_PROTO = "hold_application_until_proxy_starts"
_BEFORE = ["", "", "", "---\n", "--- ", "# c\n", "\ufeff", "%YAML 1.1\n---\n", "\n\n", "\t", "&r\n"]
_AFTER = ["", "", "\n", "\n...\n", "\n---\na: b", "\n# end", "\n  ", " ", "\r\n", "\n...", "#x"]
_KEYS = [
    "concurrency", "proxyMetadata", _HOLD, _PROTO, f'"{_HOLD}"', "'b'", "? a\n", "[x]", "<<", "*x",
    "&y k", "!!str t", "~", "é", "a b", "- ", '"holdApplication\\u0055ntilProxyStarts"',
]  # fmt: skip
_VALUES = [
    "true", "off", "~", "", '"true"', "12:30:45", "&x 1", "*x", "!!bool true", "{a: b}", "[1, 2]",
    "{a: [b, {c: d}]}", "{}", "|\n  text\n  more", ">-\n  t", "x # c", "'q\n\n  r'", "\n  k: v",
    "\n- s\n- t", ".inf", "text\n  continued", "@x", "`x", "&x [*x]", f"\n  {_HOLD}: false",
    "\x00", "\ud7ff", "💥",
]  # fmt: skip
_HOSTILE = [
    "[" * 9000, "{a: " * 3000, "? " * 8000, "- " * 8000, "a:\n" * 5000, "&a " * 5000, "#" * 16000,
    "a: '" + "x\n" * 7000, "!" * 16000, "a: &x [" + "*x," * 5000, "\n" * 16000, "a: " + "b" * 20000,
    "\n".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9) if n else 'lol'}]" for n in range(40)),
]  # fmt: skip
ODD = [
    None, True, 0, -1, 1.5, 1e300, 10**400, "", "\x00", "\u2028", "💥", "\ud800", "x" * 5000, [],
    {}, [None], {"a": None}, [[[[]]]], {"uid": "other"}, "1e999999999", "9" * 5000,
]  # fmt: skip
"""Values that no field expects."""
JUNK = [
    b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\xef\xbb\xbf", b'"', b"\\", b"{", b"]", b"NaN",
    b"1e999", b"-", b"\\ud800", b"null", b'"uid":7,', b"\n", b"\xc3",
]  # fmt: skip
"""Bytes that damage JSON."""


def make(dice: Random) -> str:
    if dice.random() < 0.02:
        return dice.choice(_HOSTILE)
    if dice.random() < 0.5:
        indent = dice.choice(["", "", "  "])
        text = "\n".join(indent + entry.replace("\n", f"\n{indent}") for entry in _entries(dice))
    else:
        text = "{" + dice.choice([", ", ",", ",\n"]).join(_entries(dice)) + dice.choice("}}}}}]")
    text = dice.choice(_BEFORE) + text + dice.choice(_AFTER)
    return text.replace("\n", "\r\n") if dice.random() < 0.1 else text


def _entries(dice: Random) -> list[str]:
    return [
        f"{dice.choice(_KEYS) if dice.random() < 0.3 else f'k{n}'}: {dice.choice(_VALUES)}"
        for n in range(dice.randint(0, 4))
    ]


def mistype(dice: Random, found: Any, stop: float) -> bool:
    """Replace a value somewhere in ``found`` by an odd one, or remove it; whether it was removed.

    Containers on the way are copied, because templates share them.
    """
    while True:
        key: Any = dice.choice(list(found) if isinstance(found, dict) else range(len(found)))
        if not isinstance(found[key], dict | list) or not found[key] or dice.random() < stop:
            break
        found[key] = found[key].copy()
        found = found[key]
    found[key] = copy.deepcopy(dice.choice(ODD))
    if removed := isinstance(found, dict) and dice.random() < 0.3:
        found.pop(key)
    return removed


def damage(dice: Random, body: bytes) -> bytes:
    """The body with bytes that are missing, changed or repeated."""
    found = bytearray(body)
    at = dice.randrange(len(found) + 1)
    until = at + dice.choice([0, 0, 1, 5, 100, len(found)])
    found[at:until] = dice.choice([b"", dice.choice(JUNK), dice.randbytes(3), found[at:until] * 2])
    return bytes(found)


_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_OTHERS = bytes(code for code in range(256) if code not in _STEPS)


def deepest(body: bytes) -> int:
    """Levels of nesting, or more if texts have brackets; 0 if there cannot be hundreds."""
    brackets = body.translate(None, _OTHERS)
    return max(accumulate(map(_STEPS.__getitem__, brackets))) if len(brackets) > 300 else 0
