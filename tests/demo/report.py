"""The report: one self-contained HTML page, and its picture alone as SVG.

Turns a chart into coordinates and hands them to the templates; knows no Kubernetes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import jinja2
import msgspec

from demo.chart import Bar, Chart, Group, Kind, chart
from demo.promise import Promise
from demo.story import JobStory

PICTURE = "timeline.svg"

# Pixels at scale 1. The picture scales as a whole, so only proportions matter.
WIDTH = 960
NAMES = 190
NOTES = 170
BAR = 13
LANE = 19
POD = 52
HEAD = 46
SCALE = 26
GAP = 22
LEGEND_ROW = 24


@dataclass(frozen=True, slots=True)
class Shape:
    """One bar in pixels; `mark` when it is too short to be read as a bar."""

    kind: Kind
    x: float
    y: float
    width: float
    open: bool
    mark: bool
    title: str

    @property
    def css(self) -> str:
        """The class of its kind."""
        return self.kind.name.lower()


@dataclass(frozen=True, slots=True)
class Text:
    """Words at a place."""

    x: float
    y: float
    text: str
    css: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One job: its heading, its grid and what is drawn on it."""

    top: float
    grid_top: float
    grid_bottom: float
    title: str
    verdict: str
    good: bool
    texts: tuple[Text, ...]
    shapes: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """The whole drawing, ready for the template."""

    width: int
    height: float
    panels: tuple[Panel, ...]
    ticks: tuple[Text, ...]
    legend: tuple[tuple[Kind, float, float], ...]
    summary: str


@dataclass(frozen=True, slots=True)
class Drawn:
    """All that a picture shows: who has it can draw it again, and see whether it is stale."""

    title: str
    jobs: tuple[JobStory, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """What the page says besides the story: its title, how it was made, what stood in."""

    title: str
    lead: str
    made: Mapping[str, str]
    notes: tuple[str, ...] = ()


def write(folder: Path, jobs: tuple[JobStory, ...], promise: Promise, facts: Facts) -> Path:
    """Write `index.html` and `timeline.svg` into the folder; return the page."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PICTURE).write_text(svg(jobs, facts.title), encoding="utf-8")
    page = folder / "index.html"
    page.write_text(html(jobs, promise, facts), encoding="utf-8")
    return page


def html(jobs: tuple[JobStory, ...], promise: Promise, facts: Facts) -> str:
    """The page, with the picture inside and nothing loaded from elsewhere."""
    return (
        _templates()
        .get_template("report.html.j2")
        .render(
            facts=facts,
            promise=promise,
            picture=picture(chart(jobs), facts.title),
            Kind=Kind,
        )
    )


def svg(jobs: tuple[JobStory, ...], title: str) -> str:
    """The picture alone, light or dark as its viewer prefers, with what it was drawn from."""
    template = _templates().get_template(f"{PICTURE}.j2")
    told = msgspec.json.encode(Drawn(title, jobs)).decode()
    return template.render(picture=picture(chart(jobs), title), told=told, alone=True) + "\n"


def drawn_from(drawing: str) -> Drawn:
    """What a picture was drawn from. Raises ValueError when it does not say."""
    told = ElementTree.fromstring(drawing).findtext("{http://www.w3.org/2000/svg}metadata")
    if told is None:
        raise ValueError("the picture does not say what it was drawn from")
    return msgspec.json.decode(told, type=Drawn)


def picture(chart: Chart, title: str) -> Picture:
    """Place everything in the chart; seconds become pixels here and nowhere else."""
    panels: list[Panel] = []
    top = 0.0
    for group in chart.groups:
        panel = _panel(group, chart, top)
        panels.append(panel)
        top = panel.grid_bottom + SCALE + GAP
    ticks = tuple(Text(_x(chart, tick), 0, f"{tick} s") for tick in chart.ticks)
    legend = _legend(chart, top + 8)
    height = (legend[-1][2] if legend else top) + LEGEND_ROW
    summary = f"{title}. " + " ".join(
        f"{group.title}: {group.verdict}. "
        + " ".join(
            f"{pod.name}: " + ", ".join(f"{lane.label} {lane.note}" for lane in pod.lanes) + "."
            for pod in group.pods
        )
        for group in chart.groups
    )
    return Picture(WIDTH, height, tuple(panels), ticks, legend, summary)


def _templates() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _x(chart: Chart, seconds: float) -> float:
    return round(NAMES + seconds / chart.span * (WIDTH - NAMES - NOTES), 1)


def _panel(group: Group, chart: Chart, top: float) -> Panel:
    texts: list[Text] = []
    shapes: list[Shape] = []
    y = top + HEAD
    for pod in group.pods:
        texts.append(Text(0, y + BAR - 2, pod.name, "pod"))
        for row, lane in enumerate(pod.lanes):
            lane_y = y + row * LANE
            texts.append(Text(NAMES - 12, lane_y + BAR - 2, lane.label, "lane"))
            texts.append(Text(WIDTH - NOTES + 14, lane_y + BAR - 2, lane.note, "note"))
            shapes += [_shape(bar, chart, lane_y, lane.label) for bar in lane.bars]
        y += POD
    bottom = y - (POD - 2 * LANE) + 4
    return Panel(
        top=top,
        grid_top=top + HEAD - 8,
        grid_bottom=bottom,
        title=group.title,
        verdict=group.verdict,
        good=group.good,
        texts=tuple(texts),
        shapes=tuple(shapes),
    )


def _shape(bar: Bar, chart: Chart, y: float, label: str) -> Shape:
    x, end = _x(chart, bar.start), _x(chart, bar.end)
    until = "not over" if bar.open else f"{bar.end:.1f} s"
    return Shape(
        kind=bar.kind,
        x=x,
        y=y,
        width=round(max(2.0, end - x), 1),
        open=bar.open,
        mark=bar.kind is Kind.FAILED,
        title=f"{label}: {bar.kind}, {bar.start:.1f} s to {until}",
    )


def _legend(chart: Chart, top: float) -> tuple[tuple[Kind, float, float], ...]:
    entries: list[tuple[Kind, float, float]] = []
    x, y = 0.0, top
    for kind in chart.kinds:
        # 6.8 px is a generous mean width of a letter at the legend's size, so nothing collides.
        width = 30 + len(kind) * 6.8 + 12
        if x and x + width > WIDTH:
            x, y = 0.0, y + LEGEND_ROW
        entries.append((kind, x, y))
        x += width
    return tuple(entries)
