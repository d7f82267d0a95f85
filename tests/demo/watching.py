"""Watch a job from its creation until it is over, or until it clearly never will be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
from lightkube import ApiError, AsyncClient, KubeConfig
from lightkube.resources.core_v1 import Pod

from demo import observe
from demo.story import JobStory

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
    pods: dict[str, list[observe.Seen]] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def story(self, *, helped: bool, logs: Mapping[str, observe.Logs] | None = None) -> JobStory:
        """The story so far. A pod made again under the same name counts with its newest self."""
        newest = {seen[-1].object["metadata"]["name"]: seen for seen in self.pods.values()}
        pods = [observe.pod_story(seen, (logs or {}).get(name)) for name, seen in newest.items()]
        now = datetime.now(UTC)
        return observe.job_story(self.job, pods, helped=helped, created=self.created, until=now)


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
    config = KubeConfig.from_file(kubeconfig)
    async with AsyncClient(config, trust_env=False, field_manager="demo") as client:
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
        latest = observe.Seen(datetime.now(UTC), pod.to_dict())
        seen.pods.setdefault(latest.object["metadata"]["uid"], []).append(latest)
        seen.changed.set()


async def _logs(client: AsyncClient, namespace: str, pod: str) -> observe.Logs:
    """Every container's log that can be had: a pod that is gone, or no real one, has none."""
    found: dict[str, list[observe.Line]] = {}
    try:
        spec = (await client.get(Pod, pod, namespace=namespace)).to_dict()["spec"]
        for container in spec["containers"] + spec.get("initContainers", []):
            name = container["name"]
            log = client.log(pod, namespace=namespace, container=name, timestamps=True)
            found[name] = [_line(line) async for line in log if line.strip()]
    except (ApiError, httpx2.HTTPError):
        return found
    return found


def _line(text: str) -> observe.Line:
    stamp, _, words = text.partition(" ")
    return observe.Line(datetime.fromisoformat(stamp), words.rstrip("\n"))
