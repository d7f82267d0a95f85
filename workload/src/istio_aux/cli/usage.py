"""How `--help` looks: paragraphs and lists of terms fit the terminal, commands stay whole."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

PLUGIN = "kubectl-istio_aux"  # kubectl runs it as `kubectl istio-aux`.
_MOST = 100  # Columns: longer lines are hard to read.
_TERM = re.compile(r"(  \S+ +)(.+)")


def program() -> str:
    """How the user calls this program."""
    return "kubectl istio-aux" if Path(sys.argv[0]).name == PLUGIN else "istio-aux"


class HelpText(argparse.HelpFormatter):
    """Formats the help of a command for a terminal of any width."""

    def __init__(self, prog: str) -> None:
        width = min(shutil.get_terminal_size().columns, _MOST)
        super().__init__(prog, max_help_position=26, width=width)
        self._action_max_length = 20  # argparse forgets how far commands are indented.

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(indent + line for line in filled(text, width - len(indent)))

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrapped(" ".join(text.split()), width)


def filled(text: str, width: int) -> Iterator[str]:
    """Yield the text line by line: paragraphs are filled, and so are the terms of a list.

    A term is indented by two columns, and at least two more stand before what it means. Any other
    line with two columns before it is a command, and stays whole.
    """
    for piece in _pieces(text):
        term = _TERM.fullmatch(piece)
        if term and term[1].endswith("  "):
            yield from wrapped(term[2], width, first=term[1], others=" " * len(term[1]))
        elif piece.startswith("  "):
            yield piece
        else:
            yield from wrapped(piece, width) or [""]


def wrapped(text: str, width: int, *, first: str = "", others: str = "") -> list[str]:
    """The text in lines; names with a hyphen stay whole."""
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=others,
        break_on_hyphens=False, break_long_words=False,
    )  # fmt: skip


def _pieces(text: str) -> list[str]:
    """Return paragraphs, terms, commands and empty lines, each as one line."""
    pieces = [""]
    for line in text.splitlines():
        last = pieces[-1]
        both_of_a_paragraph = last[:1].strip() and line[:1].strip()
        if last and (both_of_a_paragraph or line.startswith("    ")):
            pieces[-1] = f"{last} {line.strip()}"
        else:
            pieces.append(line)
    return pieces[1:]
