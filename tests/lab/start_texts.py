"""Texts of the annotation `proxy.istio.io/config`, and what they are to be with hold. Data only."""

from __future__ import annotations

from collections.abc import Mapping

from istio_aux.start.proxy_config import HOLD, HOLD_PROTO

LINE = f"{HOLD}: true"

Texts = Mapping[str, tuple[str, str | None]]
"""By name; the second text is the result, None if the text stays."""


def _line(text: str) -> tuple[str, str]:
    """A text, and the same with our line after it."""
    return text, f"{text}{LINE}\n" if text.endswith("\n") else f"{text}\n{LINE}"


def _flow(text: str, comma: str = ", ") -> tuple[str, str]:
    """A flow mapping, and the same with our key in it."""
    return text, f'{{"{HOLD}": true{comma}{text[1:]}'


NESTED = """# ours
concurrency: 2 # two

proxyMetadata:
  AT: 12:30:45
  ON: on
  # a number
  NUMBER: "7"
  QUOTED: 'a # b: c'
tracing:
  zipkin:
    address: zipkin.tracing:9411
  sampling: 10.5
"""

CHANGED: Texts = {
    "empty": ("", LINE),
    "blank": _line("  \n"),
    "a comment only": _line("# nothing yet\n"),
    "one line": _line("concurrency: 2"),
    "a line and its end": _line("statusPort: 15521\n"),
    "blank lines at its end": _line("concurrency: 2\n\n  \n"),
    "a comment at its end": _line("concurrency: 2\n# that is all"),
    "nested, with comments": _line(NESTED),
    "a list": _line("proxyHeaders: {}\nextraStatTags:\n  - one\n  - two\n"),
    "values of every kind": _line("a: null\nb: 2024-01-01\nc: yes\nd: -1\ne:\nf: {}\ng: []\n"),
    "an empty flow mapping": _flow("{}", ""),
    "an empty flow mapping with a gap": _flow("{ }", ""),
    "JSON": _flow('{"concurrency":2,"proxyMetadata":{"A":"b","C":"d"},"e":["f","g"]}'),
    "JSON with gaps": _flow('{ "concurrency": 2 }', ","),
    "a flow mapping": _flow("{concurrency: 2, proxyMetadata: {A: b}}"),
    "JSON in lines": _flow('{\n  "concurrency": 2\n}\n', ","),
    "a block scalar": _line("a: |\n  text\n"),
    "lines that end in CR and LF": ("concurrency: 2\r\n", f"concurrency: 2\r\n{LINE}\r\n"),
    "indented by four": _line("proxyMetadata:\n    A: b\n"),
    "a list that is not indented": _line("extraStatTags:\n- one\n"),
    "all of it indented": ("  concurrency: 2\n", f"  concurrency: 2\n  {LINE}\n"),
    "an anchor": _line("a: &x 1\nb: *x\n"),
    "a tag": _line("a: !!str 1\n"),
    "a document's start": _line("---\nconcurrency: 2\n"),
    "a value on two lines": _line("a: one\n  two\n"),
    "not ASCII": _line("proxyMetadata:\n  A: größer\n"),
    "an escape": _line('a: "\\t"\n'),
    "a quoted key": _line('"concurrency": 2\n'),
    "a tab": _line("concurrency: 2\t\n"),
    "brackets in three levels": _flow("{a: {b: {c: d}}}"),
    "a comment in brackets": _flow("{a: b, # c\n}"),
    "hold in a comment": _line(f"# {HOLD} or not\nconcurrency: 2\n"),
    "hold in a value": _line(f"proxyMetadata:\n  {HOLD}: true\n"),
    "null": ("null", LINE),
}
DECIDED: Texts = {
    "hold already": (LINE, None),
    "an explicit false": (f"{HOLD}: false\n", None),
    "an explicit false, by proto name": (f"concurrency: 2\n{HOLD_PROTO}: false", None),
    "an explicit false, with a comment": (f"{HOLD}: false  # no\nconcurrency: 2\n", None),
    "an explicit false in JSON": (f'{{"{HOLD}":false}}', None),
    "an explicit false in a flow mapping": (f"{{{HOLD_PROTO}: false, concurrency: 2}}", None),
    "an explicit off": (f"{HOLD}: off\n", None),
    "an explicit false between brackets": (f'{{"concurrency": 2, "{HOLD}": false}}', None),
    "an explicit false after an anchor": (f"a: &x 1\n{HOLD}: false\n", None),
}
# Istio refuses a pod with one of these, and its author is told.
REFUSED: Texts = {
    "a list at its root": ("- a\n", None),
    "a scalar": ("off", None),
    "two values in a line": ("a: b: c", None),
    "a mapping that is not closed": ("{a: b", None),
    "hold, quoted": (f'{HOLD}: "true"', None),
    "200 KiB": ("a" * (200 << 10), None),
}
