"""Text for people and JSON lines for programs.

A terminal gets colour, and text that wraps where its columns do. In a pipe or a file the text is
plain, one line a thing.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import NamedTuple, Self, TextIO

import msgspec

from istio_aux.cli.preflight import CheckResult, Verdict, works
from istio_aux.cli.report import Audit, Explanation, Holders, Restarts
from istio_aux.model.answers import MOST
from istio_aux.model.text import printable, printable_json

_GAP = "  "
_NARROWEST = 40  # Columns: text that has fewer beside what is before it goes below that.
_BELOW = 4  # Columns by which it is indented there.
_LEAST = 20  # Columns that it takes even if the line is then too long.


class Style(StrEnum):
    """Select Graphic Rendition parameters (ECMA-48 §8.3.117)."""

    PLAIN = ""
    HEADING = "1"
    FAINT = "2"
    BAD = "31"
    GOOD = "32"
    ODD = "33"
    LOST = "35"


_ACTIONS = {"quit": Style.GOOD, "wait": Style.ODD, "ignore": Style.FAINT, "report": Style.BAD}
_VERDICTS = {
    Verdict.OK: Style.GOOD,
    Verdict.NOTE: Style.ODD,
    Verdict.PROBLEM: Style.BAD,
    Verdict.UNKNOWN: Style.LOST,
}
_STATES = {"stuck": Style.BAD, "blocked": Style.ODD, "lost": Style.LOST, "unmeshed": Style.LOST}


class Cell(NamedTuple):
    """A piece of text and its style."""

    text: str
    style: Style = Style.PLAIN


class Terminal(NamedTuple):
    """What a stream leads to."""

    colour: bool = False
    width: int | None = None  # Columns; None for a pipe, a file, or a terminal that does not tell.

    @classmethod
    def of(cls, stream: TextIO, environ: Mapping[str, str] = os.environ) -> Self:
        """Find out what ``stream`` leads to.

        ``NO_COLOR``, ``FORCE_COLOR`` (no-color.org, force-color.org: an empty value does not count)
        and ``TERM=dumb`` decide on colour, in this order; ``COLUMNS`` overrides the width.
        """
        terminal = stream.isatty()
        coloured = bool(environ.get("FORCE_COLOR")) or (terminal and environ.get("TERM") != "dumb")
        colour = coloured and not environ.get("NO_COLOR")
        return cls(colour, _width(stream, environ) if terminal else None)

    def paint(self, cell: Cell) -> str:
        """The text with its style; control characters are escaped."""
        text = printable(cell.text)
        if not self.colour or not cell.style or not text:
            return text
        return f"\x1b[{cell.style}m{text}\x1b[0m"

    def table(self, rows: Sequence[Sequence[Cell]], *, indent: str = "") -> Iterator[str]:
        """Yield the rows with aligned columns; in a terminal the last cell wraps."""
        columns = zip(*rows, strict=True)
        widths = [max(len(printable(cell.text)) for cell in column) for column in columns]
        for *cells, last in rows:
            padded = (
                self.paint(cell) + " " * (width - len(printable(cell.text)))
                for cell, width in zip(cells, widths, strict=False)
            )
            taken = len(indent) + sum(widths[:-1]) + len(_GAP) * (len(widths) - 1)
            yield from self.beside(indent + "".join(each + _GAP for each in padded), taken, last)

    def beside(self, head: str, taken: int, text: Cell) -> Iterator[str]:
        """Yield a text behind ``head``, which takes so many columns, or below it if that is better.

        Without a width, and without a text, it is one line.
        """
        plain = printable(text.text)
        if self.width is None or taken + len(plain) <= self.width or not plain:
            yield (head + self.paint(text)).rstrip()
            return
        below = self.width - taken < _NARROWEST
        margin = " " * (len(head) - len(head.lstrip()) + _BELOW if below else taken)
        width = max(self.width - len(margin), _LEAST)
        lines = textwrap.wrap(plain, width, break_on_hyphens=False, break_long_words=False)
        if below and head.strip():
            yield head.rstrip()
        for number, line in enumerate(lines):
            before = margin if number or below else head
            yield before + self.paint(Cell(line, text.style))


def show(
    stream: TextIO,
    answer: Explanation | Audit | Holders | Restarts | list[CheckResult],
    output: str,
) -> None:
    """Write one answer to ``stream``: as JSON lines if ``output`` is ``json``, else as text."""
    terminal = Terminal.of(stream)
    match answer:
        case Explanation():
            items, text = [answer], explanation_text(answer, terminal)
        case Audit():
            items, text = answer.findings, audit_text(answer, terminal)
        case Holders():
            items, text = answer.holders, holders_text(answer, terminal)
        case Restarts():
            items, text = answer.verdicts, restarts_text(answer, terminal)
        case _:
            items, text = answer, check_text(answer, terminal)
    if output == "json":
        for item in items:
            write_json(stream, msgspec.json.encode(item))
    else:
        write(stream, "\n".join(text))


def explanation_text(explanation: Explanation, terminal: Terminal) -> Iterator[str]:
    """Yield a headline and a table of the containers, line by line."""
    key = "/".join(filter(None, (explanation.namespace, explanation.name))) or "(unnamed)"
    action = Cell(explanation.action.upper(), _ACTIONS.get(explanation.action, Style.PLAIN))
    yield from terminal.table([[Cell(key, Style.HEADING), action, Cell(explanation.reason)]])
    if explanation.start:
        yield from terminal.beside("  start: ", 9, Cell(explanation.start))
    rows = [
        _row(
            name,
            Cell(verdict.role, Style.PLAIN if verdict.role == "payload" else Style.FAINT),
            Cell("yes", Style.GOOD) if verdict.finished else Cell("no", Style.ODD),
            verdict.why,
        )
        for name, verdict in explanation.containers.items()
    ]
    if rows:
        yield from terminal.table([_header("CONTAINER ROLE FINISHED WHY"), *rows], indent="  ")


def audit_text(audit: Audit, terminal: Terminal, now: datetime | None = None) -> Iterator[str]:
    """Yield a table and a summary; ages count until ``now``."""
    moment = now or datetime.now(UTC)
    rows = [
        _row(each.namespace, each.name, Cell(each.state, _STATES[each.state]),
             age(each.since, moment), each.reason)
        for each in audit.findings
    ]  # fmt: skip
    if rows:
        yield from terminal.table([_header("NAMESPACE NAME STATE AGE REASON"), *rows])
        yield ""
    if held := [*holders_text(audit.holders(), terminal)]:
        yield from (*held, "")
    counted = Counter(finding.state for finding in audit.findings)
    counts = ", ".join(
        terminal.paint(Cell(f"{state}: {counted[state]}", style if counted[state] else Style.PLAIN))
        for state, style in _STATES.items()
    )
    where = "" if audit.namespaces is None else f"selected namespaces: {audit.namespaces}; "
    unknown = f" (unknown: {audit.unknown})" if audit.unknown else ""
    yield f"{where}pods: {audit.pods}; {counts}{unknown}"


def holders_text(holders: Holders, terminal: Terminal) -> Iterator[str]:
    """Yield what each of the first holders holds."""
    listed = holders.holders
    for holder in listed[:MOST]:
        yield from terminal.beside("", 0, Cell(holder.text))
    if len(listed) > MOST:
        yield f"and {len(listed) - MOST} more holders"


def check_text(results: Sequence[CheckResult], terminal: Terminal) -> Iterator[str]:
    """Yield a table, what to do below each line, and a summary."""
    rows = [_header("CHECK RESULT WHAT")]
    for each in results:
        rows.append(_row(each.check, Cell(each.result, _VERDICTS[each.result]), each.what))
        if each.do:
            rows.append(_row("", "", Cell(f"to do: {each.do}", Style.HEADING)))
    yield from terminal.table(rows)
    yield ""
    counts = Counter(each.result for each in results)
    bad = ", ".join(
        f"{it}: {counts[it]}" for it in (Verdict.PROBLEM, Verdict.UNKNOWN) if counts[it]
    )
    fine = "nothing keeps istio-aux from working here"
    yield fine if works(results) else f"istio-aux may not work here; {bad}"


def restarts_text(restarts: Restarts, terminal: Terminal) -> Iterator[str]:
    """Yield a table and a summary."""
    styles = {"kept": Style.ODD}
    rows = [
        _row(each.namespace, each.name, Cell(each.outcome, styles.get(each.outcome, Style.GOOD)),
             each.reason)
        for each in restarts.verdicts
    ]  # fmt: skip
    if rows:
        yield from terminal.table([_header("NAMESPACE NAME OUTCOME REASON"), *rows])
        yield ""
    counts = Counter(verdict.outcome for verdict in restarts.verdicts)
    kinds = ("would-restart", "kept") if restarts.dry_run else ("restarted", "kept")
    yield ", ".join(f"{kind}: {counts[kind]}" for kind in kinds)


def _row(*texts: str | Cell) -> list[Cell]:
    return [text if isinstance(text, Cell) else Cell(text) for text in texts]


def _header(titles: str) -> list[Cell]:
    return [Cell(title, Style.HEADING) for title in titles.split()]


def age(since: datetime | None, now: datetime) -> str:
    """A duration in the largest unit of which it has two, such as 119s, 47h or 2d."""
    if since is None:
        return "unknown"
    seconds = max(0, (now - since) // timedelta(seconds=1))  # Clocks differ a little.
    units = {"d": 86400, "h": 3600, "m": 60, "s": 1}
    unit = next((unit for unit, size in units.items() if seconds >= 2 * size), "s")
    return f"{seconds // units[unit]}{unit}"


def write(stream: TextIO, text: str) -> None:
    """Write a line; a character that the stream's encoding lacks becomes ``?``."""
    stream.buffer.write(text.encode(stream.encoding, "replace") + b"\n")


def write_json(stream: TextIO, line: bytes) -> None:
    """Write a line of JSON, which is UTF-8 whatever the locale; a terminal obeys none of it."""
    stream.buffer.write(printable_json(line) + b"\n")


def complain(text: str) -> None:
    """Write one line to stderr."""
    sys.stderr.write(f"{printable(' '.join(text.split()))}\n")


def _width(stream: TextIO, environ: Mapping[str, str]) -> int | None:
    columns = environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdigit() and int(columns) > 0:
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except OSError:
        return None
