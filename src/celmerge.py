"""Adding hold to the annotation `proxy.istio.io/config` in CEL, which cannot parse YAML.

Only texts of a strict shape are changed: those in which the place for one more key can be told
without parsing. All others are left to the webhook. For the same reason the shapes are regular
expressions that RE2 and Python's `re` read alike: a test compares them, over many texts, with what
the workload makes of these (its `core/proxyconfig.py`), byte by byte.
"""

from __future__ import annotations

import json
from typing import Final

HOLD: Final = "holdApplicationUntilProxyStarts"
HOLD_PROTO: Final = "hold_application_until_proxy_starts"
LINE: Final = f"{HOLD}: true"
FLOW_ENTRY: Final = f'"{HOLD}": true'

# Characters; texts in use have some hundreds. CEL's costs grow with the length. Of an expression
# that costs too much the API server (1.36) makes: under `Ignore`, an unchanged pod, and no call of
# the webhook whose condition it is; under `Fail`, a refused pod.
LIMIT: Final = 4096
# With what is added, a text may grow beyond that.
_SETTLED_LIMIT: Final = LIMIT + 64

# The longest key that YAML takes has 1024 characters. None may be `null`.
_LETTER: Final = "[A-Za-z0-9_.-]"
_KEY: Final = (
    rf"(?:[A-MO-Za-mo-z]|[Nn](?:[A-TV-Za-tv-z0-9_.-]|[Uu]{_LETTER}{{3}})){_LETTER}{{0,99}}"
)
# A backslash or a doubled quote would have to be understood.
_QUOTED: Final = r'"[ !#-\[\]-~]*"|' + r"'[ -&(-~]*'"
# Outside brackets; nothing that begins like `.inf` or `.nan`. A colon before a space would begin a
# mapping, and a `#` after one a comment.
_WORD: Final = r"(?::*[A-Za-z0-9_./,=@%+~()-])+"
_PLAIN: Final = rf"-?[A-Za-z0-9_/](?:{_WORD})?(?: +{_WORD})*"
_SCALAR: Final = rf"(?:{_PLAIN}|{_QUOTED}|\{{\}}|\[\])"
# The end of a line, and all lines after it that are blank or have a comment only.
_SKIP: Final = r"(?: *(?:#[ -~]*)?\n)*"
_END: Final = rf"(?: +#[ -~]*| *)\n{_SKIP}"
# Each level is indented by two spaces; that the levels agree can be told for a few of them only.
_LEAF: Final = rf"{_KEY}:(?: +{_SCALAR})?{_END}"
_ITEMS: Final = rf"(?:    - +{_SCALAR}{_END})+"
_NESTED: Final = (
    rf"(?:  {_KEY}:(?: +{_SCALAR}{_END}|{_END}(?:(?:    {_LEAF})+|{_ITEMS})?))+"
    rf"|(?:  - +{_SCALAR}{_END})+"
)
_ENTRY: Final = rf"{_KEY}:(?: +{_SCALAR}{_END}|{_END}(?:{_NESTED})?)"

# Inside brackets, a plain text ends at more characters.
_FLOW_KEY: Final = rf'(?:{_KEY}: +|"[A-Za-z0-9_./-]{{1,99}}": *)'
_FLOW_SCALAR: Final = rf"(?:-?[A-Za-z0-9_][A-Za-z0-9_./-]*|{_QUOTED})"
_GAP: Final = r"[ \n]*"
_COMMA: Final = rf"{_GAP},{_GAP}"


def _listed(item: str) -> str:
    return rf"(?:{item}(?:{_COMMA}{item})*)?"


_FLAT: Final = (
    rf"(?:{_FLOW_SCALAR}|\{{{_GAP}{_listed(_FLOW_KEY + _FLOW_SCALAR)}{_GAP}\}}"
    rf"|\[{_GAP}{_listed(_FLOW_SCALAR)}{_GAP}\])"
)
_PAIR: Final = rf"{_FLOW_KEY}{_FLAT}"
_EITHER: Final = rf"(?:{HOLD}|{HOLD_PROTO})"
_DECISION: Final = r"(?:true|false)"
# Each has to match the whole of a text; those of block style, of the text and a line's end.
BLOCK: Final = rf"{_SKIP}(?:{_ENTRY})*"
# A line that begins at the left is one of the mapping itself.
BLOCK_SETTLED: Final = rf"(?s:.*\n)?{_EITHER}: +{_DECISION}{_END}(?s:.*)"
FLOW: Final = rf"\{{{_GAP}{_listed(_PAIR)}{_GAP}\}}{_GAP}"
FLOW_EMPTY: Final = rf"\{{{_GAP}\}}{_GAP}"
# First in the mapping, where it is added: further inside, a key may belong to a value.
FLOW_SETTLED: Final = rf'\{{{_GAP}(?:"{_EITHER}": *|{_EITHER}: +){_DECISION}{_GAP}[,}}](?s:.*)'


def merged(text: str) -> str:
    """Return CEL for `text`, CEL for a string, with hold; for the empty string if it is left."""
    mentions = " || ".join(f"{text}.contains({json.dumps(key)})" for key in (HOLD, HOLD_PROTO))
    added = (
        f"({text}.endsWith('\\n') ? {json.dumps(LINE + chr(10))} : {json.dumps(chr(10) + LINE)})"
    )
    gap = f"{text}.startsWith('{{ ') || {text}.startsWith('{{\\n') ? ',' : ', '"
    return (
        f"size({text}) > {LIMIT} ? '' : {text} == '' ? {json.dumps(LINE)} : {mentions} ? '' :"
        f" {_is_block(text, BLOCK)} ? {text} + {added} :"
        f" {_is(text, FLOW)} ? {json.dumps('{' + FLOW_ENTRY)}"
        f" + ({_is(text, FLOW_EMPTY)} ? '' : {gap}) + {text}.substring(1) : ''"
    )


def settled(text: str) -> str:
    """Return CEL for whether `text`, CEL for a string, says true or false to hold for certain."""
    return (
        f"size({text}) <= {_SETTLED_LIMIT} &&"
        f" ({_is_block(text, BLOCK_SETTLED)} && {_is_block(text, BLOCK)}"
        f" || {_is(text, FLOW_SETTLED)} && {_is(text, FLOW)})"
    )


def _is(text: str, pattern: str) -> str:
    # A JSON string is one of CEL too.
    whole = rf"\A(?:{pattern})\z"
    return f"{text}.matches({json.dumps(whole)})"


def _is_block(text: str, pattern: str) -> str:
    return _is(rf"({text} + '\n')", pattern)
