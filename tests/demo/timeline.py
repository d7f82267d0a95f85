"""The timeline as characters: 100 columns, understood without colour, the same in a pipe."""

from __future__ import annotations

from rich.text import Text

from demo.chart import Bar, Chart, Group, Kind, Lane

WIDTH = 100
NAMES = 32
NOTES = 24
BARS = WIDTH - NAMES - NOTES - 2


# A character and a style for each kind of bar.
MARKS = {
    Kind.FAILED: ("✗", "bold red"),
    Kind.HELD: ("┄", "dim"),
    Kind.WORKING: ("█", "blue"),
    Kind.STARTING: ("░", "dim"),
    Kind.READY: ("▒", "cyan"),
    Kind.IDLE: ("▓", "red"),
}
ONWARD = "▶"


def render(chart: Chart) -> Text:
    """Draw the chart, one line a container, with a scale over each job and a legend below."""
    text = Text(no_wrap=True)
    for group in chart.groups:
        text.append_text(_heading(group))
        text.append(f"{' ' * NAMES}{_scale(chart)}\n", style="dim")
        for pod in group.pods:
            names = [pod.name] + [""] * (len(pod.lanes) - 1)
            for name, lane in zip(names, pod.lanes, strict=True):
                text.append_text(_lane(name, lane, chart))
        text.append("\n")
    legend = [f"{MARKS[kind][0]} {kind}" for kind in chart.kinds] + [f"{ONWARD} not over"]
    for line in _wrapped(legend):
        text.append(f"  {line}\n", style="dim")
    return text


def _heading(group: Group) -> Text:
    heading = Text(group.title, style="bold")
    heading.append(f": {group.verdict}\n", style="green" if group.good else "red")
    return heading


def _column(chart: Chart, seconds: float) -> int:
    return min(BARS - 1, max(0, int(seconds / chart.span * BARS)))


def _scale(chart: Chart) -> str:
    cells = [" "] * BARS
    for tick in chart.ticks:
        label = f"{tick} s"
        at = _column(chart, tick)
        if at + len(label) <= BARS:
            cells[at : at + len(label)] = label
    return "".join(cells)


def _lane(name: str, lane: Lane, chart: Chart) -> Text:
    # A name too long for its column loses its middle: both ends tell pods of one job apart.
    room = NAMES - 16
    if len(name) > room:
        name = f"{name[: room // 2 - 1]}..{name[len(name) - (room - room // 2 - 1) :]}"
    line = Text(f"  {name:<{room}} {lane.label:<12} ")
    cells: list[tuple[str, str]] = [(" ", "")] * BARS
    # Failures last: they are short and must not vanish under what follows them.
    for bar in sorted(lane.bars, key=lambda bar: bar.kind is Kind.FAILED):
        _paint(cells, bar, chart)
    for character, style in cells:
        line.append(character, style=style)
    line.append(f"  {lane.note}\n")
    return line


def _paint(cells: list[tuple[str, str]], bar: Bar, chart: Chart) -> None:
    first = _column(chart, bar.start)
    last = max(first, _column(chart, bar.end) - 1)
    if bar.open:
        last = _column(chart, bar.end)
    for at in range(first, last + 1):
        cells[at] = MARKS[bar.kind]
    if bar.open:
        cells[last] = (ONWARD, MARKS[bar.kind][1])


def _wrapped(entries: list[str]) -> list[str]:
    lines = [""]
    for entry in entries:
        if len(lines[-1]) + len(entry) + 3 > WIDTH - 2:
            lines.append("")
        lines[-1] += ("   " if lines[-1] else "") + entry
    return lines
