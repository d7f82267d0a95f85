"""What happened to the pods of a job, as frozen data: watched from its creation until it is over.

Or until it clearly never will be. What turns the observed versions of objects into a story is pure,
and the only code here that knows the fields of those objects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
from lightkube import ApiError, AsyncClient, KubeConfig
from lightkube.resources.core_v1 import Pod


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one container, from its start to its end; `finished` is None while it runs."""

    started: datetime
    finished: datetime | None = None
    exit_code: int | None = None

    @property
    def succeeded(self) -> bool:
        return self.finished is not None and self.exit_code == 0

    @property
    def failed(self) -> bool:
        return self.finished is not None and self.exit_code != 0


@dataclass(frozen=True, slots=True)
class PodStory:
    """One pod: every run of its payload container and of its proxy, oldest first.

    `proxy_ready` is when the proxy itself said so, or when its readiness was first seen.
    `first_word` is the first line that the payload's last run logged: it started no later.
    `native` says whether the proxy is a native sidecar, which the kubelet ends itself.
    """

    namespace: str
    name: str
    phase: str
    payload: tuple[Run, ...] = ()
    proxy: tuple[Run, ...] = ()
    proxy_ready: datetime | None = None
    first_word: datetime | None = None
    native: bool = False

    @property
    def last_try(self) -> Run | None:
        return self.payload[-1] if self.payload else None

    @property
    def failed_tries(self) -> tuple[Run, ...]:
        return tuple(run for run in self.payload if run.failed)

    @property
    def proxy_run(self) -> Run | None:
        """The newest run of the proxy; None when the pod has no sidecar."""
        return self.proxy[-1] if self.proxy else None

    @property
    def hangs(self) -> bool:
        """Whether the payload is over, the proxy is not, and so the pod never ends."""
        payload, proxy = self.last_try, self.proxy_run
        return (
            self.phase == "Running"
            and payload is not None
            and payload.finished is not None
            and proxy is not None
            and proxy.finished is None
        )

    @property
    def result(self) -> str:
        if self.hangs:
            return "hangs"
        return {
            "Succeeded": "succeeded",
            "Failed": "failed",
            "Running": "still running",
            "Pending": "never started",
        }.get(self.phase, f"unknown (phase {self.phase or 'missing'})")


@dataclass(frozen=True, slots=True)
class JobStory:
    """One job in one namespace, with its pods, from its creation until it was looked at last.

    `condition` is the newest condition that is true, such as Running or Succeeded, or empty.
    `helped` says whether istio-aux looks after the namespace.
    """

    kind: str
    namespace: str
    name: str
    helped: bool
    workers: int
    created: datetime
    until: datetime
    condition: str = ""
    pods: tuple[PodStory, ...] = ()

    @property
    def native(self) -> bool:
        return bool(self.pods) and all(pod.native for pod in self.pods)

    @property
    def setting(self) -> str:
        """What tells the job from the others, as a sentence begins."""
        if not self.helped:
            return "without istio-aux"
        return "with istio-aux, native sidecars" if self.native else "with istio-aux"

    @property
    def succeeded(self) -> bool:
        return self.condition in ("Succeeded", "Complete")

    def seconds(self, moment: datetime) -> float:
        return (moment - self.created).total_seconds()


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
    return hint if hint and second <= hint < second + timedelta(seconds=1) else second


def _status(pod: Object, container: str) -> Object | None:
    status = pod.get("status", {})
    # A classic sidecar is a regular container, a native one an init container that stays.
    for statuses in ("containerStatuses", "initContainerStatuses"):
        for entry in status.get(statuses) or ():
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


# Warm, the longest job took 30 s; no machine that can run a cluster is ten times slower.
LIMIT = 300.0

Tell = Callable[[JobStory], None]


def linger(*, helped: bool) -> float:
    """For how many seconds to go on looking at a job whose last payload has ended.

    A quit takes 2 to 3 s, and ten times as long on a machine that is very busy.
    """
    return 25.0 if helped else 8.0


@dataclass
class Sightings:
    """What the watches brought so far; `changed` is set whenever it grows."""

    created: datetime
    job: Mapping[str, Any]
    pods: dict[str, list[Seen]] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def story(self, *, helped: bool, logs: Mapping[str, Logs] | None = None) -> JobStory:
        """The story so far. A pod made again under the same name counts with its newest self."""
        newest = {seen[-1].object["metadata"]["name"]: seen for seen in self.pods.values()}
        pods = [pod_story(seen, (logs or {}).get(name)) for name, seen in newest.items()]
        return job_story(
            self.job, pods, helped=helped, created=self.created, until=datetime.now(UTC)
        )


def watch(kubeconfig: Path, resource: type, job: Any, *, helped: bool, tell: Tell) -> JobStory:
    """Create the job and watch it until it succeeded, or hung for `linger`, or LIMIT passed.

    Args:
        kubeconfig: credentials that may do all of it.
        resource: the lightkube class of the job.
        job: the object to create; its namespace exists.
        helped: whether istio-aux looks after that namespace.
        tell: called with the story whenever something changed.
    """
    return asyncio.run(_watch(kubeconfig, resource, job, helped=helped, tell=tell))


def over(story: JobStory) -> bool:
    """Whether the job and all its pods are done: nothing more will happen."""
    return (
        story.succeeded
        and len(story.pods) >= story.workers
        and all(pod.phase in ("Succeeded", "Failed") for pod in story.pods)
    )


def hanging(story: JobStory) -> bool:
    """Whether every payload came to its end and every pod still runs.

    A payload that failed may be tried again, so it counts only once it ended well.
    """
    return len(story.pods) >= story.workers and all(
        pod.hangs and pod.last_try is not None and pod.last_try.succeeded for pod in story.pods
    )


async def _watch(
    kubeconfig: Path, resource: type, job: Any, *, helped: bool, tell: Tell
) -> JobStory:
    async with AsyncClient(
        KubeConfig.from_file(kubeconfig), trust_env=False, field_manager="demo"
    ) as client:
        created = datetime.now(UTC)
        made = await client.create(job)
        seen = Sightings(created, made.to_dict())
        watches = [
            asyncio.create_task(_jobs(client, resource, made, seen)),
            asyncio.create_task(_pods(client, made.metadata.namespace, seen)),
        ]
        try:
            await _await_end(seen, watches, helped=helped, tell=tell)
        finally:
            for task in watches:
                task.cancel()
            await asyncio.gather(*watches, return_exceptions=True)
        story = seen.story(helped=helped)
        logs = {pod.name: await _logs(client, pod.namespace, pod.name) for pod in story.pods}
        told = seen.story(helped=helped, logs=logs)
    # The logs took a moment; nothing was watched in it.
    return replace(told, until=story.until)


async def _await_end(
    seen: Sightings, watches: list[asyncio.Task[None]], *, helped: bool, tell: Tell
) -> None:
    loop = asyncio.get_running_loop()
    limit, patience, hung_since = loop.time() + LIMIT, linger(helped=helped), None
    while True:
        story = seen.story(helped=helped)
        tell(story)
        now = loop.time()
        hung_since = (hung_since or now) if hanging(story) else None
        if over(story) or now >= limit or (hung_since and now >= hung_since + patience):
            return
        for task in watches:
            if task.done():
                task.result()  # A watch that ended leaves us blind: its error is the result.
        wait = min(limit, hung_since + patience if hung_since else limit) - now
        seen.changed.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(seen.changed.wait(), min(wait, 1.0))


async def _jobs(client: AsyncClient, resource: type, job: Any, seen: Sightings) -> None:
    name, namespace = job.metadata.name, job.metadata.namespace
    async for _, latest in client.watch(
        resource, namespace=namespace, fields={"metadata.name": name}
    ):
        seen.job = latest.to_dict()
        seen.changed.set()


async def _pods(client: AsyncClient, namespace: str, seen: Sightings) -> None:
    async for _, pod in client.watch(Pod, namespace=namespace):
        latest = Seen(datetime.now(UTC), pod.to_dict())
        seen.pods.setdefault(latest.object["metadata"]["uid"], []).append(latest)
        seen.changed.set()


async def _logs(client: AsyncClient, namespace: str, pod: str) -> Logs:
    """Every container's log that can be had: a pod that is gone, or no real one, has none."""
    found: dict[str, list[Line]] = {}
    try:
        spec = (await client.get(Pod, pod, namespace=namespace)).to_dict()["spec"]
        for container in spec["containers"] + spec.get("initContainers", []):
            name = container["name"]
            log = client.log(pod, namespace=namespace, container=name, timestamps=True)
            found[name] = [_line(line) async for line in log if line.strip()]
    except (ApiError, httpx2.HTTPError):
        return found
    return found


def _line(text: str) -> Line:
    stamp, _, words = text.partition(" ")
    return Line(datetime.fromisoformat(stamp), words.rstrip("\n"))
