"""Shows answers in the format of ``-o``: as text with colours and tables, for a pipe without them.

It completes the commands in them for pasting.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple, Self

import msgspec

from istio_aux.model import documents
from istio_aux.model.found import Found
from istio_aux.model.moment import in_utc
from istio_aux.model.text import alternatives, printable, printable_json

FORMATS = ("text", "wide", "json", "yaml", "name")
_COMMANDS = {"free", "restart", "change", "run"}  # Fields of objects that are to be pasted.

_GAP = "  "


class Style(StrEnum):
    """Select Graphic Rendition parameters (ECMA-48 §8.3.117)."""

    PLAIN = ""
    HEADING = "1"
    FAINT = "2"
    BAD = "31"
    GOOD = "32"
    ODD = "33"
    LOST = "35"
    COMMAND = "36"  # To be pasted, so it never wraps.


COLOURS = {
    word: style
    for style, words in {
        Style.GOOD: "quit ok yes freed would-free gone ended restarted would-restart",
        Style.ODD: "wait blocked unstarted kept note no",
        Style.BAD: "report stuck problem would-cut-off",
        Style.LOST: "unknown lost unmeshed failed",
        Style.FAINT: "ignore sidecar ignored init",
    }.items()
    for word in words.split()
}
"""How the words of actions, states, outcomes and results look."""

_COLOURED = {"ROLE", "FINISHED", "STATE", "OUTCOME", "RESULT"}
"""The table columns whose words are coloured: in others a name may be the same word."""


class Cell(NamedTuple):
    """A piece of text and its style."""

    text: str
    style: Style = Style.PLAIN


class Terminal(NamedTuple):
    """What stdout leads to."""

    colour: bool = False
    width: int | None = None  # Columns; None for a pipe, a file, or a terminal that does not tell.
    flags: str = ""  # Added to each command to paste, so that it reaches the same cluster.
    wide: bool = False  # Whether columns that are for `-o wide` alone are shown.

    @classmethod
    def stdout(cls) -> Self:
        """Find out what stdout leads to.

        ``NO_COLOR``, ``FORCE_COLOR`` (no-color.org, force-color.org: an empty value does not count)
        and ``TERM=dumb`` decide on colour, in this order; ``COLUMNS`` overrides the width.
        """
        terminal, asked = sys.stdout.isatty(), os.environ.get
        coloured = bool(asked("FORCE_COLOR")) or (terminal and asked("TERM") != "dumb")
        columns = shutil.get_terminal_size((0, 0)).columns if terminal else 0
        return cls(coloured and not asked("NO_COLOR"), columns or None)

    def paint(self, cell: Cell) -> str:
        """The text with its style; control characters are escaped."""
        text = printable(cell.text)
        if not self.colour or not cell.style or not text:
            return text
        return f"\x1b[{cell.style}m{text}\x1b[0m"

    def table(
        self,
        titles: str,
        rows: Iterable[Sequence[str | Cell]],
        *,
        indent: str = "",
    ) -> list[str]:
        """The lines of a table; none without rows. In a terminal the last cell wraps.

        Words of a state or an outcome have their colour. Without titles there is no header.
        """
        columns, lines = titles.split(), list[str]()
        cells = [[*map(_cell, columns or row, row)] for row in rows]
        if cells and columns:
            cells.insert(0, [Cell(title, Style.HEADING) for title in columns])
        widths = [max(map(_width, each)) for each in zip(*cells, strict=True)]
        taken = len(indent) + sum(width + len(_GAP) for width in widths[:-1])
        for *first, last in cells:
            padded = (
                self.paint(cell) + " " * (width - _width(cell)) + _GAP
                for cell, width in zip(first, widths, strict=False)
            )
            lines += self.beside(indent + "".join(padded), taken, last)
        return lines

    def beside(self, head: str, taken: int, text: Cell) -> list[str]:
        """The lines of a text behind ``head``, which takes ``taken`` columns, or below it.

        It is one line if there is no width or no text, and for a command.
        """
        plain = printable(text.text)
        if (
            self.width is None
            or taken + len(plain) <= self.width
            or not plain
            or text.style is Style.COMMAND
        ):
            return [(head + self.paint(text)).rstrip()]
        below = self.width - taken < 40  # Columns: too narrow for sentences.
        margin = len(head) - len(head.lstrip()) + 4 if below else taken
        lines = [
            " " * margin + self.paint(Cell(line, text.style))
            for line in textwrap.wrap(
                plain,
                max(self.width - margin, 20),  # Even if the line is then too long.
                break_on_hyphens=False,
                break_long_words=False,
            )
        ]
        if below:
            return [head.rstrip(), *lines] if head.strip() else lines
        return [head + lines[0][margin:], *lines[1:]]


def _cell(title: str | Cell, text: str | Cell) -> Cell:
    if isinstance(text, Cell):
        return text
    return Cell(text, COLOURS.get(text, Style.PLAIN) if title in _COLOURED else Style.PLAIN)


def age(since: datetime | None, now: datetime) -> str:
    """The time since then, in the largest unit that gives 2 or more: 119s, 47h or 2d."""
    if since is None:
        return "unknown"
    seconds = max(0, (now - since) // timedelta(seconds=1))  # Clocks differ a little.
    units = {"d": 86400, "h": 3600, "m": 60, "s": 1}
    unit = next((unit for unit, size in units.items() if seconds >= 2 * size), "s")
    return f"{seconds // units[unit]}{unit}"


def minute(since: datetime | None) -> str:
    """A time, to the minute."""
    return f"{in_utc(since):%Y-%m-%d %H:%M}Z" if since else "unknown"


def _width(cell: Cell) -> int:
    return len(printable(cell.text))


def read_format(text: str) -> str:
    """What ``-o`` says. Raises ValueError: it is no format."""
    if text not in FORMATS:
        raise ValueError(f"{text}: expected {alternatives(FORMATS)}")
    return text


def read_unnamed(text: str) -> str:
    """What ``-o`` says for a command whose results have no names."""
    if text == "name":
        raise ValueError("name: what this command shows has no names")
    return read_format(text)


class Output(msgspec.Struct, frozen=True):
    """How an answer is shown; ``flags`` make each command in it reach the same cluster."""

    format: str = "text"
    flags: str = ""

    @classmethod
    def reached_by(cls, format_: str, **flags: object) -> Self:
        """Use a format, and add to each command those of ``flags`` that the user gave."""
        given = [f" --{name} {shlex.quote(str(value))}" for name, value in flags.items() if value]
        return cls(format_, "".join(given))

    def show(
        self, items: Sequence[msgspec.Struct], text: Callable[..., str], **facts: object
    ) -> None:
        """Print the items of an answer.

        ``text`` makes text of the items, the `Terminal` of stdout and the ``facts``.
        """
        match self.format:
            case "json":
                shown = b"".join(
                    printable_json(msgspec.json.encode(self._told(item))) + b"\n" for item in items
                )
            case "yaml":
                shown = documents.to_yaml(
                    {"items": msgspec.to_builtins([*map(self._told, items)])}
                ).encode()
            case "name":
                names = filter(None, (getattr(item, "name", "") for item in items))
                shown = "".join(f"pod/{printable(name)}\n" for name in names).encode()
            case _:
                terminal = Terminal.stdout()._replace(flags=self.flags)
                if self.format == "wide":
                    terminal = terminal._replace(width=None, wide=True)
                    # Without its owner each pod has a row of its own.
                    items = [
                        msgspec.structs.replace(item, owner="") if hasattr(item, "owner") else item
                        for item in items
                    ]
                lines = text(items, terminal, **facts)
                shown = f"{lines}\n".encode(sys.stdout.encoding, "replace") if lines else b""
        sys.stdout.buffer.write(shown)

    def _told(self, item: msgspec.Struct) -> dict[str, object]:
        told: dict[str, object] = msgspec.to_builtins(
            msgspec.structs.asdict(item) if type(item) is Found else item
        )
        for name in _COMMANDS & told.keys():
            told[name] = "\n".join(line + self.flags for line in str(told[name]).splitlines())
        return told
