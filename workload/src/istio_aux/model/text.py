"""Texts of tenants and of other programs on their way to people: every function for that.

A terminal obeys more than the control characters that JSON escapes: C1 controls (U+009B is a CSI),
and marks that reverse or hide text (U+202E). So everything that Unicode does not call printable is
escaped before it reaches a terminal, a log line or an Event.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Sequence
from itertools import chain
from typing import LiteralString, NewType

import msgspec

# What decoders raise on bytes that others chose; msgspec's errors are ValueErrors.
UNDECODABLE = (ValueError, RecursionError)


def one_line(text: str, longest: int = 200) -> str:
    """Join the lines of a text, such as another program's message, and shorten what is longer."""
    return shortened(" ".join(text.split()), longest)


def shortened(text: str, longest: int) -> str:
    """The first ``longest`` characters of a text, and a mark if there are more."""
    return text if len(text) <= longest else f"{text[:longest]}…"


def problem(error: Exception) -> str:
    """The message of an error in one line.

    A YAML error also has the number of the line; an OSError has neither its number nor its path.
    """
    text = (
        getattr(error, "problem", None)
        or getattr(error, "strerror", None)
        or str(error)
        or type(error).__name__
    )
    mark = getattr(error, "problem_mark", None)
    return one_line(str(text)) + (f", line {mark.line + 1}" if mark else "")


def quoted(value: str, longest: int = 60) -> str:
    """Quote, escape and shorten a value for a line of text: an annotation may have 256 KiB."""
    return printable_json(msgspec.json.encode(shortened(value, longest))).decode()


MAY_NOT = "this account may not "
"""What texts about a right that is lacking begin with; the right follows."""


def listed(names: Collection[str], gap: str = ", ", *, most: int = 20) -> str:
    """Join names; of many, the first ones, and how many more there are.

    A pod may have thousands of containers.
    """
    more = len(names) - most
    if more <= 0:
        return gap.join(names)
    return f"{gap.join([*names][:most])} and {more} more"


def alternatives(values: Collection[str]) -> str:
    """Join what is allowed: ``a, b or c``."""
    *others, last = values
    return f"{', '.join(others)} or {last}" if others else last


def with_article(kind: str) -> str:
    """A kind behind ``a`` or ``an``: of abbreviations, such as MPIJob, the letters are named."""
    vowels = "AEFHILMNORSX" if kind[:2].isupper() else "AEIOU"
    return f"{'an' if kind.startswith(tuple(vowels)) else 'a'} {kind}"


def printable(text: str) -> str:
    """Escape what is not printable, as Python writes it in a string."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_json(body: bytes) -> bytes:
    r"""Escape what is not printable in JSON, as ``\uXXXX``: it means the same."""
    text = body.decode()
    if text.isprintable():
        return body
    # For a character, json escapes more than it has to.
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text).encode()


Command = NewType("Command", str)
"""Commands to paste, one a line, or none; `command` alone makes them."""
NO_COMMAND = Command("")


def command(words: LiteralString, *theirs: str | Sequence[str]) -> Command:
    """A command to paste: ``words``, with what others wrote for each ``{}``, quoted for a shell.

    A list is several words. No command is made if a word looks like an option, which may name
    another cluster, or is not one printable line of at most 500 characters: a name has 253 at most,
    and a kind before it.
    """
    given = [(each,) if isinstance(each, str) else each for each in theirs]
    for word in chain.from_iterable(given):
        if not word.isprintable() or not 0 < len(word) <= 500 or word.startswith("-"):
            return NO_COMMAND
    return Command(words.format(*map(shlex.join, given)))


def commands(*of: Command) -> Command:
    """The same commands, one a line."""
    return Command("\n".join(filter(None, of)))
