"""What the lanes of a timeline show, in seconds since the job was created: no pixels."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

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
