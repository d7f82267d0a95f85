"""Restart unmeshed pods at the pace that `core.pacing` sets.

Only the following of controllers with pods to be restarted may live here: what was done about each
(`Course`), what is next, and one task for each restart from its beginning to its answer. What came
of it the watch shows. Only who leads does any of this; who follows remembers nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from istio_aux.core import batchjobs, pacing
from istio_aux.core.checkpoint import FAILED
from istio_aux.core.pacing import Course, Done, Hold, Next, Pace, Stop
from istio_aux.core.pod import Pod
from istio_aux.core.repair import Restart, Way
from istio_aux.kube import actions
from istio_aux.kube.client import Client
from istio_aux.kube.errors import ApiError, KubeError, asked
from istio_aux.repair.evict import Evicted, Outcome, Refused, Superseded, evict
from istio_aux.repair.ledger import BATCH, Ledger
from istio_aux.repair.narrator import Narrator
from istio_aux.repair.record import Owner, Record
from istio_aux.repair.rehearsal import why_not
from istio_aux.repair.suspension import Begun, Suspensions


class Restarts:
    """The restarts of this process. A class because it follows them.

    Attributes:
        leading: whether this process is the one that restarts pods.
        stopping: whether nothing may be begun any more.
        woken: set when there is something to look at.
    """

    def __init__(
        self,
        client: Client,
        ledger: Ledger,
        narrator: Narrator,
        suspensions: Suspensions,
        *,
        pace: Pace,
        clock: Callable[[], datetime],
    ) -> None:
        """Prepare; it listens to the ledger's changes."""
        ledger.changed = self.touch
        self._client, self._ledger, self._narrator = client, ledger, narrator
        self._suspensions, self._pace, self._clock = suspensions, pace, clock
        self.leading = self.stopping = False
        self.woken = asyncio.Event()
        self._failed: dict[str, datetime] = {}
        self._changed: dict[Owner, None] = {}
        self._followed: dict[Owner, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def touch(self, owner: Owner, record: Record) -> None:
        """A pod of the controller came, is different, or went."""
        if self.leading and (owner in self._followed or record.member.restart):
            self._look_at(owner)

    def lead(self, leading: bool) -> None:
        """Begin with nothing but what is `failed`, or forget everything else."""
        self.leading = leading
        self._changed.clear()
        for owner in list(self._followed):
            self._leave(owner)
        for record in self._ledger.unmeshed.values():
            if record.owner:
                self.touch(record.owner, record)

    @property
    def failed(self) -> dict[str, datetime]:
        """Controllers, by `Owner.key`, whose new pod had no sidecar either, and when that was.

        There are never more than `FAILED`. Set it before `lead`, to what the last leader knew.
        """
        return {key: at for key, at in self._failed.items() if self._forgotten_in(at) > 0}

    @failed.setter
    def failed(self, failed: Mapping[str, datetime]) -> None:
        self._failed = dict(failed)

    async def settle(self) -> None:
        """Look at all controllers that are different, and then begin what is due."""
        pods = 0
        while self._changed:
            owner, _ = self._changed.popitem()
            self._see(owner)
            pods += 1 + len(owner.records)
            if pods >= BATCH:
                pods = 0
                await asyncio.sleep(0)
        if self.leading and not self.stopping:
            self._begin()

    async def stop(self, patience: float) -> None:
        """Begin nothing more; give what runs ``patience`` seconds to end, then drop it."""
        self.stopping = True
        for owner in self._followed:
            if owner.timer:
                owner.timer.cancel()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=patience)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _look_at(self, owner: Owner) -> None:
        self._changed[owner] = None
        self.woken.set()

    def _see(self, owner: Owner) -> None:
        """Find out what came of the last restart, and what is next."""
        now, before = _now(), owner.step
        # Only the old course knows which pods were there when the restart began.
        known = owner.course.victim.known if owner.course.victim else frozenset[str]()
        recalled = self._recall(owner)
        at = self._clock()
        owner.course = pacing.seen(owner.group(at), now, self._pace)
        self._remember(owner)
        owner.step = step = pacing.step(owner.group(at), now, self._pace)
        if isinstance(step, Done) or self._is_gone(owner, now):
            self._leave(owner)
            return
        self._followed[owner] = None
        self._wait(owner, now)
        if isinstance(step, Stop) and not isinstance(before, Stop) and not recalled:
            self._narrator.stopped(owner, known, step.reason)

    def _recall(self, owner: Owner) -> bool:
        """Let a restart that did not help count for as long as it is to be remembered.

        Returns whether it is known from before: then it was told.
        """
        key, course = owner.key, owner.course
        if (at := self._failed.get(key)) is None:
            return False
        if self._forgotten_in(at) <= 0:
            del self._failed[key]
            owner.course = Course(served=course.served)
            return False
        if not course.stopped:
            owner.course = pacing.failed(course, at)
        return True

    def _remember(self, owner: Owner) -> None:
        key, course = owner.key, owner.course
        if not course.stopped:
            self._failed.pop(key, None)
        elif key not in self._failed:
            # By whichever clock is ahead: one that is a day off must not end the memory at once.
            created = datetime.fromtimestamp(course.failed, UTC)
            self._failed[key] = max(created, self._clock())
            while len(self._failed) > FAILED:
                del self._failed[min(self._failed, key=lambda each: self._failed[each])]

    def _forgotten_in(self, at: datetime) -> float:
        """In how many seconds a restart that did not help is forgotten."""
        return self._pace.memory - (self._clock() - at).total_seconds()

    def _is_gone(self, owner: Owner, now: float) -> bool:
        """Whether the controller has had no pod for so long that it is not there any more."""
        return not owner.records and (owner.idle or now >= self._gone_at(owner))

    def _gone_at(self, owner: Owner) -> float:
        return (owner.course.served or 0.0) + 2 * self._pace.patience

    def _leave(self, owner: Owner) -> None:
        """There is nothing to be done about the controller, for all we know."""
        self._followed.pop(owner, None)
        self._quiet(owner)
        owner.step, owner.course = None, Course(served=owner.course.served)
        self._ledger.forget(owner)

    def _wait(self, owner: Owner, now: float) -> None:
        """Look again when time alone may change what is next."""
        self._quiet(owner)
        until = owner.step.until if isinstance(owner.step, Hold) else None
        if until is None and (at := self._failed.get(owner.key)):
            until = now + self._forgotten_in(at)
        if until is None and not owner.records:
            until = self._gone_at(owner)
        if until is not None:
            loop = asyncio.get_running_loop()
            owner.timer = loop.call_later(max(until - now, 0.0), self._look_at, owner)

    def _quiet(self, owner: Owner) -> None:
        if owner.timer:
            owner.timer.cancel()
            owner.timer = None

    def _begin(self) -> None:
        """Begin what is due."""
        now = _now()
        waiting = {
            owner.key: owner
            for owner in self._followed
            if isinstance(owner.step, Next) and owner.task is None
        }
        under_way = [owner.course for owner in self._followed if owner.course.victim]
        courses = {key: owner.course for key, owner in waiting.items()}
        for key in pacing.due(courses, under_way, now, self._pace):
            owner = waiting[key]
            assert isinstance(owner.step, Next)
            pod = owner.step.pod
            record = next(record for record in owner.records if record.key.uid == pod.uid)
            owner.course = pacing.begun(owner.group(self._clock()), pod, now)
            owner.task = asyncio.create_task(self._restart(owner, record), name=f"restart {owner}")
            self._tasks.add(owner.task)
            owner.task.add_done_callback(self._tasks.discard)
            self._look_at(owner)

    async def _restart(self, owner: Owner, record: Record) -> None:
        """See to one restart from its beginning to its answer."""
        try:
            ready = await self._decide(owner, record)
            if isinstance(ready, Restart):
                self._hear(owner, record, ready, await self._send(record, ready))
            else:
                self._hear(owner, record, None, ready)
        except KubeError as error:
            # Nobody knows whether the request was heard: `pacing.seen` finds out.
            self._narrator.failed(record, str(error))
        except Exception:  # The one place: a pod that trips us must not stop the others.
            self._narrator.tripped(record)
        finally:
            owner.task = None
            if owner in self._followed:
                self._look_at(owner)

    async def _decide(self, owner: Owner, record: Record) -> Restart | Superseded | Refused:
        """Decide again, with all that has to be read for it."""
        begun = owner.course.victim
        if batchjobs.is_batch(owner.reference):
            try:
                namespace = record.key.namespace
                owner.job = await actions.read_job(self._client, namespace, owner.reference)
            except KubeError as error:
                return Refused(f"not known whether its Job is finished: {error}", asked(error))
            owner.finished = owner.job is None or batchjobs.over(owner.job)
        case = record.case
        if case and self._ledger.asks(case) and (refused := await self._rehearse(case.pod)):
            return refused
        # From here to the sending nothing is awaited: what is decided now still holds.
        if self.stopping or owner.course.victim is not begun:
            return Superseded("this process leads no more, or it took too long")
        if not self._ledger.knows(record) or record.case is None:
            return Superseded("the pod is gone, or is none to be restarted any more")
        action = self._ledger.judge(record, record.case)
        if not isinstance(action, Restart):
            return Superseded(action.reason)
        owner.course = pacing.begun(owner.group(self._clock()), record.member, _now())
        return action

    async def _rehearse(self, pod: Pod) -> Refused | None:
        """Say why a new pod would get no sidecar, if so."""
        try:
            why = await why_not(self._client, pod)
        except KubeError as error:
            said = f"not known whether a new pod would get a sidecar: {error}"
            return Refused(said, asked(error))
        return Refused(why) if why else None

    async def _send(self, record: Record, restart: Restart) -> Outcome:
        """Evict the pod, or have its Job suspended. Raises KubeError: the outcome is unknown."""
        if restart.way is Way.EVICT:
            return await evict(self._client, record.key, restart)
        assert record.case
        try:
            answer = await self._suspensions.restart(record.case.pod)
        except ApiError as error:
            if error.unknown:
                raise
            return Refused(str(error), error.retry_after or 0.0)
        return Evicted() if isinstance(answer, Begun) else Refused(answer.reason)

    def _hear(
        self, owner: Owner, record: Record, restart: Restart | None, outcome: Outcome
    ) -> None:
        """Tell what came of it, and remember that unless something newer is known."""
        match outcome:
            case Evicted():
                assert restart
                self._narrator.restarted(record, restart)
                return
            case Superseded(reason=why):
                self._narrator.superseded(record, why)
                course = pacing.superseded(owner.course, why, _now(), self._pace)
            case Refused(reason=why, asked=peace):
                self._narrator.refused(record, why)
                course = pacing.refused(owner.course, why, _now(), self._pace, asked=peace)
        if owner.course.victim and owner.course.victim.pod.uid == record.key.uid:
            owner.course = course


def _now() -> float:
    return asyncio.get_running_loop().time()
