"""The one way from an annotation or a label to a decision.

Anybody who may create a pod writes these texts, and one of them may have 256 KiB, or 2 MB before
the API server has looked at it. So each key is declared once, with its type and its longest text;
types that are lists have a number of entries. A text beyond that is a bad value like any other, and
nothing of it is read.

Selectors match labels as the API server does, by whole values, and need no key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Generic, TypeVar

from istio_aux.core.pod import Metadata
from istio_aux.core.text import quoted

T = TypeVar("T")
Source = Metadata | Mapping[str, str]

NAME = 63  # Characters of the longest value of a label, and name of a container.
MOST_NAMES = 100  # In a list of containers.
NAMES = MOST_NAMES * (NAME + 2)  # Characters of such a list.


class BadValueError(ValueError):
    """A value that cannot be used: its key, the value, and what is allowed, in one line."""


class _Key(Generic[T]):
    _where = ""

    def __init__(self, name: str, read: Callable[[str], T], expected: str, *, longest: int) -> None:
        """Declare a key.

        Args:
            name: of the key.
            read: makes a value of a text, or raises ValueError or LookupError.
            expected: what is allowed, for the author.
            longest: the most characters that are given to ``read``.
        """
        self.name, self.longest = name, longest
        self._read, self._expected = read, expected

    def on(self, source: Source) -> bool:
        """Whether it is there, with whatever value."""
        return self.name in self._texts(source)

    def of(self, source: Source) -> T | None:
        """Read the value; None if it is absent.

        Raises:
            BadValueError: the value cannot be used.
        """
        text = self._texts(source).get(self.name)
        if text is None:
            return None
        long = ""
        if len(text) <= self.longest:
            with suppress(ValueError, LookupError):
                return self._read(text)
        else:
            long = f"; it has {len(text)} characters, not at most {self.longest}"
        raise BadValueError(f"{self.shown(source)}: expected {self._expected}{long}")

    def get(self, source: Source) -> T | None:
        """Read the value; None if it is absent or cannot be used."""
        try:
            return self.of(source)
        except BadValueError:
            return None

    def shown(self, source: Source) -> str:
        """``annotation KEY: "value"``, shortened, for people."""
        return f"{self._where} {self.name}: {quoted(self._texts(source).get(self.name, ''))}"

    def _texts(self, source: Source) -> Mapping[str, str]:
        raise NotImplementedError


class Annotation(_Key[T]):
    """An annotation that decides something."""

    _where = "annotation"

    def _texts(self, source: Source) -> Mapping[str, str]:
        return (source.annotations or {}) if isinstance(source, Metadata) else source


class Label(_Key[T]):
    """A label whose value decides something."""

    _where = "label"

    def _texts(self, source: Source) -> Mapping[str, str]:
        return (source.labels or {}) if isinstance(source, Metadata) else source


def mark(name: str) -> Annotation[str]:
    """Declare an annotation whose presence decides; its value is never read."""
    return Annotation(name, str, "anything", longest=0)


def text_label(name: str) -> Label[str]:
    """Declare a label that is compared as a whole."""
    return Label(name, str, f"at most {NAME} characters", longest=NAME)


def names(text: str) -> frozenset[str]:
    """Read names separated by commas; `ValueError` if they are more than `MOST_NAMES`."""
    found = text.split(",", MOST_NAMES)
    if len(found) > MOST_NAMES:
        raise ValueError
    return frozenset(filter(None, map(str.strip, found)))


def label_with(prefix: str, *sources: Metadata) -> str:
    """The first label whose key begins with ``prefix``, or empty."""
    keys = (key for source in sources for key in source.labels or {})
    return next((key for key in keys if key.startswith(prefix)), "")
