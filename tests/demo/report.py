"""The timeline as a picture (SVG): its lanes, in seconds since the job was created, as coordinates.

They are handed to the template; nothing here knows Kubernetes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import jinja2
import msgspec

from demo.story import JobStory, PodStory


class Kind(StrEnum):
    """What a bar stands for; the value is its name in the legend."""

    FAILED = "payload fails"
    HELD = "payload held"
    WORKING = "payload works"
    STARTING = "proxy starting"
    READY = "proxy ready"
    IDLE = "payload finished, proxy runs on"


class Bar(NamedTuple):
    """A stretch of time in a lane; `open` when it had not ended when it was looked at last."""

    kind: Kind
    start: float
    end: float
    open: bool = False


class Lane(NamedTuple):
    """One container through time, and how it ended in a few words."""

    label: str
    note: str
    bars: tuple[Bar, ...]


def lanes(job: JobStory, pod: PodStory) -> tuple[Lane, Lane]:
    """The payload of a pod, and its proxy."""
    return (
        Lane("payload", _payload_note(job, pod), tuple(_payload_bars(job, pod))),
        Lane("istio-proxy", _proxy_note(job, pod), tuple(_proxy_bars(job, pod))),
    )


def _payload_bars(job: JobStory, pod: PodStory) -> Iterator[Bar]:
    proxy = pod.proxy_run
    if proxy and pod.payload and pod.proxy_ready and pod.payload[0].started > proxy.started:
        held = job.seconds(proxy.started), job.seconds(pod.payload[0].started)
        if held[1] - held[0] >= 0.5:  # less is the kubelet starting one container after another
            yield Bar(Kind.HELD, *held)
    for run in pod.payload:
        kind = Kind.FAILED if run.failed else Kind.WORKING
        end = run.finished or job.until
        yield Bar(kind, job.seconds(run.started), job.seconds(end), open=run.finished is None)


def _proxy_bars(job: JobStory, pod: PodStory) -> Iterator[Bar]:
    run = pod.proxy_run
    if run is None:
        return
    still = run.finished is None
    end = run.finished or job.until
    ready = min(pod.proxy_ready or end, end)
    payload = pod.last_try
    over = payload.finished if payload and payload.finished else end
    over = min(max(over, ready), end)
    edges = (
        (Kind.STARTING, run.started, ready),
        (Kind.READY, ready, over),
        (Kind.IDLE, over, end),
    )
    for kind, start, stop in edges:
        if stop > start:
            yield Bar(kind, job.seconds(start), job.seconds(stop), open=still and stop == end)


def _payload_note(job: JobStory, pod: PodStory) -> str:
    run, tries = pod.last_try, len(pod.payload)
    if run is None:
        return "never starts"
    if run.finished is None:
        return "still running"
    attempt = f", try {tries}" if tries > 1 else ""
    if run.failed:
        return f"fails with {run.exit_code}{attempt}"
    return f"done at {job.seconds(run.finished):.1f} s{attempt}"


def _proxy_note(job: JobStory, pod: PodStory) -> str:
    run = pod.proxy_run
    if run is None:
        return "no sidecar"
    if run.finished is None:
        return "does not exit" if pod.hangs else "still running"
    return f"exits {run.exit_code} at {job.seconds(run.finished):.1f} s"


# Pixels at scale 1. The picture scales as a whole, so only proportions matter.
WIDTH = 960
NAMES = 190
NOTES = 170
LANE = 19
POD = 52
HEAD = 46
SCALE = 26
GAP = 22
LEGEND_ROW = 24


@dataclass(frozen=True, slots=True)
class Drawn:
    """All that a picture shows: who has it can draw it again, and see whether it is stale."""

    title: str
    jobs: tuple[JobStory, ...]


def svg(jobs: tuple[JobStory, ...], title: str) -> str:
    """The picture, light or dark as its viewer prefers, with what it was drawn from."""
    template = _templates().get_template("timeline.svg.j2")
    told = msgspec.json.encode(Drawn(title, jobs)).decode()
    return template.render(picture=picture(jobs, title), told=told) + "\n"


def drawn_from(drawing: str) -> Drawn:
    """What a picture was drawn from. Raises ValueError when it does not say."""
    told = ElementTree.fromstring(drawing).findtext("{http://www.w3.org/2000/svg}metadata")
    if told is None:
        raise ValueError("the picture does not say what it was drawn from")
    return msgspec.json.decode(told, type=Drawn)


def picture(jobs: tuple[JobStory, ...], title: str) -> dict[str, Any]:
    """Place everything for the template; seconds become pixels here and nowhere else.

    A panel is a job: its title and verdict, its top and bottom, and its lanes.
    """
    told = [(job, {pod.name: lanes(job, pod) for pod in job.pods}) for job in jobs]
    bars = [bar for _, pods in told for pod in pods.values() for lane in pod for bar in lane.bars]
    # All jobs are on one scale, so that they can be compared.
    span = max([1.0, *(job.seconds(job.until) for job in jobs), *(bar.end for bar in bars)])
    panels: list[dict[str, Any]] = []
    summary, top = f"{title}.", 0.0
    for job, pods in told:
        of_pods = [
            {
                "pod": "" if row else name,
                "label": lane.label,
                "note": lane.note,
                "y": (y := top + HEAD + number * POD + row * LANE),
                "shapes": [_shape(bar, span, y, lane.label) for bar in lane.bars],
            }
            for number, (name, pod) in enumerate(pods.items())
            for row, lane in enumerate(pod)
        ]
        bottom = top + HEAD + (len(pods) - 1) * POD + 2 * LANE + 4
        # A batch Job has no condition for the time in which it runs.
        state = f"{'' if job.succeeded else 'still '}{job.condition.lower() or 'running'}"
        verdict = f"{job.kind} {state} after {job.seconds(job.until):.0f} s"
        panel = {"title": job.setting.capitalize(), "verdict": verdict, "good": job.succeeded}
        panels.append({**panel, "top": top, "bottom": bottom, "lanes": of_pods})
        top = bottom + SCALE + GAP
        summary += f" {panel['title']}: {verdict}."
        for name, pod in pods.items():
            summary += f" {name}: {', '.join(f'{lane.label} {lane.note}' for lane in pod)}."
    legend = _legend([kind for kind in Kind if kind in {bar.kind for bar in bars}], top + 8)
    # At most eight labels fit beside each other.
    step = next((s for s in (1, 2, 5, 10, 20, 60) if span / s <= 8), math.ceil(span / 8))
    return {
        "width": WIDTH,
        "height": (legend[-1][2] if legend else top) + LEGEND_ROW,
        "panels": panels,
        "ticks": [(_x(span, tick), f"{tick} s") for tick in range(0, math.floor(span) + 1, step)],
        "legend": legend,
        "summary": summary,
    }


def _templates() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _x(span: float, seconds: float) -> float:
    return round(NAMES + seconds / span * (WIDTH - NAMES - NOTES), 1)


def _shape(bar: Bar, span: float, y: float, label: str) -> dict[str, Any]:
    x, end = _x(span, bar.start), _x(span, bar.end)
    until = "not over" if bar.open else f"{bar.end:.1f} s"
    return {
        "css": bar.kind.name.lower(),
        "x": x,
        "y": y,
        "width": round(max(2.0, end - x), 1),
        "open": bar.open,
        "title": f"{label}: {bar.kind}, {bar.start:.1f} s to {until}",
    }


def _legend(kinds: list[Kind], top: float) -> list[tuple[Kind, float, float]]:
    entries: list[tuple[Kind, float, float]] = []
    x, y = 0.0, top
    for kind in kinds:
        # 6.8 px is a generous mean width of a letter at the legend's size, so nothing collides.
        width = 30 + len(kind) * 6.8 + 12
        if x and x + width > WIDTH:
            x, y = 0.0, y + LEGEND_ROW
        entries.append((kind, x, y))
        x += width
    return entries
