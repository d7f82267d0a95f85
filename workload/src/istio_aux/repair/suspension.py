"""Suspend Jobs, and resume each of them when its pods are gone, or at the latest when it must be.

Only the effects may live here; `core.suspension` decides. Nothing is stored but the mark on the Job
itself: the next leader finds it there. Each Job that is suspended has one task.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from istio_aux.core import ownership, suspension
from istio_aux.core.pod import Pod
from istio_aux.core.suspension import Job, Leave, Patience, Release, Resume, Wait
from istio_aux.kube.backoff import Backoff
from istio_aux.kube.client import Client
from istio_aux.kube.errors import ApiError, KubeError, asked
from istio_aux.kube.events import Events
from istio_aux.kube.resources import Key as ObjectKey
from istio_aux.kube.resources import key_of
from istio_aux.repair.findings import Suspended
from istio_aux.repair.trainingjobs import Key, TrainingJobs
from istio_aux.telemetry import Telemetry

_log = logging.getLogger(__name__)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds in seconds."""

    patience: Patience = Patience()
    look: float = 1.0
    """Between two looks at a suspended Job."""
    late: float = 120.0
    """After which pods that are still there are told of: most have 30 s to end."""
    first_retry: float = 1.0
    last_retry: float = 30.0
    search: float = 600.0
    """Between two searches for suspended Jobs that nobody looks after: a request that was given up
    for lost may have come late."""


class Begun(msgspec.Struct, frozen=True):
    """The Job is suspended, and will be resumed."""

    reason: str


class Refused(msgspec.Struct, frozen=True):
    """The Job was left as it is."""

    reason: str


@dataclass(slots=True)
class _Case:
    """One suspended Job; it was first ``seen`` when the monotonic clock said ``begun``."""

    key: Key
    seen: datetime
    since: datetime
    begun: float
    reason: str = "it was just suspended"
    gone: float | None = None
    told: bool = False
    task: asyncio.Task[None] | None = None


class Suspensions:
    """All Jobs that are suspended for the sake of their pods; see the module."""

    def __init__(
        self,
        client: Client,
        telemetry: Telemetry,
        events: Events,
        *,
        allowed: bool,
        limits: Limits | None = None,
    ) -> None:
        """Prepare; nothing happens before `lead`.

        Args:
            client: an open client.
            telemetry: where to count.
            events: where to tell the owners of pods.
            allowed: whether Jobs may be suspended. Jobs that are will be resumed anyway.
            limits: bounds in time.
        """
        self._jobs, self._telemetry, self._events = TrainingJobs(client), telemetry, events
        self._allowed, self._limits = allowed, limits or Limits()
        self._cases: dict[Key, _Case] = {}
        self._finder: asyncio.Task[None] | None = None
        self._leading = False
        self._stopping = asyncio.Event()
        telemetry.suspended_jobs.set_function(lambda: len(self._cases))

    def lead(self, leading: bool) -> None:
        """Become the one that acts, or be so no longer: then nothing more is done."""
        if leading == self._leading or self._stopping.is_set():
            return
        self._leading = leading
        if leading:
            self._finder = asyncio.create_task(self._find(), name="find suspended Jobs")
        else:
            for task in self._tasks():
                task.cancel()
            self._cases.clear()

    async def stop(self, patience: float) -> None:
        """Start nothing more, give requests ``patience`` seconds; the next leader resumes Jobs."""
        self._stopping.set()
        if tasks := self._tasks():
            _, late = await asyncio.wait(tasks, timeout=patience)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def under_way(self) -> list[Suspended]:
        """Jobs that are suspended now, the oldest first; only who leads knows any."""
        cases = sorted(self._cases.values(), key=lambda case: case.since)
        return [Suspended(*case.key[:3], case.since, case.reason) for case in cases]

    async def restart(self, pod: Pod) -> Begun | Refused:
        """Have all pods of the Job that controls ``pod`` replaced; asked twice, it is done once.

        Raises:
            KubeError: there was no answer. Should the Job be suspended all the same, it is resumed.
        """
        owner = ownership.controller(pod)
        if owner is None or suspension.kind_of(owner) is None:
            return Refused("its controller cannot be suspended")
        if not self._allowed or not self._acts():
            return Refused("this process may not suspend it")
        key = Key(pod.metadata.namespace, owner.kind, owner.name, owner.uid)
        job = await self._jobs.read(key)
        if job is None:
            return Refused(f"its {key.kind} is gone")
        if job.marked:
            return Begun(self._adopt(key).reason)
        return await self._suspend(key, job, pod)

    async def _suspend(self, key: Key, job: Job, pod: Pod) -> Begun | Refused:
        decision = suspension.begin(job, pod, datetime.now(UTC))
        if isinstance(decision, Leave):
            return Refused(f"its {key.kind} is not suspended: {decision.reason}")
        if why := await self._jobs.protected(await self._jobs.pods(key, job)):
            return Refused(f"its {key.kind} is not suspended: {_short(why)}")
        if not self._acts():
            return Refused("this process does not lead any more")
        try:
            await self._jobs.change(key, job, decision)
        except BaseException as error:
            if isinstance(error, ApiError) and error.code < 500:
                return Refused(f"its {key.kind} is not suspended: {_short(str(error))}")
            # Also if this is cancelled: the request may be on its way all the same.
            self._adopt(key)
            raise
        self._telemetry.sidecar_restarts.labels("suspended").inc()
        self._say(logging.INFO, "job-suspended", key, decision.reason)
        self._adopt(key)
        return Begun(decision.reason)

    def _acts(self) -> bool:
        return self._leading and not self._stopping.is_set()

    def _adopt(self, key: Key) -> _Case:
        """See to it that somebody looks after a Job that is suspended."""
        if (case := self._cases.get(key)) is None:
            now = datetime.now(UTC)
            case = _Case(key, now, now, time.monotonic())
            if self._acts():
                self._cases[key] = case
                case.task = asyncio.create_task(self._see_to(case), name=f"resume {key}")
                case.task.add_done_callback(lambda _task: self._drop(case))
        return case

    def _drop(self, case: _Case) -> None:
        if self._cases.get(case.key) is case:
            del self._cases[case.key]

    def _tasks(self) -> list[asyncio.Task[None]]:
        tasks = (self._finder, *(case.task for case in self._cases.values()))
        return [task for task in tasks if task and not task.done()]

    async def _find(self) -> None:
        """Find the Jobs that an earlier leader suspended, now and again."""
        backoff = Backoff(self._limits.first_retry, self._limits.last_retry)
        while self._acts():
            try:
                async for key in self._jobs.marked():
                    self._adopt(key)
            except KubeError as error:
                # Without `restart-jobs` the right comes and goes with suspended Jobs.
                usual = not self._allowed and isinstance(error, ApiError) and error.code == 403
                level = logging.DEBUG if usual else logging.WARNING
                _log.log(level, "Jobs: %s", error, extra={"event": "suspended-jobs"})
                wait = self._limits.search if usual else max(backoff.next(), asked(error))
                await self._rest(wait)
            except Exception:  # Without the search, a suspended Job might never be resumed.
                self._telemetry.internal_errors.inc()
                _log.exception("suspended Jobs", extra={"event": "internal-error"})
                await self._rest(backoff.next())
            else:
                await self._rest(self._limits.search)

    async def _see_to(self, case: _Case) -> None:
        """Look at a suspended Job until it is resumed, or is not ours any more."""
        backoff = Backoff(self._limits.first_retry, self._limits.last_retry)
        pause = self._limits.look
        while await self._rest(pause):
            pause = self._limits.look
            try:
                if await self._step(case):
                    return
                backoff.reset()
            except KubeError as error:
                pause = max(backoff.next(), asked(error))
                why = f"it is still suspended: {_short(str(error))}"
                if why != case.reason:
                    self._say(logging.WARNING, "job-not-resumed", case.key, why)
                case.reason = why
            except Exception:  # The one place: a Job that trips us must not stop the others.
                pause = backoff.next()
                self._telemetry.internal_errors.inc()
                _log.exception("%s", case.key, extra={"event": "internal-error"})

    async def _step(self, case: _Case) -> bool:
        """Read, decide, and act; returns whether nothing is left to do."""
        job = await self._jobs.read(case.key)
        if job is None:
            self._say(logging.INFO, "job-left", case.key, "it is gone")
            return True
        left = await self._jobs.pods(case.key, job)
        now = time.monotonic()
        case.gone = None if left else case.gone or now
        case.since = suspension.since(job, case.seen)
        decision = suspension.follow(
            job, left, now=datetime.now(UTC), since=case.since, patience=self._limits.patience,
            waited=now - case.begun, gone=now - (case.gone or now),
        )  # fmt: skip
        match decision:
            case Wait():
                case.reason = decision.reason
                self._complain(case, decision, now)
                return False
            case Leave():
                self._say(logging.INFO, "job-left", case.key, decision.reason)
            case Release():
                await self._jobs.change(case.key, job, decision)
                self._say(logging.WARNING, "job-left", case.key, decision.reason)
            case Resume():
                await self._jobs.change(case.key, job, decision)
                outcome = "failed" if decision.without_restart else "resumed"
                self._telemetry.sidecar_restarts.labels(outcome).inc()
                level = logging.WARNING if decision.without_restart else logging.INFO
                self._say(level, "job-resumed", case.key, decision.reason)
                if decision.without_restart:
                    self._warn(case.key, decision.reason)
        return True

    def _warn(self, key: Key, why: str) -> None:
        """Record on the Job itself, whose pods may be gone, that it was resumed too early."""
        job, note = ObjectKey(key.namespace, key.name, key.uid), f"{key.kind} {key.name}: {why}"
        self._events.emit(
            job, "Warning", reason="ResumedWithoutRestart", action="Resume", note=note,
            regarding=(suspension.KINDS[key.kind].api_version, key.kind),
        )  # fmt: skip

    def _complain(self, case: _Case, decision: Wait, now: float) -> None:
        """Tell once of pods that do not go: their Job does nothing until they do."""
        if case.told or now < case.begun + self._limits.late:
            return
        case.told = True
        self._say(logging.WARNING, "job-still-suspended", case.key, decision.reason)
        if decision.pod:
            note = (
                f"{case.key.kind} {case.key.name} stays suspended until its pods are gone, so that"
                f" it does not fail: {decision.reason}"
            )
            pod = key_of(decision.pod)
            self._events.emit(pod, "Warning", reason="StillSuspended", action="Suspend", note=note)

    async def _rest(self, seconds: float) -> bool:
        """Wait that long, or until this process is to end; returns whether it goes on."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return self._acts()
        return False

    @staticmethod
    def _say(level: int, event: str, key: Key, reason: str) -> None:
        named = {"namespace": key.namespace, "kind": key.kind, "job": key.name, "uid": key.uid}
        _log.log(level, "%s", key, extra={"event": event, **named, "reason": reason})


def _short(text: str) -> str:
    """An error without its middle, where the API server repeats the whole Job."""
    return text if len(text) <= 300 else f"{text[:100]} ... {text[-150:]}"
