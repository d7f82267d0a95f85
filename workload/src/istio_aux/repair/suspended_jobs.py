"""Suspends Jobs, and resumes each of them when its pods are gone, at the latest at its deadline.

`core.suspension` decides. Nothing is stored but the mark on the Job itself, where the next leader
finds it. One task looks at all suspended Jobs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import datetime

import msgspec

from istio_aux.core import ownership, suspension
from istio_aux.core.jobs import KINDS, FoundJob, Job, api_of
from istio_aux.core.moment import Clock
from istio_aux.core.pod import OwnerReference, Pod
from istio_aux.core.suspension import AwaitPods, Leave, Resume, Suspend, SuspensionLimits, Unmark
from istio_aux.kube import actions
from istio_aux.kube.client import Client
from istio_aux.kube.clock import system_clock
from istio_aux.kube.errors import ApiError, Backoff, KubeError, asked
from istio_aux.kube.objects import Key, key_of
from istio_aux.recorder import RepairRecorder
from istio_aux.telemetry import Telemetry

_log = logging.getLogger(__name__)


class SuspendedJob(msgspec.Struct, frozen=True):
    """A suspended Job, as ``/status`` shows it: since when, and what it waits for."""

    namespace: str
    kind: str
    name: str
    since: datetime
    reason: str


@dataclass(slots=True, eq=False)
class _Suspension:
    """One suspended Job. All times but ``since`` are of the monotonic clock."""

    key: Key
    owner: OwnerReference
    backoff: Backoff
    since: datetime
    began: float  # When this process first saw it.
    gone: float | None = None  # Since when it has no pods.
    next: float = 0.0  # When to look again.
    reason: str = "it was just suspended"
    reported: bool = False  # Whether it was reported that its pods are late.


class SuspendedJobs:
    """Suspends Jobs, and resumes those that are suspended while this process leads."""

    def __init__(
        self,
        client: Client,
        telemetry: Telemetry,
        recorder: RepairRecorder,
        *,
        allowed: bool,
        limits: SuspensionLimits | None = None,
        clock: Clock = system_clock,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        """Start as a follower.

        Jobs are suspended only if that is ``allowed``; suspended ones are resumed in any case.
        ``leads`` is called right before each write: whether this process may still act.
        """
        self._leads = leads
        self._client, self._recorder, self._now = client, recorder, clock
        self._allowed, self._limits = allowed, limits or SuspensionLimits()
        self._jobs: dict[Key, _Suspension] = {}
        self._task: asyncio.Task[None] | None = None
        self._leading = False
        self._stopping = asyncio.Event()
        telemetry.suspended_jobs.set_function(lambda: len(self._jobs))

    def lead(self, leading: bool) -> None:
        """Start to act, or stop that at once."""
        if leading == self._leading or self._stopping.is_set():
            return
        self._leading = leading
        if leading:
            self._task = asyncio.create_task(self._run(), name="suspended Jobs")
        elif self._task:
            self._task.cancel()
            self._jobs.clear()

    async def stop(self, patience: float) -> None:
        """Start nothing more, and give requests ``patience`` seconds; the next leader goes on."""
        self._stopping.set()
        await end_tasks([self._task] if self._task else [], patience)

    def status(self) -> list[SuspendedJob]:
        """The Jobs that are suspended now, the oldest first; only the leader knows any."""
        found = [
            SuspendedJob(key.namespace, job.owner.kind, key.name, job.since, job.reason)
            for key, job in self._jobs.items()
        ]
        return sorted(found, key=lambda job: job.since)

    async def suspend(self, pod: Pod) -> str:
        """Suspend the Job that controls ``pod``, so that all its pods are replaced.

        If that is part of a JobSet or a TrainJob, the one at the top is suspended.

        Returns:
            Why it is not suspended; empty if it is.

        Raises:
            KubeError: it is not known whether it is suspended. If it is, it will be resumed.
        """
        owner = ownership.controller(pod)
        if owner is None or api_of(owner) is None:
            return "its controller cannot be suspended"
        if not self._allowed or not self._acts():
            return "this process may not suspend it"
        namespace = pod.metadata.namespace
        jobs = await actions.read_jobs(self._client, namespace, owner)
        if not jobs:
            return f"its {owner.kind} is gone"
        top = jobs[-1]
        if suspension.is_marked(top.job):
            self._adopt(namespace, top.reference)
            return ""
        why = await self._suspend(namespace, jobs, pod)
        return why and f"its {top.reference.kind} is not suspended: {_short(why)}"

    async def _suspend(self, namespace: str, jobs: Sequence[FoundJob], pod: Pod) -> str:
        decision = suspension.begin(jobs[0].job, pod, self._now().date, above=jobs[1:])
        if isinstance(decision, Leave):
            return decision.reason
        owner, job = jobs[-1].reference, jobs[-1].job
        if why := await self._protected(await self._pods(namespace, owner, job)):
            return why
        if not self._acts():
            return "this process does not lead any more"
        try:
            await self._patch(namespace, owner, job, decision)
        except BaseException as error:
            if isinstance(error, ApiError) and not error.unknown:
                return str(error)
            # Also if this task is cancelled: the request may still be performed.
            self._adopt(namespace, owner)
            raise
        key = self._adopt(namespace, owner)
        self._recorder.job_suspended(key, owner.kind, decision.reason)
        return ""

    async def _pods(self, namespace: str, owner: OwnerReference, job: Job) -> list[Pod]:
        """The Job's pods that it deletes; a pod that cannot be read may be one: `KubeError`."""
        api = KINDS[owner.kind]
        label = f"{api.job_name}={actions.object_name(owner.name)}"
        path = actions.collection("v1", "pods", namespace)
        found = await actions.list_all(self._client, path, Pod, {"labelSelector": label})
        return suspension.own(api, job, found)

    async def _protected(self, pods: list[Pod]) -> str:
        """Why one of the pods may not be disrupted now; empty if each of them may be.

        The operator deletes them whatever a PodDisruptionBudget says. So ask first, by dry runs of
        evictions. They do not say how many pods may be disrupted at a time.
        """
        for pod in pods:
            version = pod.metadata.resource_version
            try:
                await actions.evict(self._client, key_of(pod), version, dry_run=True)
            except ApiError as error:
                if error.code != 404:
                    return f"{pod.metadata.name}: {error}"
        return ""

    async def _patch(
        self, namespace: str, owner: OwnerReference, job: Job, action: Suspend | Resume | Unmark
    ) -> None:
        body = msgspec.json.encode(suspension.patch(KINDS[owner.kind], job, action))
        await actions.patch_job(self._client, namespace, owner, body)

    def _acts(self) -> bool:
        return self._leading and not self._stopping.is_set() and self._leads()

    def _adopt(self, namespace: str, owner: OwnerReference) -> Key:
        """Make sure that a suspended Job is looked at."""
        key = Key(namespace, owner.name, owner.uid)
        if key not in self._jobs and self._acts():
            backoff = Backoff(self._limits.first_retry, self._limits.last_retry)
            now = self._now()
            self._jobs[key] = _Suspension(key, owner, backoff, now.date, now.monotonic)
        return key

    async def _run(self) -> None:
        """Look at all suspended Jobs, and search for others from time to time."""
        backoff = Backoff(self._limits.first_retry, self._limits.last_retry)
        search = 0.0
        while self._acts():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._limits.look):
                    await self._stopping.wait()
                    return
            if self._now().monotonic >= search:
                search = await self._search(backoff) + self._now().monotonic
            now = self._now().monotonic
            due = [job for job in self._jobs.values() if now >= job.next]
            await asyncio.gather(*map(self._look, due))

    async def _search(self, backoff: Backoff) -> float:
        """Find the Jobs that an earlier leader suspended; returns seconds until the next search."""
        try:
            async for namespace, owner in self._marked():
                self._adopt(namespace, owner)
        except KubeError as error:
            # Without `restart-jobs` the permission comes and goes with suspended Jobs.
            usual = not self._allowed and isinstance(error, ApiError) and error.code == 403
            level = logging.DEBUG if usual else logging.WARNING
            _log.log(level, "Jobs: %s", error, extra={"event": "suspended-jobs"})
            return self._limits.search if usual else max(backoff.next(), asked(error))
        except Exception:  # Without the search, a suspended Job might never be resumed.
            self._recorder.unhandled("suspended Jobs")
            return backoff.next()
        backoff.reset()
        return self._limits.search

    async def _marked(self) -> AsyncGenerator[tuple[str, OwnerReference]]:
        """Yield namespace and reference of all marked Jobs, of each kind that is served."""
        # Batch Jobs are served everywhere. Sets come last: an older role may lack the right.
        served = {"batch/v1": {"Job": "jobs"}}
        for name, api in KINDS.items():
            if api.version not in served:
                served[api.version] = await actions.served(self._client, api.version)
            if (plural := served[api.version].get(name)) is None:
                continue
            path = actions.collection(api.version, plural)
            pages = actions.pages(self._client, path, Job, {"labelSelector": suspension.MARK})
            async with aclosing(pages):
                async for page in pages:
                    # A Job that cannot be read is reported when it is looked at.
                    marked = [key_of(job) for job in page.items if suspension.is_marked(job)]
                    for key in (*(found.key for found in page.unreadable), *marked):
                        owner = OwnerReference(
                            api_version=api.version, kind=name, name=key.name, uid=key.uid
                        )
                        yield key.namespace, owner

    async def _look(self, job: _Suspension) -> None:
        """Look at a suspended Job; forget it once it is resumed, or is not ours any more."""
        try:
            if await self._step(job):
                del self._jobs[job.key]
            job.backoff.reset()
        except KubeError as error:
            job.next = self._now().monotonic + max(job.backoff.next(), asked(error))
            why = f"it is still suspended: {_short(str(error))}"
            if why != job.reason:
                self._log(logging.WARNING, "job-not-resumed", job, why)
            job.reason = why
        except Exception:  # One Job's failure must not stop the others.
            job.next = self._now().monotonic + job.backoff.next()
            self._recorder.unhandled(job.key)

    async def _step(self, job: _Suspension) -> bool:
        """Read, decide, and act; returns whether nothing is left to do."""
        namespace, owner = job.key.namespace, job.owner
        found = await actions.read_job(self._client, namespace, owner)
        if found is None:
            self._log(logging.INFO, "job-left", job, "it is gone")
            return True
        left = await self._pods(namespace, owner, found)
        now = self._now()
        job.gone = None if left else job.gone or now.monotonic
        job.since = suspension.since(found, job.since)
        decision = suspension.follow(
            found, left, now=now.date, since=job.since, limits=self._limits,
            waited=now.monotonic - job.began, gone=now.monotonic - (job.gone or now.monotonic),
        )  # fmt: skip
        if not self._acts():
            return False
        match decision:
            case AwaitPods(reason=why):
                job.reason = why
                if not job.reported and now.monotonic >= job.began + self._limits.late:
                    job.reported = True
                    pod = key_of(decision.pod) if decision.pod else None
                    self._recorder.job_still_suspended(job.key, owner.kind, why, pod)
                return False
            case Leave(reason=why):
                self._log(logging.INFO, "job-left", job, why)
            case Unmark(reason=why):
                await self._patch(namespace, owner, found, decision)
                self._log(logging.WARNING, "job-left", job, why)
            case Resume(reason=why, unchanged=unchanged):
                await self._patch(namespace, owner, found, decision)
                self._recorder.job_resumed(job.key, owner.kind, why, unchanged=unchanged)
        return True

    def _log(self, level: int, event: str, job: _Suspension, why: str) -> None:
        self._recorder.job(level, event, job.key, job.owner.kind, why)


async def end_tasks(tasks: Collection[asyncio.Task[None]], patience: float) -> None:
    """Give tasks ``patience`` seconds to end, then cancel them."""
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=patience)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)


def _short(text: str) -> str:
    """An error without its middle, where the API server repeats the whole Job."""
    return text if len(text) <= 300 else f"{text[:100]} ... {text[-150:]}"
