"""Stories told by hand: the same TFJob without and with istio-aux, and ways to change one fact."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from demo.story import JobStory, PodStory, Run

CREATED = datetime(2026, 11, 21, 10, 0, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """A moment so many seconds after the job was created."""
    return CREATED + timedelta(seconds=seconds)


def run(start: float, finish: float | None = None, code: int | None = None) -> Run:
    """A run of a container, in seconds since the job was created."""
    return Run(at(start), None if finish is None else at(finish), code)


def hanging_worker(number: int) -> PodStory:
    """Fails twice before the proxy is ready, works on the third try, and then hangs."""
    return PodStory(
        namespace="without",
        name=f"mnist-worker-{number}",
        phase="Running",
        payload=(run(1.1, 1.2, 1), run(2.3, 2.4, 1), run(13.1, 16.2, 0)),
        proxy=(run(1.2),),
        proxy_ready=at(4.3),
        first_word=at(13.2),
    )


def helped_worker(number: int) -> PodStory:
    """Held until the proxy is ready, works, and ends with its proxy."""
    return PodStory(
        namespace="with",
        name=f"mnist-worker-{number}",
        phase="Succeeded",
        payload=(run(4.2, 7.3, 0),),
        proxy=(run(1.1, 8.2, 0),),
        proxy_ready=at(4.1),
        first_word=at(4.3),
    )


def without() -> JobStory:
    """The job beside Istio alone."""
    pods = (hanging_worker(0), hanging_worker(1))
    return JobStory(
        "TFJob", "without", "mnist", False, 2, CREATED, at(24), condition="Running", pods=pods
    )


def helped() -> JobStory:
    """The job with istio-aux."""
    pods = (helped_worker(0), helped_worker(1))
    return JobStory(
        "TFJob", "with", "mnist", True, 2, CREATED, at(10), condition="Succeeded", pods=pods
    )


def with_pod(job: JobStory, **facts: object) -> JobStory:
    """The job with some facts about its second pod changed."""
    return replace(job, pods=(job.pods[0], replace(job.pods[1], **facts)))
