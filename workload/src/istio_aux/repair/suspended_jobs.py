"""Suspends Jobs, and resumes each of them when its pods are gone, at the latest at its deadline.

`repair.suspension` decides. Nothing is stored but the mark on the Job itself, where the next leader
finds it. One task follows each suspended Job, and one task for each kind searches for others: none
waits for an answer about another. `Slots` bounds how many of them send requests at the
same time, and how many of a namespace.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime

import msgspec

from istio_aux.kube import actions
from istio_aux.kube.client import Client
from istio_aux.kube.clock import system_clock
from istio_aux.kube.errors import UNANSWERED, ApiError, Backoff, KubeError, retry_after
from istio_aux.kube.lease import Leadership
from istio_aux.kube.objects import Key, key_of
from istio_aux.model.answers import SuspendedJob
from istio_aux.model.moment import Clock, Moment
from istio_aux.model.owners import KINDS, Job, JobApi
from istio_aux.model.pod import OwnerReference, Pod
from istio_aux.repair import suspension
from istio_aux.repair.candidate import Candidate
from istio_aux.repair.recorder import RepairRecorder
from istio_aux.repair.store import NotRestartedError
from istio_aux.repair.suspension import AwaitPods, Leave, Resume, Suspend, SuspensionLimits, Unmark
from istio_aux.tasks import Slots, end_tasks, wait
from istio_aux.telemetry import Telemetry

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Suspension:
    """One suspended Job."""

    key: Key
    owner: OwnerReference
    backoff: Backoff
    began: Moment  # When this process first saw it.
    allowed: float  # Seconds that it may be suspended, by what is known of its pods.
    least: float
    since: datetime | None = None  # When it was suspended; None until the Job is read.
    gone: float | None = None  # Since when it has no pods; monotonic.
    reason: str = "it was just suspended"
    failures: int = 0  # In a row.
    reported: bool = False  # Whether it was reported that its pods are late.
    marked: bool = False  # Whether it was read with our mark: the request has arrived.
    task: asyncio.Task[None] | None = None

    @property
    def deadline(self) -> float:
        """When it is resumed whatever its pods do, by the monotonic clock.

        Others' clocks decide that only once this process has followed it for ``least`` seconds: by
        a clock that is an hour ahead, a Job that was just suspended would be overdue.
        """
        before = self.began.date - (self.since or self.began.date)
        return self.began.monotonic + max(self.allowed - before.total_seconds(), self.least)


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
        leadership: Leadership,
    ) -> None:
        """Jobs are suspended only if that is ``allowed``; they are resumed in any case."""
        self._client, self._recorder, self._now = client, recorder, clock
        self._leadership = leadership
        self._allowed, self._limits = allowed, limits or SuspensionLimits()
        self._jobs: dict[Key, _Suspension] = {}
        self._slots = Slots(self._limits.at_once, self._limits.usual)
        self._searches: list[asyncio.Task[None]] = []
        self._searched = set[str]()  # Kinds.
        self.unread: dict[str, str] = {}  # Kinds that cannot be listed, and why.
        self._leading = False
        self._stopping = asyncio.Event()
        suspended = telemetry.gauge("suspended_jobs", "Jobs suspended until their pods are gone.")
        suspended.set_function(lambda: len(self._jobs))

    def lead(self, leading: bool) -> None:
        """Start to act, or stop that at once."""
        if leading == self._leading or self._stopping.is_set():
            return
        self._leading = leading
        if leading:
            self._searches = [
                asyncio.create_task(self._search(kind, api), name=f"suspended {kind}s")
                for kind, api in KINDS.items()
            ]
            return
        for task in self._tasks():
            task.cancel()
        self._jobs.clear()
        self._searches.clear()
        self._searched.clear()

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [*self._searches, *(job.task for job in self._jobs.values() if job.task)]

    async def stop(self, patience: float) -> None:
        """Start nothing more, and end what is under way within ``patience`` seconds."""
        self._stopping.set()
        await end_tasks(self._tasks(), patience)

    def status(self) -> list[SuspendedJob]:
        """The Jobs that are suspended now, the oldest first; only the leader knows any."""
        known = [
            SuspendedJob(
                key.namespace, job.owner.kind, key.name, job.since or job.began.date, job.reason
            )
            for key, job in self._jobs.items()
        ]
        return sorted(known, key=lambda job: job.since)

    def over(self, attempts: int) -> bool:
        """Whether all are found (see also `unread`) and `given_up`."""
        return self._searched == {*KINDS} and self.given_up(attempts)

    def given_up(self, attempts: int) -> bool:
        """Whether each Job that is known has failed so many times in a row; also if none is."""
        return all(job.failures >= attempts for job in self._jobs.values())

    async def suspend(
        self,
        namespace: str,
        owner: OwnerReference,
        pod: Candidate,
        why_not: Callable[[], str] = str,
        *,
        meshed: bool = False,
    ) -> Leave | None:
        """Suspend the Job ``owner``, which controls ``pod``, or the set that the Job is part of.

        Returns why it is not suspended; None if it is. ``why_not`` is asked once all is read: the
        pod may have finished meanwhile. ``meshed``: whether another pod of ``owner`` has a sidecar.

        Raises:
            NotRestartedError: the Job cannot be read.
            KubeError: it may be suspended. Then it will be resumed.
        """
        if not self._allowed or not self._acts():
            return Leave("this process may not suspend it", lasts=False)
        try:
            jobs = await actions.read_jobs(self._client, namespace, owner)
        except KubeError as error:
            why = f"its {owner.kind} cannot be read: {error}"
            raise NotRestartedError(why, retry_after(error)) from error
        if not jobs:
            return Leave(f"its {owner.kind} is gone")
        top, job = jobs[-1].reference, jobs[-1].job
        if suspension.is_marked(job):
            self._adopt(namespace, top)
            return None
        now = self._now()
        decision = suspension.begin(jobs, pod, now.date, meshed=meshed)
        if isinstance(decision, Leave):
            why, lasts = decision.reason, decision.lasts
        else:
            left, lasts = await self._left(namespace, top, job), False
            over = any(each.key == pod.key and each.ended for each in left.pods)
            why = f"{pod.key.name} has finished" if over else await self._protected(left)
            why = why or why_not()
            why = why or await self._suspend(namespace, top, job, decision, now.date)
        return Leave(f"its {top.kind} is not suspended: {why}", lasts=lasts) if why else None

    async def _suspend(
        self, namespace: str, owner: OwnerReference, job: Job, decision: Suspend, now: datetime
    ) -> str:
        try:
            if not await self._patch(namespace, owner, job, decision):
                return "this process does not lead any more"
        except BaseException as error:
            if isinstance(error, ApiError) and not error.unknown:
                return str(error)
            # Also if this task is cancelled: the request may still be performed.
            self._adopt(namespace, owner, now)
            raise
        key = self._adopt(namespace, owner, now)
        self._recorder.count("suspended")
        self._recorder.job(logging.INFO, "job-suspended", key, owner.kind, decision.reason)
        return ""

    async def _left(self, namespace: str, owner: OwnerReference, job: Job) -> suspension.PodsLeft:
        """List the Job's own pods; a request that fails must not keep the Job suspended."""
        label = f"{KINDS[owner.kind].job_name}={actions.object_name(owner.name)}"
        pods, unknown = list[Candidate](), ""
        pages = actions.pages(
            self._client, actions.collection("v1", "pods", namespace), Pod,
            {"labelSelector": label}, restarted=pods.clear,
        )  # fmt: skip
        try:
            async with asyncio.timeout(self._limits.answer), aclosing(pages):
                async for page in pages:
                    pods += map(Candidate.sibling, page.items)
                    if page.unreadable:
                        unknown = f"cannot read {page.unreadable[0]}"
        except UNANSWERED as error:
            unknown = str(error) or f"no list of pods within {self._limits.answer:g} s"
        return suspension.PodsLeft(suspension.own(KINDS[owner.kind], job, pods), unknown)

    async def _protected(self, left: suspension.PodsLeft) -> str:
        """Why one of the pods may not be disrupted now; empty if each of them may be.

        The operator deletes them whatever a PodDisruptionBudget says, so evictions are tried in a
        dry run. That does not say how many pods may be disrupted at a time.
        """
        if left.unknown:
            return f"its pods are not known: {left.unknown}"
        for pod in left.pods:
            try:
                await actions.evict(self._client, pod.key, pod.version, dry_run=True)
            except ApiError as error:
                if error.code != 404:
                    return f"{pod.key.name}: {error}"
        return ""

    async def _patch(
        self, namespace: str, owner: OwnerReference, job: Job, action: Suspend | Resume | Unmark
    ) -> bool:
        """Change the Job; returns False, and does nothing, if this process may not any more."""
        body = suspension.patch(KINDS[owner.kind], job, action, self._now().date)
        if not self._acts():
            return False
        await actions.patch_job(self._client, namespace, owner, msgspec.json.encode(body))
        return True

    def _acts(self) -> bool:
        return self._leading and not self._stopping.is_set() and self._leadership.leads()

    def _adopt(self, namespace: str, owner: OwnerReference, since: datetime | None = None) -> Key:
        """Make sure that a suspended Job is followed; ``since`` is known if we suspended it."""
        key = Key(namespace, owner.name, owner.uid)
        if key not in self._jobs and self._leading and not self._stopping.is_set():
            longest = self._limits.longest
            job = _Suspension(key, owner, self._backoff(), self._now(), longest, longest, since)
            self._jobs[key] = job
            job.task = asyncio.create_task(self._follow(job), name=f"suspended {owner.kind} {key}")
        return key

    def _backoff(self) -> Backoff:
        return Backoff(self._limits.first_retry, self._limits.last_retry)

    async def _search(self, kind: str, api: JobApi) -> None:
        """Find the Jobs of a kind that an earlier leader suspended, again and again."""
        backoff = self._backoff()
        pauses = Backoff(self._limits.first_search, self._limits.search)
        while not self._stopping.is_set():
            pause = pauses.next()
            try:
                await self._find(kind, api)
                self._searched.add(kind)
                self.unread.pop(kind, None)
                backoff.reset()
            except KubeError as error:
                # With another race-policy the permission comes and goes with suspended Jobs.
                usual = not self._allowed and isinstance(error, ApiError) and error.code == 403
                level = logging.DEBUG if usual else logging.WARNING
                _log.log(level, "%ss: %s", kind, error, extra={"event": "suspended-jobs"})
                self.unread[kind] = str(error)
                if isinstance(error, ApiError) and error.code in {401, 403}:
                    self._searched.add(kind)
                if not usual:
                    pause = max(backoff.next(), retry_after(error))
            except Exception:  # Without the search, a suspended Job might never be resumed.
                self._recorder.unhandled("suspended Jobs")
                pause = backoff.next()
            await wait(self._stopping, pause)

    async def _find(self, kind: str, api: JobApi) -> None:
        """Adopt all marked Jobs of a kind, if it is served."""
        # Batch Jobs are served everywhere.
        served = (
            {"Job": "jobs"} if kind == "Job" else await actions.served(self._client, api.version)
        )
        if (plural := served.get(kind)) is None:
            return
        adopted = Counter[str]()
        path, labels = actions.collection(api.version, plural), {"labelSelector": suspension.MARK}
        async with aclosing(actions.pages(self._client, path, Job, labels)) as pages:
            async for page in pages:
                # A Job that cannot be read is reported when it is read alone.
                marked = [key_of(job) for job in page.items if suspension.is_marked(job)]
                for key in (*(bad.key for bad in page.unreadable if bad.key.name), *marked):
                    owner = OwnerReference(
                        api_version=api.version, kind=kind, name=key.name, uid=key.uid
                    )
                    adopted[key.namespace] += 1
                    if adopted[key.namespace] <= self._limits.adopted:
                        self._adopt(key.namespace, owner)

    async def _follow(self, job: _Suspension) -> None:
        """Read a suspended Job again and again until it is resumed, or is not ours any more."""
        pause: float | None = self._limits.interval
        while pause is not None:
            # A long pause must not delay what is due at the deadline.
            until = job.deadline - self._now().monotonic
            await wait(self._stopping, min(pause, until) if until > 0 else pause)
            if self._stopping.is_set():
                return
            async with self._slots.take(job.key.namespace, node=""):
                pause = await self._check(job)
        if self._jobs.get(job.key) is job:
            del self._jobs[job.key]

    async def _check(self, job: _Suspension) -> float | None:
        """Reconcile once; returns seconds until the next time, None if nothing is left to do."""
        try:
            pause = await self._reconcile(job)
        except UNANSWERED as error:
            why = str(error) or f"no answer within {self._limits.answer:g} s"
            why = f"it is still suspended: {why}"
            if why != job.reason:
                self._log(logging.WARNING, "job-not-resumed", job, why)
            job.reason = why
            job.failures += 1
            return max(job.backoff.next(), retry_after(error))
        except Exception:  # One Job's failure must not stop the others.
            self._recorder.unhandled(job.key)
            return job.backoff.next()
        job.failures = 0
        return pause

    async def _reconcile(self, job: _Suspension) -> float | None:
        """Read, decide, and act; see `_check`."""
        namespace, owner = job.key.namespace, job.owner
        async with asyncio.timeout(self._limits.answer):
            read = await actions.read_job(self._client, namespace, owner)
        if read is None:
            self._log(logging.INFO, "job-left", job, "it is gone")
            return None
        # Read once: a later change of the annotation, or of a clock, moves no deadline.
        job.since = since = job.since or suspension.since(read, job.began.date)
        left = await self._left(namespace, owner, read)
        if not left.unknown:
            job.allowed = suspension.allowed(left.pods, since, self._limits)
        now = self._now().monotonic
        job.gone = None if left.pods or left.unknown else job.gone or now
        waited, gone = now - job.began.monotonic, now - (job.gone or now)
        job.marked |= suspension.is_marked(read)
        decisions = suspension.follow(
            read, left, waited=waited, gone=gone, overdue=now >= job.deadline, limits=self._limits,
            marked=job.marked,
        )  # fmt: skip
        match decision := next(decisions):
            case AwaitPods(reason=why):
                job.reason = why
                if not job.reported and waited >= self._limits.late:
                    job.reported = True
                    self._recorder.job_still_suspended(job.key, owner.kind, why, decision.pod)
                if left.unknown:
                    return job.backoff.next()
                job.backoff.reset()
                return (
                    self._limits.interval if job.gone else max(self._limits.interval, waited / 10)
                )
            case Leave(reason=why):
                self._log(logging.INFO, "job-left", job, why)
            case Unmark(reason=why) | Resume(reason=why):
                if not await self._patch(namespace, owner, read, decision):
                    return self._limits.interval
                if isinstance(decision, Unmark):
                    self._log(logging.WARNING, "job-left", job, why)
                else:
                    unchanged = decision.unchanged
                    self._recorder.job_resumed(job.key, owner.kind, why, unchanged=unchanged)
        return None

    def _log(self, level: int, event: str, job: _Suspension, why: str) -> None:
        self._recorder.job(level, event, job.key, job.owner.kind, why)
