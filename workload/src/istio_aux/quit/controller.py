"""The quit controller: watches pods, performs the action that is due for each, and reports it.

Each pod about which something is due has one asyncio task, which runs until nothing is due any
more. Nothing is stored: a new process finds the same work in the cluster.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from istio_aux.kube import actions
from istio_aux.kube.client import Check, Client
from istio_aux.kube.clock import system_clock
from istio_aux.kube.errors import (
    ApiError,
    Backoff,
    KubeError,
    LateError,
    UnreachableError,
    retry_after,
)
from istio_aux.kube.events import Events
from istio_aux.kube.exec import execute, forward, is_ready
from istio_aux.kube.lease import Leadership
from istio_aux.model.annotations import not_native_because
from istio_aux.model.answers import SLICE, in_order
from istio_aux.model.applications import Applications
from istio_aux.model.documents import Cooperative
from istio_aux.model.ending import is_short, killed
from istio_aux.model.found import Found
from istio_aux.model.kubelet import Kubelet, depends_on_kubelet, obeys
from istio_aux.model.moment import Clock
from istio_aux.model.pod import PROXY, Key, Pod
from istio_aux.model.policy import QuitMode
from istio_aux.model.resources import Requests
from istio_aux.model.sidecars import AttemptResult
from istio_aux.quit.attempt import (
    Action,
    Ask,
    Delete,
    End,
    PodState,
    QuitScope,
    Retry,
    Send,
    Sleep,
    Task,
)
from istio_aux.quit.facts import PodFacts
from istio_aux.quit.recorder import KEEPERS, QuitRecorder
from istio_aux.quit.rules import Quit, Way, loses_network
from istio_aux.tasks import Slots, end_tasks
from istio_aux.telemetry import Telemetry

MOST_ENDS = 100  # Finished pods that wait for a last read. Others get no Event about their proxy.
# Seconds for which the pods of the watch are judged by a kubelet version that was read.
KUBELET_KNOWN = 300.0


class _Work(NamedTuple):
    changed: asyncio.Event  # Set whenever the pod, or what may be done about it, has changed.
    task: asyncio.Task[None]


class QuitController:
    """Handler of the watch of pods: decides about them, and makes their proxies exit."""

    def __init__(
        self,
        client: Client,
        namespaces: Mapping[str, Mapping[str, str]],
        telemetry: Telemetry,
        events: Events,
        scope: QuitScope,
        *,
        clock: Clock = system_clock,
        leadership: Leadership,
        ended: Callable[[Key, End], None] = lambda _pod, _end: None,
    ) -> None:
        """Start. ``namespaces`` has the labels of each namespace, as they change.

        The controller changes ``scope``. ``ended`` gets the outcome of each task that has any.
        """
        self._leadership = leadership
        self._namespaces = namespaces
        self._ended = ended
        self._scope = scope
        self._client = client
        self._clock = clock
        self._recorder = QuitRecorder(telemetry, events)
        self.known: dict[Key, PodState] = {}  # The state of each pod.
        self._by_namespace = defaultdict[str, dict[Key, PodState]](dict)  # `known`, by namespace.
        self._works: dict[Key, _Work] = {}
        self._ends = set[asyncio.Task[None]]()
        self._alarms: dict[Key, asyncio.TimerHandle] = {}
        self._kubelets: dict[str, Kubelet] = {}  # By node; the kubelets whose version was read.
        self._slots = Slots(scope.limits.at_once, scope.limits.slot)
        self._retry_slots = Slots(scope.limits.retries_at_once, scope.limits.slot)
        self._recorder.watched.set_function(lambda: len(self.known))
        self._leadership.follow(self.lead)

    def apply(self, resource: Pod) -> None:
        """A pod was created or has changed. Only pods that are to end and have a proxy count.

        Pods with a native proxy, and pods that do not run yet, are stored only while something is
        due about them.
        """
        key = resource.metadata.key
        state = self.known.get(key)
        pending = resource.status.phase == "Pending"
        native = resource.has_native_proxy
        if resource.status.phase not in {"Pending", "Running"} or (
            resource.restart_policy == "Always"
        ):
            if state:
                self.delete(key)
            return
        if state is None:
            if not (resource.has_proxy or native):
                return
            state = self.known[key] = self._by_namespace[key.namespace][key] = PodState(key)
        state.unwatched, facts = False, self._facts(resource)
        state.decide_on(facts, self._scope, self._clock())
        quits = isinstance(state.decision, Quit)
        due = state.decision.blocked_by or quits if pending else state.asks_for
        state.unwatched = (pending or native) and not due
        if not (native or state.unwatched or state.obstacle(self._scope)):
            if why := not_native_because.get(resource.metadata):
                self._recorder.held(state, why)
            if lost := loses_network(facts):
                self._recorder.loses_network(state, lost)
        self._steer(state)

    def delete(self, key: Key, last: Pod | None = None) -> None:
        """A pod is gone, or has left the selection.

        ``last`` is its previous content, without exit codes (k8s@1.36 cache_watcher.go
        convertToWatchEvent). So a pod is read again if its native proxy had too little time to end.
        """
        if state := self.known.get(key):
            state.unwatched = True
            self._steer(state)
        if last and last.has_native_proxy and is_short(last) and len(self._ends) < MOST_ENDS:
            state = PodState(key)
            state.decide_on(self._facts(last), self._scope, self._clock())
            if not state.obstacle(self._scope):
                task = asyncio.create_task(self._read_end(state), name=f"end {key}")
                self._ends.add(task)
                task.add_done_callback(self._ends.discard)

    async def _read_end(self, state: PodState) -> None:
        """Report how the native proxy of a finished pod ended, if the pod is still there."""
        async with self._retry_slots.take(state.key.namespace, state.node):
            with suppress(KubeError):  # Nothing depends on this read, so it is tried once.
                pod = await actions.read_pod(self._client, state.key)
                if pod and (why := killed(pod)):
                    self._recorder.killed(state, why)

    def relabelled(self, namespace: str) -> None:
        """A namespace was created, relabelled or deleted."""
        labels = self._namespaces.get(namespace)
        self._scope.namespaces.discard(namespace)
        if labels is not None and self._scope.options.namespaces.matches(labels):
            self._scope.namespaces.add(namespace)
        self._steer_all(namespace)

    def set_applications(self, applications: Applications) -> None:
        """Select also the pods of these applications, whatever their namespace."""
        self._scope.applications = applications
        self._steer_all()

    def lead(self, leading: bool) -> None:
        """Become the process that acts, or stop acting. Pods are watched in any case."""
        self._scope.leading = self._recorder.leading = leading
        self._steer_all()

    def survey(self) -> Cooperative[list[Found]]:
        """Find out what is wrong with which pods, the oldest first, and set the gauges.

        Only the leader sets these, so that a sum over all units counts each pod once.
        """
        now = self._clock()
        scope = self._scope
        found = list[Found]()
        counts = Counter[str]()
        kept = dict.fromkeys(KEEPERS, Requests())
        for number, state in enumerate([*self.known.values()]):
            if number % SLICE == 0:
                yield
            if trouble := state.trouble(scope, now):
                found.append(trouble)
                counts["held" if state.decision.stage == "held" else trouble.state] += scope.leading
                if scope.leading and trouble.requests:
                    by = trouble.by or (PROXY,)
                    kept[PROXY if PROXY in by else "other"] += trouble.requests
        self._recorder.surveyed(counts, kept)
        return (yield from in_order(found, _age))

    async def stop(self, patience: float) -> None:
        """Start no more tasks; give the others ``patience`` seconds to end, then cancel them."""
        self._scope.stopping = True
        for work in self._works.values():
            work.changed.set()
        await end_tasks([*(work.task for work in self._works.values()), *self._ends], patience)

    def _steer_all(self, namespace: str | None = None) -> None:
        states = self.known if namespace is None else self._by_namespace.get(namespace, {})
        for state in [*states.values()]:
            self._steer(state)

    def _steer(self, state: PodState) -> None:
        """Start the task of a pod about which something is due, or wake it.

        Most pods end or start before a report about what keeps them is due. Until then the pod has
        a timer: a task takes three times as much memory, and all pods may start at once.
        """
        self._record(state)
        if alarm := self._alarms.pop(state.key, None):
            alarm.cancel()
        if work := self._works.get(state.key):
            work.changed.set()
        elif due := state.due(self._scope):
            begins = None if due in {"quit", "report"} else state.begins(self._scope.limits)
            if begins and (seconds := begins - self._clock().monotonic) > 0:
                self._alarms[state.key] = asyncio.get_running_loop().call_later(
                    seconds, self._steer, state
                )
                return
            task = state.task = Task(state, due)
            changed = asyncio.Event()
            work = asyncio.create_task(self._run(state, task, changed), name=f"quit {state.key}")
            self._works[state.key] = _Work(changed, work)
            work.add_done_callback(lambda _: self._finished(state))
        elif state.unwatched and self.known.pop(state.key, None):
            del self._by_namespace[state.key.namespace][state.key]
            if not self._by_namespace[state.key.namespace]:
                del self._by_namespace[state.key.namespace]

    def _finished(self, state: PodState) -> None:
        state.task = None
        del self._works[state.key]
        self._steer(state)

    def _record(self, state: PodState) -> None:
        if not state.recorded and not state.obstacle(self._scope):
            state.recorded = True
            self._recorder.decided(state, dry=self._scope.mode is QuitMode.DRY_RUN)

    async def _run(self, state: PodState, task: Task, changed: asyncio.Event) -> None:
        limits = self._scope.limits
        trying = Backoff(limits.first_retry, limits.last_retry)
        reading = Backoff(limits.first_retry, limits.last_reading)
        action: Action = Sleep(0)
        recorded = 0  # Failures.
        while not isinstance(action, End):
            try:
                if isinstance(action, Retry):
                    self._recorder.failed(state, task, counts=task.failures > recorded)
                    recorded = task.failures
                    backoff = reading if action.reading else trying
                    action = Sleep(max(backoff.next(), action.pause))
                if isinstance(action, Sleep):
                    await self._rest(task, changed, action.seconds)
                    action = task.awake(self._scope, self._clock())
                else:
                    action = await self._look(state, task)
            except KubeError as error:
                action = task.failed(
                    str(error),
                    self._scope,
                    counts=error.code != 429 and not isinstance(error, UnreachableError),
                    pause=retry_after(error),
                )
            except Exception:  # One pod's failure must not stop the others.
                self._recorder.unhandled()
                action = task.failed("internal error, see the log", self._scope, reading=False)
        if action.outcome:
            # Check the Lease: if this process was suspended, the next leader may count the pod.
            self._leadership.leads()
            self._recorder.ended(state, task, action)
            self._ended(state.key, action)

    async def _rest(self, task: Task, changed: asyncio.Event, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while task.is_due(self._scope):
                    changed.clear()
                    await changed.wait()

    async def _look(self, state: PodState, task: Task) -> Action:
        """Read the pod by its UID, and do what follows from that right away."""
        slots = self._retry_slots if task.failures or task.due != "quit" else self._slots
        async with slots.take(state.key.namespace, state.node) as slot:
            if not task.told and not task.is_due(self._scope):
                return task.superseded(self._scope)
            read, fresh = await self._found(state, task)
            action = read
            if isinstance(read, Ask):  # Once, as an answer may take longer than a read counts.
                ready = await is_ready(self._client, state.key, self._scope.limits.deadline)
                action = task.asked(ready, self._scope)
            if isinstance(action, Delete):
                self._recorder.lost(state)
                return await self._delete(state, task, action.version)
            if not isinstance(action, Send):
                return action
            newest = read
            # A port-forward stays with its pod, so the pod is read again once it is connected.
            until = 0.0 if action.way is Way.PORT_FORWARD else fresh

            async def still() -> bool:
                """Whether to send now; reads the pod again if the last read is too old."""
                nonlocal newest, until
                for _ in range(actions.READS):
                    if self._clock().monotonic > until:
                        newest, until = await self._found(state, task)
                    if self._clock().monotonic <= until or newest != read:
                        return newest == read
                raise LateError(
                    f"nothing was sent: the pod cannot be read within {actions.FRESH:g} s"
                )

            slot.give_back_after(self._scope.limits.slot, self._scope.limits.deadline)
            try:
                answer = await self._send(state, task, action, still)
            except LateError:
                if newest == read:
                    raise
                return newest
            return task.answered(action.way, answer, self._scope)

    async def _found(self, state: PodState, task: Task) -> tuple[Action, float]:
        """Read the pod; return the next action, and until when the read counts (monotonic)."""
        until = self._clock().monotonic + actions.FRESH
        action = task.looked(await self._read(state.key), self._scope, self._clock())
        self._record(state)
        if isinstance(action, Send | Delete | Ask) and not self._leadership.leads():
            action = task.superseded(self._scope)
        return action, until

    async def _read(self, key: Key) -> PodFacts | None:
        """Read a pod as it is now, and the version of its kubelet if that is needed to judge it.

        None: the pod is gone, or another pod has its name.
        """
        pod = await actions.read_pod(self._client, key)
        if pod is None:
            return None
        if depends_on_kubelet(pod):  # The node may have a newer kubelet by now.
            node = pod.spec.node_name or ""
            obeyed = obeys(await actions.read_kubelet(self._client, node))
            now = self._clock().monotonic
            known = {name: each for name, each in self._kubelets.items() if now < each.until}
            self._kubelets = {**known, node: Kubelet(obeyed, now + KUBELET_KNOWN)}
        return self._facts(pod)

    def _facts(self, pod: Pod) -> PodFacts:
        kubelet = self._kubelets.get(pod.spec.node_name or "")
        fresh = kubelet and self._clock().monotonic < kubelet.until
        return PodFacts(pod, self._scope.policy, kubelet if fresh else None)

    async def _send(
        self,
        state: PodState,
        task: Task,
        what: Send,
        still: Check,
    ) -> AttemptResult:
        """Tell a container to exit, if ``still`` says so. Raises KubeError: nothing was sent."""
        self._recorder.attempted(state, task.attempts + 1, what.way)
        if what.way is Way.PORT_FORWARD:
            return await forward(
                self._client,
                state.key,
                what.port,
                what.request,
                self._scope.limits.deadline,
                still=still,
            )
        return await execute(
            self._client, state.key, what.command, self._scope.limits.deadline, still=still
        )

    async def _delete(self, state: PodState, task: Task, version: str) -> Action:
        """Delete a pod that lost its proxy, only in the version that was read."""
        try:
            await actions.delete_pod(self._client, state.key, version)
        except KubeError as error:
            answered = isinstance(error, ApiError)
            # After 404 and 409 the pod is read again: it is gone, or has changed.
            if not (answered and error.code in {404, 409}):
                self._recorder.not_deleted()
            if not answered or error.retry_after is not None:
                raise
            outcome = "not known whether it was deleted" if error.unknown else "not deleted"
            raise KubeError(f"{outcome}: {error}") from error
        return task.deleted()


def _age(pod: Found) -> tuple[float, str, str]:
    return pod.since.timestamp() if pod.since else 0, pod.namespace, pod.name
