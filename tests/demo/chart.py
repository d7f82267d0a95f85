"""What a timeline shows, in seconds since the job was created: no pixels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from demo.story import JobStory, PodStory


class Kind(StrEnum):
    """What a bar stands for; the value is its name in the legend."""

    FAILED = "payload fails"
    HELD = "payload held"
    WORKING = "payload works"
    STARTING = "proxy starting"
    READY = "proxy ready"
    IDLE = "payload finished, proxy runs on"


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of time in a lane; `open` when it had not ended when it was looked at last."""

    kind: Kind
    start: float
    end: float
    open: bool = False


@dataclass(frozen=True, slots=True)
class Lane:
    """One container through time, and how it ended in a few words."""

    label: str
    bars: tuple[Bar, ...]
    note: str


@dataclass(frozen=True, slots=True)
class Group:
    """One job, and the lanes of each of its pods, top to bottom."""

    title: str
    verdict: str
    good: bool
    pods: Mapping[str, tuple[Lane, ...]]


@dataclass(frozen=True, slots=True)
class Chart:
    """All jobs on one scale from 0 to `span` seconds."""

    groups: tuple[Group, ...]
    span: float
    ticks: tuple[int, ...]

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of bar that occur, in the order of the legend."""
        used = {bar.kind for bar in _bars(self.groups)}
        return tuple(kind for kind in Kind if kind in used)


def chart(jobs: tuple[JobStory, ...]) -> Chart:
    """Lay out the jobs on one scale, so that they can be compared."""
    groups = tuple(_group(job) for job in jobs)
    longest = max((job.seconds(job.until) for job in jobs), default=0.0)
    span = max(1.0, longest, *(bar.end for bar in _bars(groups)))
    # At most eight labels fit beside each other.
    step = next((s for s in (1, 2, 5, 10, 20, 60) if span / s <= 8), math.ceil(span / 8))
    return Chart(groups, span, tuple(range(0, math.floor(span) + 1, step)))


def _bars(groups: tuple[Group, ...]) -> Iterator[Bar]:
    return (
        bar
        for group in groups
        for lanes in group.pods.values()
        for lane in lanes
        for bar in lane.bars
    )


def _group(job: JobStory) -> Group:
    # A batch Job has no condition for the time in which it runs.
    state = job.condition.lower() or "running"
    return Group(
        title=job.setting.capitalize(),
        verdict=(
            f"{job.kind} {'' if job.succeeded else 'still '}{state}"
            f" after {job.seconds(job.until):.0f} s"
        ),
        good=job.succeeded,
        pods={pod.name: _lanes(job, pod) for pod in job.pods},
    )


def _lanes(job: JobStory, pod: PodStory) -> tuple[Lane, Lane]:
    return (
        Lane("payload", tuple(_payload_bars(job, pod)), _payload_note(job, pod)),
        Lane("istio-proxy", tuple(_proxy_bars(job, pod)), _proxy_note(job, pod)),
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
