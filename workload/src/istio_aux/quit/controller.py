"""Make the proxies of finished pods exit, and make sure that they did.

Only the performing may live here: `core.quit.decide` says what is to be done about a pod, the API
server says what is so. Nothing is stored; a new process finds the same work in the cluster.

Each pod that needs its proxy to quit has one task. The task reads the pod again, decides again on
what it read, sends the command, and then looks at the container's status, which alone proves an
exit. Until it does, the task tries again, ever more slowly, for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import msgspec

from istio_aux.core import pod as pods
from istio_aux.core import quit as quitting
from istio_aux.core.pod import Pod
from istio_aux.core.policy import Policy
from istio_aux.kube import streams
from istio_aux.kube.backoff import Backoff
from istio_aux.kube.client import Client
from istio_aux.kube.errors import ApiError, KubeError, UnreachableError
from istio_aux.kube.events import Events
from istio_aux.kube.resources import Key, key_of
from istio_aux.quit.narrator import Narrator
from istio_aux.quit.proof import Gone, Outcome, Superseded, proxy_exit
from istio_aux.quit.record import Record, Stuck, Work
from istio_aux.quit.selection import Selection
from istio_aux.telemetry import Telemetry

PODS = "/api/v1/pods"
FIELDS = "status.phase=Running,spec.restartPolicy!=Always"
"""Field selector under which pods are watched: the server drops whatever can need no quit."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on what the controller does, in seconds and in attempts at once."""

    deadline: float = 10.0
    """For one exec. On a busy node of two cores twelve at once took 1.6 s each."""
    confirm: float = 8.0
    """For the status to show an exit after a command that seems to have worked: Istio <=1.25 drains
    for 5 s first (mesh terminationDrainDuration), and the kubelet reports about 1 s late."""
    doubt: float = 2.0
    """The same after a command that seems to have failed."""
    first_retry: float = 1.0
    last_retry: float = 300.0
    last_reading: float = 30.0
    """Longest wait after the pod could not be read: an API server that was away must not leave
    pods waiting for minutes once it is back."""
    at_once: int = 24
    """First attempts."""
    retries_at_once: int = 8
    """Apart from the first ones, so that pods which fail again and again keep nobody waiting."""
    slow: float = 2.0
    """After that an attempt counts as hung and gives its place to another: it costs a socket until
    its deadline, no more, and a node that hangs every exec must not fill all places."""


class Controller:
    """A handler of the pod watch; see the module for what it does."""

    def __init__(
        self,
        client: Client,
        selection: Selection,
        telemetry: Telemetry,
        events: Events,
        *,
        policy: Policy | None = None,
        limits: Limits | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Prepare; tasks start once pods come in."""
        self._client, self._selection = client, selection
        self._narrator = Narrator(telemetry, events)
        self._policy, self._limits, self._clock = policy or Policy(), limits or Limits(), clock
        self._records: dict[Key, Record] = {}
        self._first_attempts = asyncio.Semaphore(self._limits.at_once)
        self._retries = asyncio.Semaphore(self._limits.retries_at_once)
        self._stopping = False
        selection.changed = self.reselect
        telemetry.watched_pods.set_function(lambda: self.watched)
        telemetry.stuck_pods.set_function(lambda: len(self.stuck()))

    def apply(self, resource: Pod) -> None:
        """A pod looks like this now."""
        key = key_of(resource)
        record = self._records.setdefault(key, Record(key))
        record.left = False
        self._adopt(record, resource)
        self._steer(record)

    def delete(self, key: Key) -> None:
        """A pod is gone, has left phase Running, or is not ours to see any more."""
        if record := self._records.get(key):
            record.left = True
            self._steer(record)

    def reselect(self, namespace: str) -> None:
        """A namespace was selected, or is no longer."""
        for record in list(self._records.values()):
            if record.key.namespace == namespace:
                self._steer(record)

    @property
    def watched(self) -> int:
        """How many pods are known."""
        return len(self._records)

    def stuck(self) -> list[Stuck]:
        """Pods whose proxy withstood several attempts, the oldest first."""
        found = (record.stuck() for record in self._records.values())
        return sorted((pod for pod in found if pod), key=lambda pod: pod.since)

    async def stop(self, patience: float) -> None:
        """Start nothing more; give what runs ``patience`` seconds to end, then drop it.

        Nothing is lost by that: whoever starts next finds the same pods.
        """
        self._stopping = True
        tasks: list[asyncio.Task[None]] = []
        for record in self._records.values():
            if record.work and record.work.task:
                record.work.changed.set()
                tasks.append(record.work.task)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=patience)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _adopt(self, record: Record, pod: Pod) -> quitting.Action:
        """Decide on a pod as it was just seen; one log line when the decision is a new one."""
        decision = quitting.decide(pod, self._policy, self._clock())
        if not record.outdates(pod):
            differs = record.take(pod, decision)
            if differs and record.key.namespace in self._selection:
                self._narrator.decided(record)
        return decision

    def _acts_on(self, record: Record) -> bool:
        return record.wanted and record.key.namespace in self._selection and not self._stopping

    def _steer(self, record: Record) -> None:
        """See to it that a pod with something to do has its task, and that one without ends it."""
        if record.work:
            record.work.changed.set()
        elif self._acts_on(record):
            work = record.work = Work(since=self._clock())
            work.task = asyncio.create_task(self._free(record, work), name=f"quit {record.key}")
            work.task.add_done_callback(lambda _task: self._finished(record))
        elif record.left:
            self._records.pop(record.key, None)

    def _finished(self, record: Record) -> None:
        record.work = None
        self._steer(record)

    async def _free(self, record: Record, work: Work) -> None:
        """Deal with one pod until nothing is to be done about it."""
        telling = Backoff(self._limits.first_retry, self._limits.last_retry)
        reading = Backoff(self._limits.first_retry, self._limits.last_reading)
        while self._acts_on(record):
            if record.until is not None and record.until > self._clock():
                seconds = (record.until - self._clock()).total_seconds()
                await self._while_wanted(record, work, seconds)
                continue
            backoff = telling
            try:
                if outcome := await self._attempt(record, work):
                    self._narrator.ended(record, work, outcome)
                    return
                work.failures += 1
            except KubeError as error:
                backoff = reading
                work.failure = str(error)
                work.failures += not isinstance(error, UnreachableError)
            except Exception:  # The one place: a pod that trips us must not stop the others.
                work.failure = "internal error, see the log"
                work.failures += 1
                self._narrator.tripped(record)
            if self._acts_on(record):
                self._narrator.failed(record, work)
                await self._while_wanted(record, work, backoff.next())
        if work.attempts and not self._stopping:
            await self._look_back(record, work)

    async def _attempt(self, record: Record, work: Work) -> Outcome | None:
        """Read, decide, tell the proxy to exit, and look; None: the proxy still has to exit."""
        async with self._place(self._retries if work.failures else self._first_attempts):
            pod = await self._read(record)
            if pod is None:
                return Gone()
            decision = self._adopt(record, pod)
            if not isinstance(decision, quitting.Quit):
                return _end(pod, decision, work)
            if record.key.namespace not in self._selection:
                return Superseded(reason="the namespace is no longer selected")
            work.attempts += 1
            self._narrator.attempts(record, work)
            result = await streams.execute(
                self._client,
                record.key[:2],
                decision.proxy,
                command(decision.status_port),
                self._limits.deadline,
            )
        heard = result.exit_code == 0
        await self._while_wanted(
            record, work, self._limits.confirm if heard else self._limits.doubt
        )
        outcome = await self._judge(record, work)
        if outcome is None:
            what = "still runs although exec" if heard else "exec"
            work.failure = f"container {decision.proxy}: {what}: {result}"
        return outcome

    async def _judge(self, record: Record, work: Work) -> Outcome | None:
        """Read the pod and say what became of it; None: its proxy still has to exit."""
        pod = await self._read(record)
        if pod is None:
            return Gone()
        decision = self._adopt(record, pod)
        return None if isinstance(decision, quitting.Quit) else _end(pod, decision, work)

    async def _look_back(self, record: Record, work: Work) -> None:
        """Say how it ended when the watch, not an attempt, showed that there is no more to do."""
        try:
            outcome = await self._judge(record, work)
        except KubeError as error:
            outcome = Superseded(reason=f"not known: {error}")
        unselected = Superseded(reason="the namespace is no longer selected")
        self._narrator.ended(record, work, outcome or unselected)

    async def _read(self, record: Record) -> Pod | None:
        """The pod as it is now, or None when it is gone or its name belongs to another."""
        namespace, name, uid = record.key
        try:
            body = await self._client.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
            pod = pods.decode(body)
        except ApiError as error:
            if error.code != 404:
                raise
            pod = None
        except msgspec.DecodeError as error:
            raise UnreachableError(f"the answer is no pod: {error}") from error
        if pod is None or pod.metadata.uid != uid:
            record.left = True
            return None
        return pod

    async def _while_wanted(self, record: Record, work: Work, seconds: float) -> None:
        """Wait that long, or until there is nothing to do about the pod any more."""
        try:
            async with asyncio.timeout(seconds):
                while self._acts_on(record):
                    work.changed.clear()
                    await work.changed.wait()
        except TimeoutError:
            return

    @asynccontextmanager
    async def _place(self, places: asyncio.Semaphore) -> AsyncGenerator[None]:
        """Take one of a number of places; see `Limits.slow` for when it is given back."""
        await places.acquire()
        held = True

        def give_back() -> None:
            nonlocal held
            if held:
                held = False
                places.release()

        slow = asyncio.get_running_loop().call_later(self._limits.slow, give_back)
        try:
            yield
        finally:
            slow.cancel()
            give_back()


def command(port: int) -> tuple[str, ...]:
    """The command that makes the agent exit with 0 (istio pilot-agent app/request.go).

    The port is named because the default target is Envoy's admin; it needs no shell (T14, T15).
    """
    return ("pilot-agent", "request", f"--debug-port={port}", "POST", "quitquitquit")


def _end(pod: Pod, decision: quitting.Action, work: Work) -> Outcome:
    """How it ended for a pod that needs no quit: by the proxy's exit only if we asked for it."""
    return (proxy_exit(pod) if work.attempts else None) or Superseded(reason=decision.reason)
