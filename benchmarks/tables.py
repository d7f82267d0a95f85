"""Numbers of programs side by side, their goals, and both as tables: data and arithmetic only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

OURS, BEFORE, CONTROLLER = "istio-aux", "istio-aux before", "controller-runtime"
"""The programs: this checkout's, another one's, and what both stand beside."""
MIB = 1 << 20
_COST = re.compile(
    r"^\| ([^|]*, (?:s|ms|µs|MiB)|[^|]* ms,[^|]*) \|.*\((\d+\.\d+)x\) \|(?: [^|]*\|)?$",
    re.MULTILINE,
)


@dataclass
class Measured:
    """What was measured of a program.

    Attributes:
        name: of the program.
        numbers: by the keys of rows; seconds and bytes.
        failed: why a scene could not be measured, by its name.
    """

    name: str
    numbers: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A line of a table.

    ``most``: the goal in the unit of the table; ``beside``: the goal as a part of what the
    controller on controller-runtime has.
    """

    key: str
    what: str
    scale: float = 1
    digits: int = 1
    most: float | None = None
    beside: float | None = None


@dataclass(frozen=True)
class Verdict:
    """A goal, what was measured, and whether that is within it."""

    what: str
    measured: str
    goal: str
    met: bool


Groups = Iterable[tuple[str, Sequence[Row]]]
"""Rows by the title of their table."""


def verdicts(groups: Groups, programs: Sequence[Measured]) -> Iterator[Verdict]:
    """Each goal with what was measured of this checkout's program."""
    numbers = {one.name: one.numbers for one in programs}
    for _, rows in groups:
        for row in rows:
            value = numbers[OURS].get(row.key)
            if row.most is not None:
                yield _verdict(row, value, row.most, "")
            if row.beside is not None:
                other = numbers.get(CONTROLLER, {}).get(row.key)
                most = None if other is None else other * row.scale * row.beside
                yield _verdict(row, value, most, f"{row.beside:g}x: ")


def _verdict(row: Row, value: float | None, most: float | None, beside: str) -> Verdict:
    met = value is not None and most is not None and value * row.scale <= most
    goal = f"≤ {beside}{'not measured' if most is None else f'{most:.{row.digits}f}'}"
    return Verdict(row.what, _shown(row, value), goal, met)


def markdown(
    title: str, on: Mapping[str, str], groups: Groups, programs: Sequence[Measured], made: str = ""
) -> str:
    """All numbers and their goals, side by side; ratios are those to the first program."""
    groups = list(groups)
    parts = [f"# {title}", ", ".join(f"{name} {value}" for name, value in on.items()), made]
    judged = dict[str, list[str]]()
    for verdict in verdicts(groups, programs):
        met = "met" if verdict.met else "**missed**"
        judged.setdefault(verdict.what, []).append(f"{verdict.goal}, {met}")
    for heading, rows in groups:
        have_goals = any(row.what in judged for row in rows)
        head = ("", *(one.name for one in programs), *(["goal"] if have_goals else []))
        lines = [
            (
                row.what,
                *(_beside(row, one, programs[0]) for one in programs),
                *(["; ".join(judged.get(row.what, []))] if have_goals else []),
            )
            for row in rows
            if any(row.key in one.numbers for one in programs)
        ]
        if lines:
            parts += [f"## {heading}", table(head, lines)]
    failed = [f"* {o.name}, {scene}: {why}" for o in programs for scene, why in o.failed.items()]
    parts += ["## Not measured", "\n".join(failed)] if failed else []
    return "\n\n".join(part for part in parts if part)


def goals(found: Iterable[Verdict]) -> str:
    """Goals as a table."""
    lines = [(v.what, v.measured, v.goal, "met" if v.met else "**missed**") for v in found]
    return table(("what", "measured", "goal", ""), lines)


def _beside(row: Row, one: Measured, first: Measured) -> str:
    value, other = one.numbers.get(row.key), first.numbers.get(row.key)
    if one is first or value is None or other is None or other <= 0:
        return _shown(row, value)
    return f"{_shown(row, value)} ({value / other:.2f}x)"


def _shown(row: Row, value: float | None) -> str:
    return "-" if value is None else f"{value * row.scale:.{row.digits}f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, whose first column is text and whose others are numbers."""
    lines = [head, ["---", *("--:" for _ in head[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def compared(kept: str, now: str) -> str:
    """Say which of our costs are a third more, or less, than in the table that was kept.

    Compared are ratios to another program of the run, which a slower machine does not change.
    """
    before, after = _ratios(kept), _ratios(now)
    both = [what for what in after if what in before]
    said = list[str]()
    for what in both:
        worse, better = ("larger", "smaller") if "MiB" in what else ("slower", "faster")
        more, less = after[what] >= before[what] * 4 / 3, before[what] >= after[what] * 4 / 3
        if more != less:
            beside = f"{after[what]:.2f} of {CONTROLLER}'s, {before[what]:.2f} kept"
            said.append(f"* {worse if more else better} by a third: {what}: {beside}")
    head = f"Beside the kept table, {len(both)} costs compared:"
    return "\n".join([head, *(said or ["* as before"])])


def _ratios(text: str) -> dict[str, float]:
    """Ratios of the last program by the line of a table, where less is better."""
    return {found[1]: float(found[2]) for found in _COST.finditer(text)}


def write(folder: Path, name: str, text: str) -> None:
    """Write ``<name>.md`` to the folder, which is made when it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(f"{text}\n")


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest of ``values`` that at least ``percent`` of them do not exceed."""
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(int(rank), 1) - 1]
