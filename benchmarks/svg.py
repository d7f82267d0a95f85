"""Plots as SVG text: panels with lines on two axes, side by side, and nothing that must be loaded.

Colours suit light and dark pages; lines differ by dash as well, for those who do not see colours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 360, 260
LEFT, RIGHT, TOP, BOTTOM = 52, 24, 46, 40
LETTER = 5.5
"""Pixels, about; no name in the legend may run into the next."""
COLOURS = ("#2f7ed8", "#d9822b", "#4f9d69")
DASHES = ("", "6 3", "2 3")
INK, TARGET = "#808080", "#c23b3b"

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Line:
    """A named line; ``dots`` marks its points, for those that are few."""

    name: str
    points: Points
    dots: bool = False


@dataclass(frozen=True)
class Limit:
    """A target: a line across the panel at ``x`` or at ``y``."""

    name: str
    x: float | None = None
    y: float | None = None


@dataclass(frozen=True)
class Panel:
    """One plot; both axes begin at 0."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    limits: Sequence[Limit] = ()


def document(panels: Sequence[Panel], columns: int = 2) -> str:
    """The panels in rows of ``columns``."""
    rows = math.ceil(len(panels) / columns)
    width, height = WIDTH * columns, HEIGHT * rows
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" font-family="sans-serif" font-size="11" fill="{INK}">'
    )
    parts = [head]
    for number, panel in enumerate(panels):
        x, y = number % columns * WIDTH, number // columns * HEIGHT
        parts += [f'<g transform="translate({x} {y})">', *_panel(panel), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel) -> Iterator[str]:
    xs = [x for line in panel.lines for x, _ in line.points]
    ys = [y for line in panel.lines for _, y in line.points]
    xs += [limit.x for limit in panel.limits if limit.x is not None]
    ys += [limit.y for limit in panel.limits if limit.y is not None]
    across, up = _Axis(max(xs), LEFT, WIDTH - RIGHT), _Axis(max(ys), HEIGHT - BOTTOM, TOP)
    yield f'<text x="{LEFT}" y="16" font-size="13" font-weight="bold">{escape(panel.title)}</text>'
    yield from _axes(panel, across, up)
    for number, limit in enumerate(panel.limits):
        yield from _limit(limit, across, up, lift=14 * number)
    start = LEFT
    for number, line in enumerate(panel.lines):
        colour, dash = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
        path = " ".join(f"{across.at(x):.1f},{up.at(y):.1f}" for x, y in line.points)
        yield (
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"'
            f' stroke-dasharray="{dash}"/>'
        )
        for x, y in line.points if line.dots else ():
            yield f'<circle cx="{across.at(x):.1f}" cy="{up.at(y):.1f}" r="3" fill="{colour}"/>'
        yield (
            f'<line x1="{start}" x2="{start + 20}" y1="29" y2="29" stroke="{colour}"'
            f' stroke-width="1.8" stroke-dasharray="{dash}"/>'
            f'<text x="{start + 25}" y="33">{escape(line.name)}</text>'
        )
        start += 36 + LETTER * len(line.name)


def _axes(panel: Panel, across: _Axis, up: _Axis) -> Iterator[str]:
    base = HEIGHT - BOTTOM
    for value in across.ticks:
        x = across.at(value)
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{base}" y2="{base + 4}" stroke="{INK}"/>'
        yield f'<text x="{x:.1f}" y="{base + 16}" text-anchor="middle">{value:,g}</text>'
    for value in up.ticks:
        y = up.at(value)
        yield (
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{INK}"'
            ' stroke-opacity="0.25"/>'
        )
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:,g}</text>'
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{escape(panel.x_label)}</text>'
    middle = (TOP + base) / 2
    yield (
        f'<text transform="translate(12 {middle}) rotate(-90)" text-anchor="middle">'
        f"{escape(panel.y_label)}</text>"
    )


def _limit(limit: Limit, across: _Axis, up: _Axis, *, lift: float) -> Iterator[str]:
    stroke = f'stroke="{TARGET}" stroke-dasharray="4 4"'
    if limit.x is not None:
        x = across.at(limit.x)
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" {stroke}/>'
        # Beside the line where there is room, and above the name of the limit before.
        left = x > (LEFT + WIDTH) / 2
        at, anchor = (x - 4, "end") if left else (x + 4, "start")
        place = f'x="{at:.1f}" y="{HEIGHT - BOTTOM - 6 - lift}" text-anchor="{anchor}"'
    else:
        y = up.at(limit.y or 0)
        yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" {stroke}/>'
        place = f'x="{WIDTH - RIGHT - 2}" y="{y - 4:.1f}" text-anchor="end"'
    yield f'<text {place} fill="{TARGET}">{escape(limit.name)}</text>'


class _Axis:
    """Values from 0 to the first tick past ``most``, onto pixels."""

    def __init__(self, most: float, start: float, end: float) -> None:
        step = _step(most)
        count = max(1, math.ceil(most / step - 1e-9))
        self.ticks = [number * step for number in range(count + 1)]
        self._start, self._scale = start, (end - start) / self.ticks[-1]

    def at(self, value: float) -> float:
        """Where the value is, in pixels."""
        return self._start + value * self._scale


def _step(most: float) -> float:
    """Of 1, 2 and 5 times a power of ten the smallest that makes at most six ticks."""
    power = 10.0 ** math.floor(math.log10(max(most, 1e-9) / 6))
    return next(factor * power for factor in (1, 2, 5, 10) if most / (factor * power) <= 6)
