"""Leader election among the units: reads and writes a Lease (coordination.k8s.io/v1).

`model.election` decides. As in client-go, a holder that could not renew for ``deadline`` seconds
stops leading, and no other process begins before ``duration`` seconds without a renewal. So two
never lead at once, whatever their clocks show. A write names the version that it replaces, so of
several writes the API server accepts only one.

A holder that is unfit to lead says so in the Lease, and leads on until a process that is fit wants
the Lease: an unfit leader is better than none.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import random
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from istio_aux.kube import actions
from istio_aux.kube.client import Client
from istio_aux.kube.clock import now, system_clock
from istio_aux.kube.errors import UNANSWERED, ApiError, KubeError, retry_after
from istio_aux.kube.objects import decoded
from istio_aux.model.election import (
    ANNOTATION,
    CHECKPOINT,
    LeaseRecord,
    Observation,
    Standby,
    decide,
)
from istio_aux.model.moment import Clock

_log = logging.getLogger(__name__)

# The second line of the checkpoint's annotation: the holder is unfit, or another process, which is
# fit, wants the Lease.
UNFIT = "unfit"
WANTED = "wanted"
RELEASE = 1.0  # Seconds that a release may take. The process is about to end.


class StoredLease(msgspec.Struct, frozen=True):
    """A Lease. Its ``metadata`` is written back unchanged, except for one annotation."""

    metadata: dict[str, Any]
    spec: LeaseRecord = LeaseRecord()


def own_identity(port: int) -> str:
    """Name this process as a candidate for the Lease; with port 0 the name is random.

    A process that was killed has the same name after its restart, so it resumes its Lease. Only one
    process listens on ``port`` in a network namespace, and it listens before it leads; a pod of the
    same name has another network namespace.
    """
    try:
        place = (
            Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            str(Path("/proc/self/ns/net").readlink()),
        )
    except OSError:
        place = ()
    own = " ".join((*place, str(port))) if place and port else secrets.token_hex(8)
    return f"{socket.gethostname()}_{hashlib.sha256(own.encode()).hexdigest()[:8]}"


class Leadership:
    """Whether this process is the one that acts on pods. Without a Lease it always is.

    ``held``: whether the process leads, as its controllers were told last.
    """

    def __init__(self, *, held: bool = True) -> None:
        self.held, self._followers = held, list[Callable[[bool], None]]()

    def follow(self, changed: Callable[[bool], None]) -> None:
        """Call ``changed`` with ``held``: now, and whenever it changes."""
        self._followers.append(changed)
        changed(self.held)

    def lead(self, held: bool) -> None:
        """Tell all controllers that this process begins to lead, or must stop."""
        self.held = held
        for changed in self._followers:
            changed(held)

    @property
    def holder(self) -> str:
        """Identity of the leader, empty if none is known."""
        return ""

    def leads(self) -> bool:
        """Whether this process may act now. Call this right before each write of a leader.

        If it may not any more, this tells all controllers.
        """
        return self.held

    async def save(self) -> None:
        """Store what the next leader has to know; `KubeError` if that is not known to be stored."""

    async def release(self) -> None:
        """Let another process lead at once. Call it after all work of the leader has ended."""


class Lease(Leadership):
    """A candidate for a Lease."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        name: str,
        identity: str,
        *,
        checkpoint: Callable[[], str] = lambda: "",
        recall: Callable[[str, bool], bool] = lambda _checkpoint, _lost: True,
        unfit: Callable[[], str] = lambda: "",
        # The defaults of Kubernetes components (component-base LeaderElectionConfiguration).
        duration: float = 15.0,
        deadline: float = 10.0,
        retry: float = 2.0,
        clock: Clock = system_clock,
    ) -> None:
        """Prepare; `run` sends the first request, and creates the Lease if it does not exist.

        The holder stores what ``checkpoint`` returns with each renewal. ``recall`` gets the stored
        text, perhaps empty, whenever the Lease is read while this process does not lead, or another
        process has changed it. Its second argument is whether the Lease may lack what this process
        knows, as a re-created Lease does; it returns whether the text has all of that. ``unfit``
        returns why another process should lead, or nothing.
        """
        super().__init__(held=False)
        self._name = f"{namespace}/{name}"
        self._identity = identity
        self._client = client
        self._clock = clock
        self._checkpoint = checkpoint
        self._recall = recall
        self._unfit = unfit
        self._collection = actions.collection("coordination.k8s.io/v1", "leases", namespace)
        self._path = actions.object_path("coordination.k8s.io/v1", "leases", namespace, name)
        self._new: dict[str, Any] = {"namespace": namespace, "name": name}
        self._duration = duration
        self._deadline = deadline
        self._retry = retry
        self._seen = Observation()
        self._releases: float | None = None  # When a holder that stepped down releases the Lease.
        self._free: float | None = None  # Since when an unfit process leaves the Lease to others.
        self._metadata = self._new
        self._lost = False  # The Lease may lack what this process knows.
        self._renewed = 0.0
        self._trouble = ""
        self._writing = asyncio.Lock()

    @property
    def holder(self) -> str:
        """See `Leadership`."""
        return self._seen.holder if self._seen.exists else ""

    def leads(self) -> bool:
        """See `Leadership`. A process that was suspended for longer than its term stops leading."""
        if self.held and now() >= self._renewed + self._deadline:
            self._lead(held=False, why=f"not renewed for {self._deadline:g} s")
        return self.held

    async def save(self) -> None:
        """Write the checkpoint now, unless it is stored already; see `Leadership`."""
        try:
            async with asyncio.timeout_at(self._latest(self._deadline / 2)), self._writing:
                if not self.leads():
                    raise KubeError("this process does not lead")
                if self._note[0] != self._checkpoint():
                    await self._hold(self._record, self._unfit())
        except TimeoutError as error:
            raise KubeError("the Lease was not written in time") from error

    async def run(self) -> None:
        """Try to lead, and go on leading, until cancelled. Stops leading before it raises."""
        try:
            await self._run()
        except Exception:
            self._lead(held=False, why="internal error")
            raise

    async def _run(self) -> None:
        while True:
            pause = self._retry * random.uniform(1.0, 1.2)  # noqa: S311  (spreads load)
            if not self.held:
                pause /= 2  # A Lease that is released is taken within 1.2 s, not 2.4 s.
            try:
                # A request that hangs must leave time for another one.
                async with asyncio.timeout_at(self._latest(self._deadline / 2)), self._writing:
                    lapses = await self._round()
                self._trouble = ""
                pause = min(pause, max(0.0, lapses - now()))
            except UNANSWERED as error:
                if isinstance(error, ApiError) and error.code == 409:
                    pause = self._retry / 10  # Another process was faster: read the Lease again.
                else:
                    # A holder tries once more before it has to stop leading.
                    longest = self._latest(self._deadline) - self._retry - now()
                    pause = max(pause, min(retry_after(error), longest))
                    self._complain(str(error) or "no answer in time")
            self.leads()
            await asyncio.sleep(self._latest(pause) - now())

    async def release(self) -> None:
        """See `Leadership`."""
        with suppress(KubeError, TimeoutError):
            async with asyncio.timeout(RELEASE):
                await self._read()
                if self.holder == self._identity:
                    await self._give_up()
        self._lead(held=False, why="released")

    async def _give_up(self) -> None:
        await self._write(
            msgspec.structs.replace(self._record, holder_identity="", renew_time=self._time()),
            self._checkpoint(),
        )

    def _latest(self, seconds: float) -> float:
        """The time in ``seconds``, but not later than leading has to stop."""
        then = now() + seconds
        return min(then, self._renewed + self._deadline) if self.held else then

    async def _round(self) -> float:
        """Do an election round: read, decide, write. Returns the next deadline, or infinity."""
        unfit = self._unfit()
        if not unfit:
            self._releases = self._free = None
        elif self._releases is not None:
            if now() < self._releases:
                return self._releases
            self._releases = None
            await self._give_up()
            return math.inf
        if self.held:
            # No other process had a reason to write: try the last version without reading.
            try:
                await self._hold(self._record, unfit)
            except ApiError as error:
                if error.code not in {404, 409}:
                    raise
            else:
                return math.inf
        await self._read()
        step = decide(self._identity, self._seen, now(), self._duration)
        if isinstance(step, Standby):
            return await self._follow(step, unfit)
        if unfit and (until := self._leave(unfit)):
            return until
        await self._hold(step.before, unfit)
        self._free = None
        self._lead(held=True, why=step.reason)
        return math.inf

    async def _follow(self, step: Standby, unfit: str) -> float:
        """Leave the Lease to its holder; if that is unfit and this process is not, ask for it."""
        self._free = None
        self._lead(held=False, why=step.reason)
        # If the Lease was created again, its holder may not know this process's checkpoint.
        left, marked = self._note
        text = self._checkpoint() if self._lost else left
        mark = WANTED if marked == UNFIT and not unfit else marked
        if (text, mark) != (left, marked):
            await self._write(self._record, f"{text}\n{mark}" if mark else text)
        self._lost = False
        return step.until

    def _leave(self, unfit: str) -> float | None:
        """Return until when an unfit process leaves the Lease to others; None: it leads itself."""
        if self._seen.holder != self._identity:
            self._free = self._free or now()
            # A process that is fit takes the Lease meanwhile.
            until = self._free + self._deadline / 2
            return until if now() < until else None
        if not self.held or self._note[1] != WANTED:
            return None
        self._lead(held=False, why=unfit)
        # Tasks under way get as long to end as if the Lease had not been renewed.
        self._releases = now() + self._duration - self._deadline
        return self._releases

    async def _hold(self, before: LeaseRecord, unfit: str) -> None:
        """Write the Lease as its holder, with acquireTime and transitions of ``before``."""
        # Our term counts from before the write, other processes' from their later read.
        sent, present = now(), self._time()
        record = LeaseRecord(
            holder_identity=self._identity,
            lease_duration_seconds=math.ceil(self._duration),
            acquire_time=before.acquire_time or present,
            renew_time=present,
            lease_transitions=before.lease_transitions or 0,
        )
        await self._write(record, self._checkpoint() + (f"\n{UNFIT}" if unfit else ""))
        self._renewed = sent
        self._lost = False

    async def _write(self, record: LeaseRecord, text: str) -> None:
        """Replace the record that was read; `ApiError` 409 if another process has replaced it."""
        metadata = self._metadata if self._seen.exists else self._new
        body = msgspec.json.encode(
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {
                    **metadata,
                    "annotations": {**_annotations(metadata), ANNOTATION: text},
                },
                "spec": record,
            }
        )
        if self._seen.exists:
            self._take(await self._client.send("PUT", self._path, body))
        else:
            self._take(await self._client.send("POST", self._collection, body))

    async def _read(self) -> None:
        before, _ = self._note
        try:
            self._take(await self._client.get(self._path))
        except ApiError as error:
            if error.code != 404:
                raise
            self._seen = self._seen.then(None, now())
            return
        text, _ = self._note
        if text != before or not self.held:
            self._lost |= not self._recall(text, self._lost)

    def _take(self, body: bytes) -> None:
        """Store what the API server returned."""
        lease = decoded(body, StoredLease, "Lease")
        uid = self._metadata.get("uid")
        # An update without managedFields leaves them unchanged (apiserver fieldmanager.go).
        self._metadata = {k: v for k, v in lease.metadata.items() if k != "managedFields"}
        self._lost |= uid not in {None, self._metadata.get("uid")}
        self._seen = self._seen.then(lease.spec, now())

    @property
    def _record(self) -> LeaseRecord:
        return self._seen.record or LeaseRecord()

    @property
    def _note(self) -> tuple[str, str]:
        """The checkpoint and, if the Lease exists, the mark in it, as of the last read."""
        text, _, mark = (CHECKPOINT.get(_annotations(self._metadata)) or "").partition("\n")
        return text, mark if self._seen.exists else ""

    def _lead(self, *, held: bool, why: str) -> None:
        """Tell all controllers and log why, unless it is so already."""
        if held != self.held:
            _log.info(
                "lease %s: %s %s: %s",
                self._name,
                self._identity,
                "leads" if held else "no longer leads",
                why,
                extra={"event": "lease", "leader": held},
            )
            self.lead(held)

    def _time(self) -> str:
        """The time as meta/v1 MicroTime."""
        return self._clock().date.strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def _complain(self, trouble: str) -> None:
        """Log each new error once: the same one comes back every two seconds."""
        if trouble != self._trouble:
            self._trouble = trouble
            _log.warning("lease %s: %s", self._name, trouble, extra={"event": "lease-refused"})


def _annotations(metadata: dict[str, Any]) -> dict[str, str]:
    return metadata.get("annotations") or {}
