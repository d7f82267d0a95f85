"""What a person's terminal is given that a pipe is not: colour, a fitting width, progress.

Only the looks may live here, no knowledge of pods. In a pipe or a file the text is plain and whole,
so that other programs can read it.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from types import TracebackType
from typing import NamedTuple, Self, TextIO

_GAP = "  "
_NARROWEST = 20
"""Columns that the last cell of a fitted table keeps, even if the line is then too long."""


class Style(StrEnum):
    """Select Graphic Rendition parameters (ECMA-48 §8.3.117), by what they say to a person."""

    PLAIN = ""
    HEADING = "1"
    FAINT = "2"
    BAD = "31"
    GOOD = "32"
    ODD = "33"
    LOST = "35"


class Cell(NamedTuple):
    """A piece of text and its looks."""

    text: str
    style: Style = Style.PLAIN


class Terminal(NamedTuple):
    """What is known of where text goes.

    Attributes:
        interactive: a terminal that obeys control sequences; a line may be written over.
        colour: whether styles are shown.
        width: columns, or None when it is no terminal or does not say.
    """

    interactive: bool = False
    colour: bool = False
    width: int | None = None

    def paint(self, cell: Cell) -> str:
        """The text, styled if this terminal shows styles; control characters are escaped."""
        text = printable(cell.text)
        if not self.colour or not cell.style or not text:
            return text
        return f"\x1b[{cell.style}m{text}\x1b[0m"

    def table(
        self, rows: Sequence[Sequence[Cell]], *, indent: str = "", fit: bool = False
    ) -> Iterator[str]:
        """Yield a line for each row, columns aligned; with ``fit`` the last is cut to the width."""
        columns = zip(*rows, strict=True)
        widths = [max(columns_of(printable(cell.text)) for cell in column) for column in columns]
        taken = len(indent) + sum(widths[:-1]) + len(_GAP) * (len(widths) - 1)
        for *cells, last in rows:
            if fit and self.width is not None:
                room = max(self.width - taken, _NARROWEST)
                last = Cell(clipped(printable(last.text), room), last.style)  # noqa: PLW2901
            padded = (
                self.paint(cell) + " " * (width - columns_of(printable(cell.text)))
                for cell, width in zip(cells, widths, strict=False)
            )
            yield (indent + _GAP.join((*padded, self.paint(last)))).rstrip()


def of(stream: TextIO, environ: Mapping[str, str] = os.environ) -> Terminal:
    """Find out what ``stream`` leads to.

    Colour is shown in a terminal unless ``TERM`` is ``dumb``; ``FORCE_COLOR`` asks for it anywhere
    and ``NO_COLOR``, which wins, for none (force-color.org, no-color.org: any value but an empty
    one counts). ``COLUMNS`` wins over the width that the terminal tells.
    """
    terminal = stream.isatty()
    interactive = terminal and environ.get("TERM") != "dumb"
    colour = not environ.get("NO_COLOR") and (bool(environ.get("FORCE_COLOR")) or interactive)
    return Terminal(interactive, colour, _width(stream, environ) if terminal else None)


def write(stream: TextIO, text: str) -> None:
    """Write a line; what the stream's encoding lacks becomes ``?``, never an error."""
    write_bytes(stream, text.encode(stream.encoding, "replace"))


def write_bytes(stream: TextIO, line: bytes) -> None:
    """Write a line of bytes as it is: JSON is UTF-8 whatever the locale."""
    stream.buffer.write(line + b"\n")


def printable(text: str) -> str:
    """Escape what would move a cursor: annotations of strangers reach our reasons."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def columns_of(text: str) -> int:
    """How many columns a terminal needs for ``text`` (Unicode Standard Annex 11)."""
    return sum(map(_columns, text))


def clipped(text: str, width: int) -> str:
    """The text, or as much of it as fits into ``width`` columns with an ellipsis."""
    if columns_of(text) <= width:
        return text
    kept, used = "", 0
    for character in text:
        used += _columns(character)
        if used > width - 1:
            break
        kept += character
    return kept.rstrip() + "…"


class Progress:
    """One line that is written over again and again, and gone at the end of the ``with``.

    A class because it remembers whether there is something to wipe. Silent in a pipe.
    """

    def __init__(self, stream: TextIO, terminal: Terminal) -> None:
        self._stream, self._terminal = stream, terminal
        self._shown = False

    def __enter__(self) -> Self:
        """Show nothing yet."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wipe the line, whatever happened."""
        if self._shown:
            self._put("")

    def show(self, text: str) -> None:
        """Replace the line."""
        if self._terminal.interactive:
            width = self._terminal.width
            # A line that wraps could not be wiped; the last column is left free for the same.
            self._put(clipped(text, width - 1) if width else text)
            self._shown = True

    def _put(self, text: str) -> None:
        # The cursor stays at the line's beginning, where a line of the log may overwrite it.
        self._stream.write(f"\x1b[2K{text}\r")
        self._stream.flush()


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _width(stream: TextIO, environ: Mapping[str, str]) -> int | None:
    said = environ.get("COLUMNS", "")
    if said.isascii() and said.isdigit() and int(said) > 0:
        return int(said)
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except OSError:
        return None
