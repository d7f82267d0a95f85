"""The repair controller: it finds pods that should have a sidecar and have none, and restarts them.

Every process watches pods and decides. Only the leader restarts pods, sends Events, and counts
unmeshed pods in metrics. `repair.rollout` says which pod of a controller is next; one task performs
one restart, and the watch shows its result. What a new process cannot find in the cluster is stored
before a restart: `RepairController.failed` and `replaced`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from datetime import UTC, datetime

from istio_aux.injector import probe_rules
from istio_aux.injector.capture import not_ready
from istio_aux.injector.probe import read_agents, read_cni
from istio_aux.kube import actions
from istio_aux.kube.client import Client
from istio_aux.kube.clock import now, system_clock
from istio_aux.kube.errors import ApiError, KubeError, LateError, jittered, retry_after
from istio_aux.kube.events import Events
from istio_aux.kube.lease import Leadership
from istio_aux.kube.objects import Key
from istio_aux.model import owners
from istio_aux.model.annotations import START
from istio_aux.model.applications import PodOptions
from istio_aux.model.documents import Cooperative, run_now
from istio_aux.model.election import Replaced
from istio_aux.model.found import Found
from istio_aux.model.moment import Clock
from istio_aux.model.pod import Pod
from istio_aux.model.policy import RacePolicy, RepairPolicy
from istio_aux.model.text import listed
from istio_aux.repair import rollout
from istio_aux.repair.recorder import RepairRecorder
from istio_aux.repair.reports import ApplicationMesh, application_status, oldest
from istio_aux.repair.rules import Candidate, ReportUnmeshed, Restart
from istio_aux.repair.store import BATCH, NotRestartedError, PodOwner, PodStore, StoredPod
from istio_aux.tasks import end_tasks, endless_task, running, wait
from istio_aux.telemetry import Telemetry

_READ = 30.0  # Seconds between two reads of the settings of Istio's CNI.
_PAUSE = 1.0  # Seconds between an unhandled exception and the next attempt.

# Message of the only 500 that means that the pod was not evicted; it has no reason (k8s@1.36
# eviction.go).
_SEVERAL_BUDGETS = "more than one PodDisruptionBudget"


class RepairController:
    """Restarts pods.

    Attributes:
        store: the pods, and the decisions on them; the handler of their watch.
    """

    def __init__(
        self,
        client: Client,
        namespaces: Mapping[str, Mapping[str, str]],
        telemetry: Telemetry,
        events: Events,
        *,
        policy: RepairPolicy,
        terminating: Collection[str] = (),
        options: PodOptions | None = None,
        limits: rollout.RolloutLimits | None = None,
        clock: Clock = system_clock,
        restarted: Callable[[Key, Restart], None] = lambda _pod, _why: None,
        leadership: Leadership,
    ) -> None:
        """Prepare `run`. ``namespaces`` has the labels of each namespace, as they change.

        No pod is restarted in those that are ``terminating``. ``leadership`` stores `failed` and
        `replaced` for the next leader.
        """
        self._client, self._now, self._limits = client, clock, limits or rollout.RolloutLimits()
        self._telemetry, self._recorder = telemetry, RepairRecorder(telemetry, events)
        self._woken = asyncio.Event()
        self.store = PodStore(
            namespaces,
            policy,
            self._recorder,
            self._woken,
            options,
            terminating=terminating,
            clock=clock,
            settled=self._limits.settled,
        )
        self._off = policy.race is RacePolicy.NONE
        self._restarted = restarted
        self._restarts = 0
        self._leadership = leadership
        self._listed: asyncio.Event | None = None
        self._leading = self._stopping = False
        self._recalled = rollout.Recalled(self._limits, clock)
        self._served: dict[str, float] = {}  # When a pod in a namespace was last restarted.
        self._active: dict[PodOwner, None] = {}
        self._tasks: dict[PodOwner, asyncio.Task[None]] = {}
        telemetry.gauge(
            "unmeshed_pods",
            "Pods that should be in the mesh and are not.",
        ).set_function(lambda: self.store.count(rollout.Sidecar.MISSING) if self._leading else 0)
        leadership.follow(self.lead)

    def lead(self, leading: bool) -> None:
        """Start or stop restarting pods."""
        self._leading = self._recorder.leading = leading
        # Restarts under way are observed in any case: this process may lead again.
        self._queue_all()
        self.store.invalidate()

    @property
    def failed(self) -> Mapping[str, datetime]:
        """By the key of a `PodOwner`, when its replacement without a sidecar was made."""
        now = self._now().monotonic
        failures = self._recalled.failures
        for owner in self._active:
            if (failure := owner.rollout.failure) and now < failure.until:
                failures[owner.key] = max(
                    failures.get(owner.key, failure), failure, key=lambda each: each.created
                )
        return {key: datetime.fromtimestamp(each.created, UTC) for key, each in failures.items()}

    @property
    def replaced(self) -> Mapping[str, Replaced]:
        """By the key of a `PodOwner`, its pod that is being replaced; the newest is last."""
        own = [
            (replacing.since, owner.key, replacing.old)
            for owner in self._active
            if owner.announced and (replacing := owner.rollout.replacing)
        ]
        replaced = self._recalled.replaced
        for _, key, old in sorted(own, key=lambda each: each[:2]):
            replaced.setdefault(key, old)  # What another leader has stored since is newer.
        return replaced

    def recall(
        self,
        failed: Mapping[str, datetime],
        replaced: Mapping[str, Replaced],
        *,
        lost: bool = False,
    ) -> None:
        """Take the Lease's checkpoint: the last leader's, or one that this leader did not know.

        ``lost``: the Lease may lack what this process knows, so this process forgets nothing.
        """
        if self._leading or lost:
            known = self.replaced
            replaced = {
                **self._recalled.replaced,
                **{k: v for k, v in replaced.items() if k not in known},
            }
        self._recalled.update(failed, replaced)

    @property
    def finished(self) -> bool:
        """Whether everything is decided, and nothing can be done until something changes."""
        return (
            self.store.captures.until is None
            and self.store.cni.read
            and not (self.store.undecided or self.store.changed or self._tasks)
            and all(
                isinstance(owner.step, rollout.Stop)
                or (self._left == 0 and not owner.rollout.replacing)
                for owner in self._active
            )
        )

    def candidates(self) -> list[Found]:
        """The unmeshed pods that may be restarted, the oldest first."""
        return run_now(
            oldest(pod for pod in self.store.find(rollout.Sidecar.MISSING) if pod.replica.restart)
        )

    def unmeshed(self, limit: int | None = None) -> Cooperative[list[Found]]:
        """The pods that should have a sidecar and have none, the oldest first."""
        return oldest(self.store.find(rollout.Sidecar.MISSING), limit)

    def applications(self) -> list[ApplicationMesh]:
        """The status of each application that asks for sidecars by name."""
        unlisted = "" if self._listed and self._listed.is_set() else "pods are not listed yet"
        return application_status(self.store, "race-policy: none" if self._off else unlisted)

    async def run(self, listed: asyncio.Event) -> None:
        """Decide on pods and restart the next pods, until cancelled.

        ``listed`` is set once all pods are known. Before that, a pod that is not known yet would
        count as the replacement of another.
        """
        self._listed = listed
        await listed.wait()
        self._queue_all()
        async with running(endless_task("cni", self._follow_cni, self._telemetry.unhandled)):
            while True:
                self._woken.clear()
                try:
                    await self.store.catch_up()
                    await self._observe_changed()
                    if self._leading and not self._stopping:
                        self._start_next()
                    await self._rest()
                except Exception:  # An error must not end the process, which also serves admission.
                    self._recorder.unhandled("repair")
                    await asyncio.sleep(_PAUSE)

    async def _follow_cni(self) -> None:
        """Read the settings of Istio's CNI again and again, where it has agents."""
        while True:
            cni = self.store.cni
            cni.unread.clear()
            names = sorted(cni.namespaces)
            cni.configure({name: await read_cni(self._client, name) for name in names})
            await wait(cni.unread, jittered(_READ))

    async def stop(self, patience: float) -> None:
        """Start no more restarts, and end those under way within ``patience`` seconds."""
        self._stopping = True
        await end_tasks([*self._tasks.values()], patience)

    def _queue_all(self) -> None:
        """Queue all controllers about which something is known, or to be done."""
        for key, owner in self.store.owners.items():
            if (
                owner in self._active
                or key in self._recalled
                or any(pod.replica.restart for pod in owner.pods)
            ):
                self.store.queue(owner)

    async def _observe_changed(self) -> None:
        pods = 0
        while self.store.changed:
            owner, _ = self.store.changed.popitem(last=False)
            if self._leading or owner in self._active:
                self._observe(owner)
            pods += 1 + len(owner.pods)
            if pods >= BATCH:
                pods = 0
                await asyncio.sleep(0)

    def _observe(self, owner: PodOwner) -> None:
        """Find out the result of the last restart, and what is next."""
        now = self._now()
        replicas = owner.replicas
        if self._leading:
            self._restore(owner)
        owner.rollout = rollout.observed(
            owner.rollout,
            replicas,
            now,
            self._limits,
            owner.gone,
        )
        owner.step = step = rollout.next_step(owner.rollout, replicas, now, self._limits)
        if step is None or (owner.rollout.idle and not self._leading):
            self._leave(owner)
            return
        self._active[owner] = None
        if isinstance(step, rollout.Next) and owner.waiting is None:
            owner.waiting = now.monotonic
        if not isinstance(step, rollout.Stop):
            owner.reported = False
        elif self._leading and not owner.reported:
            owner.reported = True
            shows = (
                pod.key
                for pod in owner.pods
                if pod.sidecar is rollout.Sidecar.MISSING and step.uid in {"", pod.key.uid}
            )
            self._recorder.stopped(str(owner), next(shows, None), step.reason)

    def _restore(self, owner: PodOwner) -> None:
        """Take over what an earlier leader left about the controller."""
        if self.store.owners.get(owner.key) is not owner:
            return  # The store dropped it with its last pod; a new owner with its key takes this.
        for record in self._recalled.take(owner.key):
            owner.rollout = rollout.restored(owner.rollout, owner.replicas, self._now(), record)
            owner.announced = True
            # The leader that saw the failure has reported it.
            owner.reported = owner.reported or isinstance(record, rollout.Failure)

    def _leave(self, owner: PodOwner) -> None:
        self._active.pop(owner, None)
        owner.step = None
        owner.rollout = rollout.IDLE
        owner.waiting = None
        owner.reported = False
        self.store.forget(owner)

    def _start_next(self) -> None:
        """Start a task for each controller that may restart a pod now."""
        now = self._now()
        waiting = {
            owner.key: (owner, owner.step.pod)
            for owner in self._active
            if isinstance(owner.step, rollout.Next) and owner not in self._tasks
        }
        started = {
            owner.key: owner.rollout.replacing.since
            for owner in self._active
            if owner.rollout.replacing
        }
        since = {key: owner.waiting or now.monotonic for key, (owner, _) in waiting.items()}
        spaces = {owner.namespace for owner in self._active}
        self._served = {name: at for name, at in self._served.items() if name in spaces}
        order = rollout.first_in_line(since, started, self._served, now, self._limits)
        for key in order[: self._left]:
            owner, replica = waiting[key]
            pod = next(pod for pod in owner.pods if pod.key.uid == replica.uid)
            owner.rollout = rollout.started(
                owner.rollout,
                owner.replicas,
                replica,
                now,
                sent=False,
            )
            owner.waiting = None
            owner.announced = False
            self._served[owner.namespace] = now.monotonic
            self._tasks[owner] = asyncio.create_task(
                self._restart(owner, pod), name=f"restart {owner}"
            )
            self.store.queue(owner)

    @property
    def _left(self) -> int | None:
        """How many more pods may be restarted; None: any number."""
        limit = self._limits.restarts
        return None if limit is None else max(0, limit - self._restarts - len(self._tasks))

    async def _rest(self) -> None:
        """Wait until something changes, or until time alone may change what is next."""
        until = {
            owner: owner.step.until
            for owner in self._active
            if isinstance(owner.step, rollout.Defer | rollout.Stop) and owner.step.until is not None
        }
        first = min(filter(None, (*until.values(), self.store.captures.until)), default=None)
        await wait(self._woken, None if first is None else first - self._now().monotonic)
        now = self._now().monotonic
        for owner, then in until.items():
            if then <= now:
                self.store.queue(owner)

    async def _restart(self, owner: PodOwner, pod: StoredPod) -> None:
        """Restart a pod. If the request fails, the watch shows whether it was evicted."""
        try:
            await self._attempt(owner, pod)
        except NotRestartedError as error:
            self._refused(owner, pod, error)
        except KubeError as error:
            self._restarts += 1  # The pod may have been evicted, so it counts for the limit.
            self._recorder.failed(pod.key, str(error))
        except Exception:  # One pod's failure must not stop the others.
            self._recorder.unhandled(pod.key)
        finally:
            del self._tasks[owner]
            if owner in self._active:
                self.store.queue(owner)

    async def _attempt(self, owner: PodOwner, pod: StoredPod) -> None:
        """Read what the decision needs, store it for the next leader, and restart the pod."""
        candidate = pod.candidate
        replacement = owner.rollout.replacing
        if candidate is None:
            raise NotRestartedError(pod.action.reason, changed=True)
        labels = candidate.injection.labels
        if pod.labelled:
            await self._dry_run(owner.namespace, labels)
        with _needed("not stored for the next leader, or its pods are not known", changed=True):
            await self._compare(owner, labels)
            owner.announced = True
            await self._leadership.save()
            if isinstance(pod.action, Restart) and pod.action.ambient:
                await self._ready_to_capture(candidate.node)
            await self._compare(owner, labels)
        # Nothing is awaited between here and the request.
        candidate, action = pod.candidate, pod.action
        if why := next(self._objections(owner, pod, replacement), ""):
            raise NotRestartedError(why, changed=True)
        if candidate is None or not isinstance(action, Restart):
            raise NotRestartedError(action.reason, changed=True)
        owner.rollout = rollout.started(owner.rollout, owner.replicas, pod.replica, self._now())
        try:
            await actions.evict(self._client, pod.key, candidate.version)
        except ApiError as error:
            if error.unknown and _SEVERAL_BUDGETS not in str(error):
                raise
            raise NotRestartedError(
                str(error), retry_after(error), changed=error.code in {404, 409}
            ) from error
        owner.rollout = rollout.accepted(owner.rollout)
        self._restarts += 1
        self._recorder.restarted(pod.key, action)
        self._restarted(pod.key, action)

    def _objections(
        self, owner: PodOwner, pod: StoredPod, replacement: rollout.Replacement | None
    ) -> Iterator[str]:
        """Yield why the pod must not be restarted now although it was chosen."""
        if self._stopping or not (self._leading and self._leadership.leads()):
            yield "this process stops, or does not lead"
        known = frozenset(each.key.uid for each in owner.pods)
        if replacement is None or owner.rollout.replacing is not replacement:
            yield "it took too long"
        elif replacement.known != known or any(
            each.deleting and each.key.uid not in replacement.ending for each in owner.pods
        ):
            yield "its controller has other pods now, or one that is being deleted"
        if self.store.undecided:
            yield "what decides has changed"
        if self.store.pods.get(pod.key) is not pod:
            yield "it is gone, or has finished"

    async def _dry_run(self, namespace: str, labels: Mapping[str, str]) -> None:
        """Check that a new pod of an application that gets its label from us would get a sidecar.

        Right after the start of this process the API server does not call our admission yet.
        """
        new = probe_rules.dry_run_pod(namespace, labels, {START: "none"})
        with _needed("not known whether a new pod would get a sidecar"):
            result = probe_rules.created(await actions.dry_run_pod(self._client, namespace, new))
        if not result.injected:
            raise NotRestartedError(f"a new pod would get no sidecar: {result.why}")

    async def _ready_to_capture(self, node: str) -> None:
        """Check that Istio can capture a new pod on this node, and is as the decision found it."""
        with _needed("not known whether Istio can capture a new pod"):
            agents, now = await read_agents(self._client, node, self.store.selected)
        if lacking := not_ready(agents, node):
            raise NotRestartedError(f"not ready on node {node}: {listed(lacking)}")
        if now.on(node) != self.store.cni.on(node):
            self.store.cni.unread.set()
            raise NotRestartedError(f"istio-cni on node {node} has changed", changed=True)

    async def _compare(self, owner: PodOwner, labels: Mapping[str, str]) -> None:
        """Raise an error unless the API server lists the pods of a controller that the watch shows.

        A dead watch may be noticed only after a minute.
        """
        selection = {
            **actions.NOT_TERMINAL,
            "labelSelector": ",".join(
                f"{key}={value}" for key, value in labels.items() if key not in owners.EACH_ITS_OWN
            ),
        }
        for _ in range(actions.READS):
            asked_at = now()
            pods = await actions.list_kept(
                self._client,
                actions.collection("v1", "pods", owner.namespace),
                Pod,
                selection,
                Candidate.sibling,
            )
            # The list lacks pods with other labels, and finished ones.
            for key in owner.unlisted(pods):
                pod = await actions.read_pod(self._client, key)
                if pod is None or Candidate.of(pod).ended:
                    how = "is gone" if pod is None else "has finished"
                    raise NotRestartedError(f"{key.name} of its controller {how}", changed=True)
            if now() <= asked_at + actions.FRESH:
                return
        raise LateError(f"the pods of its controller cannot be read within {actions.FRESH:g} s")

    def _refused(self, owner: PodOwner, pod: StoredPod, error: NotRestartedError) -> None:
        """Record why a pod was not restarted, and store it unless something newer is known."""
        why = str(error)
        replacing = owner.rollout.replacing
        unmeshed = self.store.pods.get(pod.key) is pod and pod.sidecar is rollout.Sidecar.MISSING
        action = pod.action if isinstance(pod.action, Restart | ReportUnmeshed) else None
        self._recorder.refused(pod.key, why, action if unmeshed else None, changed=error.changed)
        if replacing and replacing.old.uid == pod.key.uid:
            owner.rollout = rollout.refused(
                owner.rollout,
                why,
                self._now(),
                self._limits,
                retry_after=error.retry_after,
            )


@contextlib.contextmanager
def _needed(unknown: str, *, changed: bool = False) -> Generator[None]:
    """Raise `NotRestartedError` if a request in the body fails; ``unknown`` begins its text."""
    try:
        yield
    except KubeError as error:
        raise NotRestartedError(
            f"{unknown}: {error}", retry_after(error), changed=changed
        ) from error
