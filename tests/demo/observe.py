"""Turns the observed versions of Kubernetes objects into a story.

Pure, and the only code here that knows the fields of those objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from demo.story import JobStory, PodStory, Run

PROXY = "istio-proxy"

# pilot-agent logs this when its readiness probe first succeeds, which `pilot-agent wait` awaits.
READY_WORDS = "Envoy proxy is ready"

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Seen:
    """One object as a watch brought it, and when it arrived."""

    at: datetime
    object: Object


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a container's log, with the time the container runtime gave it."""

    at: datetime
    text: str


Logs = Mapping[str, Sequence[Line]]  # by container


def pod_story(seen: Sequence[Seen], logs: Logs | None = None) -> PodStory:
    """Tell one pod's story from everything seen of it, oldest first, and from its containers' logs.

    Raises:
        ValueError: nothing was seen, or the pod has more than one payload container.
    """
    if not seen:
        raise ValueError("pod: nothing was seen of it")
    logs = logs or {}
    pod = seen[-1].object
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    payloads = [c["name"] for c in pod["spec"]["containers"] if c["name"] != PROXY]
    if len(payloads) != 1:
        raise ValueError(
            f"{namespace}/{name}: {len(payloads)} payload containers, the demo tells of one"
        )
    lines = logs.get(payloads[0], ())
    return PodStory(
        namespace=namespace,
        name=name,
        phase=pod.get("status", {}).get("phase", ""),
        payload=_runs(seen, payloads[0], lines),
        proxy=_runs(seen, PROXY, logs.get(PROXY, ())),
        proxy_ready=_ready(seen, logs.get(PROXY, ())),
        first_word=lines[0].at if lines else None,
        native=any(
            container["name"] == PROXY and container.get("restartPolicy") == "Always"
            for container in pod["spec"].get("initContainers") or ()
        ),
    )


def job_story(
    job: Object, pods: Iterable[PodStory], *, helped: bool, created: datetime, until: datetime
) -> JobStory:
    """Tell a job's story from the job as it was last seen and from its pods' stories.

    `created` refines the job's own creation time, which Kubernetes keeps in whole seconds.
    """
    spec = job.get("spec", {})
    replicas = [r.get("replicas", 1) for r in (spec.get("tfReplicaSpecs") or {}).values()]
    conditions = job.get("status", {}).get("conditions") or ()
    return JobStory(
        kind=job["kind"],
        namespace=job["metadata"]["namespace"],
        name=job["metadata"]["name"],
        helped=helped,
        workers=sum(replicas) or spec.get("parallelism", 1),
        created=refine(datetime.fromisoformat(job["metadata"]["creationTimestamp"]), created),
        until=until,
        condition=next((c["type"] for c in reversed(conditions) if c["status"] == "True"), ""),
        pods=tuple(sorted(pods, key=lambda pod: pod.name)),
    )


def refine(second: datetime, hint: datetime | None) -> datetime:
    """The hint where it agrees with the whole second that Kubernetes reports, else that second."""
    if hint is not None and second <= hint < second + timedelta(seconds=1):
        return hint
    return second


def _status(pod: Object, container: str) -> Object | None:
    status = pod.get("status", {})
    # A classic sidecar is a regular container, a native one an init container that stays.
    for field in ("containerStatuses", "initContainerStatuses"):
        for entry in status.get(field) or ():
            if entry["name"] == container:
                return entry
    return None


def _runs(seen: Sequence[Seen], container: str, lines: Sequence[Line]) -> tuple[Run, ...]:
    runs: dict[str, Run] = {}
    for entry in filter(None, (_status(each.object, container) for each in seen)):
        last = (entry.get("lastState") or {}).get("terminated")
        if last and last.get("startedAt"):
            runs[last.get("containerID") or last["startedAt"]] = _ended(last)
        state = entry.get("state") or {}
        if running := state.get("running"):
            runs[entry.get("containerID") or running["startedAt"]] = Run(
                datetime.fromisoformat(running["startedAt"])
            )
        # A container that could not be started has a terminated state without a start.
        elif (ended := state.get("terminated")) and ended.get("startedAt"):
            runs[ended.get("containerID") or ended["startedAt"]] = _ended(ended)
    told = sorted(runs.values(), key=lambda run: run.started)
    if told and lines:
        told[-1] = _refined(told[-1], lines)
    return tuple(told)


def _ended(terminated: Object) -> Run:
    return Run(
        started=datetime.fromisoformat(terminated["startedAt"]),
        finished=datetime.fromisoformat(terminated["finishedAt"]),
        exit_code=terminated["exitCode"],
    )


def _refined(run: Run, lines: Sequence[Line]) -> Run:
    return Run(
        started=refine(run.started, lines[0].at),
        finished=None if run.finished is None else refine(run.finished, lines[-1].at),
        exit_code=run.exit_code,
    )


def _ready(seen: Sequence[Seen], lines: Sequence[Line]) -> datetime | None:
    """When the proxy said that it is ready, else when its status was first seen to say so.

    The kubelet's probe comes up to a second after the fact, so the proxy's own word goes first.
    """
    for line in lines:
        if READY_WORDS in line.text:
            return line.at
    for each in seen:
        entry = _status(each.object, PROXY)
        if entry and entry.get("ready"):
            return each.at
    return None
