"""What is printed while the demo runs: one line a step, with the seconds since the start."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from rich.console import Console

from demo.story import JobStory, PodStory


class Steps:
    """Prints steps as they are done; several threads may."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(width=100, highlight=False)
        self._start = time.monotonic()
        self._lock = threading.Lock()

    def done(self, what: str) -> None:
        with self._lock:
            seconds = time.monotonic() - self._start
            self._console.print(f"{seconds:7.1f} s  {what}", markup=False, soft_wrap=True)


def narrator(steps: Steps) -> Callable[[JobStory], None]:
    """Prints what a story has become since it was last told, however often that is."""
    said = set[tuple[str, str]]()

    def tell(story: JobStory) -> None:
        for about, what, words in _facts(story):
            if (about, what) not in said:
                said.add((about, what))
                steps.done(f"{story.namespace}: {words}")

    return tell


def _facts(story: JobStory) -> Iterator[tuple[str, str, str]]:
    job = f"{story.kind} {story.name}"
    yield job, "created", f"{job} created, {story.workers} workers"
    for pod in story.pods:
        for what, words in _pod_facts(pod):
            yield pod.name, what, f"{pod.name}: {words}"
    if story.succeeded:
        yield job, "succeeded", f"{job} {story.condition}"


def _pod_facts(pod: PodStory) -> Iterator[tuple[str, str]]:
    if pod.failed_tries:
        code = pod.failed_tries[0].exit_code
        early = ", its proxy is not ready yet" if pod.proxy_ready is None else ""
        yield "failed", f"payload fails with exit code {code}{early}"
    if pod.last_try and pod.last_try.succeeded:
        yield "done", "payload done"
    if pod.proxy_run and pod.proxy_run.finished:
        yield "exited", f"proxy exits with {pod.proxy_run.exit_code}"
