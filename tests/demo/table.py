"""The table of pods and times: the same rows for the terminal and for the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from rich import box
from rich.table import Table

from demo.story import JobStory, PodStory, Run

HEADINGS = ("pod", "payload started", "payload finished", "proxy ready", "proxy exited", "result")


@dataclass(frozen=True, slots=True)
class Row:
    """One pod in words, in the order of HEADINGS."""

    pod: str
    payload_started: str
    payload_finished: str
    proxy_ready: str
    proxy_exited: str
    result: str
    good: bool

    @property
    def cells(self) -> tuple[str, ...]:
        """The words, one for each heading."""
        return (
            self.pod,
            self.payload_started,
            self.payload_finished,
            self.proxy_ready,
            self.proxy_exited,
            self.result,
        )


def rows(job: JobStory) -> tuple[Row, ...]:
    """One row a pod; times in seconds since the job was created."""
    return tuple(_row(job, pod) for pod in job.pods)


def render(jobs: tuple[JobStory, ...]) -> Table:
    """All jobs in one table, a section each."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in HEADINGS:
        table.add_column(heading.replace(" ", "\n"), no_wrap=True)
    for job in jobs:
        for row in rows(job):
            style = "green" if row.good else "red"
            table.add_row(*row.cells[:-1], f"[{style}]{row.result}[/]")
        table.add_section()
    return table


def _row(job: JobStory, pod: PodStory) -> Row:
    def at(moment: datetime | None) -> str:
        return "-" if moment is None else f"{job.seconds(moment):.1f} s"

    payload, proxy = pod.last_try, pod.proxy_run
    tries = len(pod.payload)
    again = f", try {tries}" if tries > 1 else ""
    return Row(
        pod=f"{pod.namespace}/{pod.name}",
        payload_started=(at(payload.started) if payload else "never") + again,
        payload_finished=_finished(payload, at),
        proxy_ready=at(pod.proxy_ready) if proxy else "no sidecar",
        proxy_exited=_finished(proxy, at),
        result=pod.result,
        good=pod.phase == "Succeeded",
    )


def _finished(run: Run | None, at: Callable[[datetime | None], str]) -> str:
    if run is None:
        return "-"
    return "no" if run.finished is None else f"{at(run.finished)}, exit {run.exit_code}"
