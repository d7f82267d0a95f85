"""The repair controller: it finds pods that should have a sidecar and have none, and restarts them.

Every process watches pods and decides. Only the leader restarts pods, sends Events, and counts
unmeshed pods in metrics. `core.rollout` says which pod of a controller is next; one task performs
one restart, and the watch shows its result. Nothing is stored but `RepairController.failed`: a new
process finds the same pods in the cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta

import msgspec

from istio_aux.core import injection_probe, jobs, rollout
from istio_aux.core.applications import Applications, PodOptions
from istio_aux.core.injectors import Mesh
from istio_aux.core.moment import Clock
from istio_aux.core.pod import Pod
from istio_aux.core.policy import RacePolicy, RepairPolicy
from istio_aux.core.repair import Restart
from istio_aux.core.rollout import Defer, Next, Rollout, RolloutLimits, Sidecar, Stop
from istio_aux.core.start import START
from istio_aux.core.suspension import SuspensionLimits
from istio_aux.kube import actions
from istio_aux.kube.client import Client
from istio_aux.kube.clock import system_clock
from istio_aux.kube.errors import ApiError, KubeError, asked
from istio_aux.kube.events import Events
from istio_aux.kube.objects import Key, key_of
from istio_aux.recorder import RepairRecorder
from istio_aux.repair.application_status import ApplicationMesh, application_status
from istio_aux.repair.pod_store import BATCH, PodOwner, PodStore, StoredPod
from istio_aux.repair.suspended_jobs import SuspendedJob, SuspendedJobs, end_tasks
from istio_aux.telemetry import Telemetry

_PAUSE = 1.0  # Seconds between an unhandled exception and the next attempt.

# The only 500 that means that the pod was not evicted has this message, and no reason (k8s@1.36
# eviction.go).
_SEVERAL_BUDGETS = "more than one PodDisruptionBudget"


class Unmeshed(msgspec.Struct, frozen=True):
    """A pod that should have a sidecar and has none, as ``/status`` shows it."""

    namespace: str
    name: str
    owner: str  # Its controller, such as StatefulSet/web.
    reason: str
    since: datetime  # When the pod was created.


class NotRestarted(msgspec.Struct, frozen=True):
    """Why a pod was not restarted."""

    reason: str
    asked: float = 0.0  # Seconds that the API server asks us to wait.
    changed: bool = False  # Whether the pod has changed since it was chosen.


class RepairController:
    """Handler of the watch of pods: decides which ones to restart, and restarts them."""

    def __init__(
        self,
        client: Client,
        namespaces: Mapping[str, Mapping[str, str]],
        telemetry: Telemetry,
        events: Events,
        *,
        policy: RepairPolicy,
        options: PodOptions | None = None,
        limits: RolloutLimits | None = None,
        job_limits: SuspensionLimits | None = None,
        clock: Clock = system_clock,
        restarted: Callable[[Key, Restart], None] = lambda _pod, _why: None,
    ) -> None:
        """Start as a follower. ``namespaces`` has the labels of each namespace, as they change.

        Without ``options`` all pods count. ``restarted`` is called for each pod that was restarted.
        """
        self._client, self._now, self._limits = client, clock, limits or RolloutLimits()
        self._recorder = RepairRecorder(telemetry, events)
        self._woken = asyncio.Event()
        self._store = PodStore(namespaces, policy, self._recorder, self._woken, options)
        self._suspended_jobs = SuspendedJobs(
            client, telemetry, self._recorder, limits=job_limits, clock=clock,
            allowed=policy.race is RacePolicy.RESTART and policy.restart_jobs,
        )  # fmt: skip
        self._off = policy.race is RacePolicy.OFF
        self._restarted, self._restarts = restarted, 0
        self._listed: asyncio.Event | None = None
        self._leading = self._stopping = False
        self._recalled: dict[str, datetime] = {}
        self._active: dict[PodOwner, None] = {}
        self._tasks: dict[PodOwner, asyncio.Task[None]] = {}
        telemetry.unmeshed_pods.set_function(lambda: self.unmeshed_total if self._leading else 0)

    def apply(self, resource: Pod) -> None:
        """The pod exists and looks like this."""
        self._store.apply(resource)

    def delete(self, key: Key, _last: Pod | None) -> None:
        """The pod is gone, or finished."""
        self._store.delete(key)

    def look(self, mesh: Mesh) -> None:
        """Replace what is known of Istio's injectors, and decide again on all pods."""
        if mesh != self._store.mesh:
            self._store.mesh = mesh
            self._store.doubt()

    def relabelled(self, namespace: str) -> None:
        """A namespace was created, relabelled or deleted."""
        self._store.doubt(namespace)

    def ask(self, applications: Applications) -> None:
        """Replace the applications that ask for sidecars, and decide again on all pods."""
        self._store.applications = applications
        self._store.doubt()

    def lead(self, leading: bool) -> None:
        """Start or stop restarting pods."""
        if leading == self._leading:
            return
        self._recalled = dict(self.failed)
        self._leading = self._recorder.leading = leading
        self._store.changed.clear()
        for owner in list(self._active):
            self._leave(owner)
        for pod in self._store.find(Sidecar.MISSING):
            if pod.owner:
                self._store.queue(pod.owner, restart=pod.replica.restart)
        if self._listed:
            self._suspended_jobs.lead(leading)
        self._store.doubt()

    @property
    def failed(self) -> Mapping[str, datetime]:
        """When the new pod of a controller had no sidecar either, by the key of the `PodOwner`.

        The next leader needs it.
        """
        found = dict(self._recalled)
        for owner in self._active:
            if failure := owner.rollout.failure:
                found[owner.key] = datetime.fromtimestamp(failure.noticed, UTC)
        oldest = self._now().date - timedelta(seconds=self._limits.memory)
        return {key: at for key, at in found.items() if at > oldest}

    def recall(self, failed: Mapping[str, datetime]) -> None:
        """Take what an earlier leader left as its `failed`. Call this before `lead`."""
        self._recalled = dict(failed)

    @property
    def watched(self) -> int:
        """How many pods are known."""
        return len(self._store.pods)

    @property
    def unmeshed_total(self) -> int:
        """How many pods should have a sidecar and have none."""
        return len(self._store.find(Sidecar.MISSING))

    @property
    def finished(self) -> bool:
        """Whether everything is decided, and nothing can be done until something changes.

        A pod that may not be disrupted now is tried again; a controller that is given up is not.
        """
        return not (self._store.undecided or self._store.changed or self._tasks) and all(
            isinstance(owner.step, Stop) or (self._left == 0 and not owner.rollout.replacing)
            for owner in self._active
        )

    def candidates(self) -> list[Unmeshed]:
        """The unmeshed pods that may be restarted, the oldest first."""
        return _oldest(pod for pod in self._store.find(Sidecar.MISSING) if pod.replica.restart)

    @property
    def unknown(self) -> int:
        """How many pods without a sidecar may or may not need one."""
        return len(self._store.find(Sidecar.UNKNOWN))

    def unmeshed(self, limit: int | None = None) -> list[Unmeshed]:
        """The pods that should have a sidecar and have none, the oldest first."""
        return _oldest(self._store.find(Sidecar.MISSING), limit)

    def applications(self) -> list[ApplicationMesh]:
        """The status of each application that asks for sidecars by name."""
        unlisted = "" if self._listed and self._listed.is_set() else "pods are not listed yet"
        return application_status(self._store, "race-policy: off" if self._off else unlisted)

    def suspended(self) -> list[SuspendedJob]:
        """The Jobs that are suspended until their pods are gone; only the leader knows any."""
        return self._suspended_jobs.status()

    async def run(self, listed: asyncio.Event) -> None:
        """Decide on pods and restart the next ones, until cancelled.

        ``listed`` is set once all pods are known. Before that, a pod that is not known yet would
        count as the replacement of another.
        """
        self._listed = listed
        # Suspended Jobs are resumed even where no pods are watched any more.
        self._suspended_jobs.lead(self._leading)
        await listed.wait()
        while True:
            self._woken.clear()
            try:
                await self._store.catch_up()
                await self._observe_changed()
                if self._leading and not self._stopping:
                    self._start_next()
                await self._rest()
            except Exception:  # It must not end the process, which also serves admission.
                self._recorder.unhandled("repair")
                await asyncio.sleep(_PAUSE)

    async def stop(self, patience: float) -> None:
        """Start nothing more; give tasks ``patience`` seconds to end, then cancel them."""
        self._stopping = True
        tasks = list(self._tasks.values())
        await asyncio.gather(self._suspended_jobs.stop(patience), end_tasks(tasks, patience))

    async def _observe_changed(self) -> None:
        """Observe all controllers that are queued."""
        pods = 0
        while self._store.changed:
            owner, _ = self._store.changed.popitem()
            if self._leading:
                self._observe(owner)
            pods += 1 + len(owner.pods)
            if pods >= BATCH:
                pods = 0
                await asyncio.sleep(0)

    def _observe(self, owner: PodOwner) -> None:
        """Find out the result of the last restart, and what is next."""
        now, before, replicas = self._now(), owner.step, owner.replicas
        if recalled := self._recalled.pop(owner.key, None):
            owner.rollout = rollout.restored(owner.rollout, recalled)
        owner.rollout = rollout.observed(owner.rollout, replicas, now, self._limits)
        owner.step = step = rollout.next_step(owner.rollout, replicas, now, self._limits)
        if step is None:
            self._leave(owner)
            return
        self._active[owner] = None
        if isinstance(step, Stop) and not isinstance(before, Stop) and not recalled:
            unmeshed = [pod for pod in owner.pods if pod.replica.sidecar is Sidecar.MISSING]
            shows = [pod.key for pod in unmeshed if step.uid in {"", pod.key.uid}]
            self._recorder.stopped(str(owner), shows[0] if shows else None, step.reason)

    def _leave(self, owner: PodOwner) -> None:
        """Nothing is to be done about the controller."""
        self._active.pop(owner, None)
        owner.step, owner.rollout = None, Rollout(served=owner.rollout.served)
        self._store.forget(owner)

    def _start_next(self) -> None:
        """Start a task for each controller that may restart a pod now."""
        now = self._now()
        waiting = {
            owner.key: (owner, owner.step.pod)
            for owner in self._active
            if isinstance(owner.step, Next) and owner not in self._tasks
        }
        active = [owner.rollout for owner in self._active if owner.rollout.replacing]
        rollouts = {key: owner.rollout for key, (owner, _) in waiting.items()}
        for key in rollout.first_in_line(rollouts, active, now, self._limits)[: self._left]:
            owner, replica = waiting[key]
            pod = next(pod for pod in owner.pods if pod.key.uid == replica.uid)
            owner.rollout = rollout.started(owner.rollout, owner.replicas, replica, now)
            restart = self._restart(owner, pod)
            self._tasks[owner] = asyncio.create_task(restart, name=f"restart {owner}")
            self._store.queue(owner)

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
            if isinstance(owner.step, Defer | Stop) and owner.step.until is not None
        }
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(min(until.values(), default=None)):
                await self._woken.wait()
        now = self._now().monotonic
        for owner, then in until.items():
            if then <= now:
                self._store.queue(owner)

    async def _restart(self, owner: PodOwner, pod: StoredPod) -> None:
        """Restart a pod. If the request fails, the watch shows whether it was evicted."""
        try:
            if failed := await self._attempt(owner, pod):
                self._not_restarted(owner, pod, failed)
        except KubeError as error:
            self._restarts += 1  # It may have been restarted, so it counts for the limit.
            self._recorder.failed(pod.key, str(error))
        except Exception:  # One pod's failure must not stop the others.
            self._recorder.unhandled(pod.key)
        finally:
            del self._tasks[owner]
            if owner in self._active:
                self._store.queue(owner)

    async def _attempt(self, owner: PodOwner, pod: StoredPod) -> NotRestarted | None:
        """Read what the decision needs, decide again, and restart the pod."""
        begun = owner.rollout.replacing
        if refused := await self._read_job(owner) or await self._dry_run(pod):
            return refused
        # Nothing is awaited between this decision and the request.
        if self._stopping or owner.rollout.replacing is not begun:
            return NotRestarted("this process does not lead, or it took too long", changed=True)
        bare = pod.bare
        if bare is None or self._store.pods.get(pod.key) is not pod:
            return NotRestarted("the pod is gone, or needs no restart any more", changed=True)
        action = self._store.decide(pod, bare)
        if not isinstance(action, Restart):
            return NotRestarted(action.reason, changed=True)
        owner.rollout = rollout.started(owner.rollout, owner.replicas, pod.replica, self._now())
        if (refused := await self._send(bare, action)) is None:
            self._restarts += 1
            self._recorder.restarted(pod.key, action)
            self._restarted(pod.key, action)
        return refused

    async def _send(self, pod: Pod, restart: Restart) -> NotRestarted | None:
        """Evict the pod, or suspend its Job."""
        try:
            if restart.suspend:
                why = await self._suspended_jobs.suspend(pod)
                return NotRestarted(why) if why else None
            await actions.evict(self._client, key_of(pod), pod.metadata.resource_version)
        except ApiError as error:
            if error.unknown and _SEVERAL_BUDGETS not in str(error):
                raise
            changed = error.code in {404, 409} and not restart.suspend
            return NotRestarted(str(error), asked(error), changed)
        return None

    async def _read_job(self, owner: PodOwner) -> NotRestarted | None:
        if not jobs.is_batch(owner.reference):
            return None
        try:
            job = await actions.read_job(self._client, owner.namespace, owner.reference)
        except KubeError as error:
            why = f"not known whether its Job is finished: {error}"
            return NotRestarted(why, asked(error))
        owner.job = job or jobs.GONE
        return None

    async def _dry_run(self, pod: StoredPod) -> NotRestarted | None:
        """Check that a new pod of an application that asks for sidecars would get one.

        That depends on our own admission, too, which the API server does not call yet right after
        the start of this process.
        """
        bare = pod.bare
        if bare is None or self._store.judged(bare) is bare:
            return None
        # Only the label that our admission adds matters here.
        metadata = {"labels": bare.labels, "annotations": {START: "off"}}
        containers = [injection_probe.CONTAINER]
        new = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"generateName": injection_probe.NAME, **metadata},
            "spec": {"automountServiceAccountToken": False, "containers": containers},
        }
        try:
            body = msgspec.json.encode(new)
            answer = await actions.dry_run_pod(self._client, pod.key.namespace, body)
        except KubeError as error:
            why = f"not known whether a new pod would get a sidecar: {error}"
            return NotRestarted(why, asked(error))
        found = injection_probe.created(answer)
        if found.injected:
            return None
        return NotRestarted(f"a new pod would get no sidecar: {found.why}")

    def _not_restarted(self, owner: PodOwner, pod: StoredPod, failed: NotRestarted) -> None:
        """Record why a pod was not restarted, and store it unless something newer is known."""
        why, now = failed.reason, self._now()
        if failed.changed:
            self._recorder.superseded(pod.key, why)
        else:
            found = pod.reason if pod.replica.sidecar is Sidecar.MISSING else ""
            self._recorder.refused(pod.key, why, found)
        before, asked = owner.rollout, failed.asked
        if before.replacing and before.replacing.pod.uid == pod.key.uid:
            owner.rollout = rollout.refused(before, why, now, self._limits, asked=asked)


def _oldest(pods: Iterable[StoredPod], limit: int | None = None) -> list[Unmeshed]:
    found = sorted(pods, key=lambda pod: (pod.replica.created, pod.key))
    return [_unmeshed(pod) for pod in found[:limit]]


def _unmeshed(pod: StoredPod) -> Unmeshed:
    key, owner, reason = pod.key, pod.owner, pod.reason
    if owner and isinstance(owner.step, Defer | Stop) and pod.replica.restart:
        reason = f"{reason}; {owner.step.reason}"
    since = datetime.fromtimestamp(pod.replica.created, UTC)
    return Unmeshed(key.namespace, key.name, str(owner or ""), reason, since)
