"""Writes results as documents: files with tables, verdicts and curves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from benchmarks.numbers import Verdict

POINTS = 150
"""Points of a curve in the plot; more cannot be seen."""


class Judged(Protocol):
    """Results that have targets."""

    def verdicts(self) -> Iterator[Verdict]:
        """Each target with what was measured."""
        ...


def write(folder: Path, name: str, results: Judged, markdown: str, plot: str = "") -> None:
    """Write ``<name>.json``, ``.md`` and, if there is a plot, ``.svg`` to the folder.

    The folder is made when it is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    numbers = {**msgspec.to_builtins(results), "verdicts": list(results.verdicts())}
    text = msgspec.json.format(msgspec.json.encode(_rounded(numbers)), indent=1)
    (folder / f"{name}.json").write_bytes(text + b"\n")
    picture = f"\n![the same as curves]({name}.svg)\n" if plot else ""
    (folder / f"{name}.md").write_text(f"{markdown}\n{picture}")
    if plot:
        (folder / f"{name}.svg").write_text(plot)


def verdicts(results: Judged) -> str:
    """The targets as a table."""
    return table(
        ("what", "measured", "target", ""),
        [
            (v.what, v.measured, v.target, "met" if v.met else "**missed**")
            for v in results.verdicts()
        ],
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, whose first column is text and whose others are numbers."""
    lines = [head, ["---", *("--:" for _ in head[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def curve(values: Iterable[float], of: float | None = None) -> list[tuple[float, float]]:
    """How many of the values are at most x, or what part ``of`` that number."""
    ordered = sorted(max(value, 0.0) for value in values)
    scale = of / len(ordered) if of else 1
    step = max(1, len(ordered) // POINTS)
    chosen = [*range(0, len(ordered) - 1, step), len(ordered) - 1]
    return [(ordered[index], (index + 1) * scale) for index in chosen]


def _rounded(value: object) -> object:
    """The same with numbers of at most six decimals, which is what the clocks are good for."""
    match value:
        case float():
            return round(value, 6)
        case dict():
            return {key: _rounded(item) for key, item in value.items()}
        case list() | tuple():
            return [_rounded(item) for item in value]
        case _:
            return value
