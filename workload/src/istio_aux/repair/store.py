"""What is known: all pods that are watched, their controllers, and what earlier leaders left.

`injection.expected` says which pods should have a sidecar, `rules.decide` what to do about one
that has none. An event of a pod decides on that pod alone. What concerns many pods puts them in
doubt, and they are decided on in batches.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec import structs

from istio_aux.injector.injection import Expectation, expected
from istio_aux.injector.rules import Mesh
from istio_aux.kube.clock import system_clock
from istio_aux.kube.objects import Key, key_of, shared
from istio_aux.model import owners
from istio_aux.model.annotations import INJECT, INJECTED, MIRROR
from istio_aux.model.answers import ApplicationMesh, Unmeshed
from istio_aux.model.applications import (
    EVERY,
    Applications,
    PodOptions,
    application_of,
    left_out,
    new_pod,
    parse,
)
from istio_aux.model.election import FAILED, Replaced
from istio_aux.model.moment import Clock
from istio_aux.model.pod import Container, OwnerReference, Pod
from istio_aux.model.policy import Application, RepairPolicy
from istio_aux.repair import rollout
from istio_aux.repair import rules as repair
from istio_aux.repair.recorder import RepairRecorder
from istio_aux.repair.rollout import (
    Defer,
    Failure,
    Replica,
    Rollout,
    RolloutLimits,
    Sidecar,
    Step,
    Stop,
)
from istio_aux.repair.rules import RepairAction, ReportUnmeshed
from istio_aux.start.plan import admitted


class Recalled:
    """Failures and replaced pods, by the key of the `PodOwner`. Both are bounded."""

    def __init__(self, limits: RolloutLimits, clock: Clock) -> None:
        self._limits, self._now = limits, clock
        self._failures: dict[str, Failure] = {}
        self._replaced: dict[str, Replaced] = {}
        self._read = 0.0  # When `_replaced` was read, by the monotonic clock.

    def __contains__(self, key: str) -> bool:
        return key in self._failures or key in self._replaced

    def update(self, failed: Mapping[str, datetime], replaced: Mapping[str, Replaced]) -> None:
        """Take what the Lease says now.

        What is ``replaced`` is a state, so the last one counts. A failure is kept for its time: a
        leader that knows of it may be unable to say so.
        """
        now = self._now()
        for key, created in failed.items():
            failure, known = rollout.recalled(created, now, self._limits), self._failures.get(key)
            if known is None or known.created < failure.created:
                self._failures[key] = failure
        newest = sorted(self.failures.items(), key=lambda item: (item[1].created, item[0]))
        self._failures = dict(newest[-FAILED:])
        self._replaced, self._read = dict(replaced), now.monotonic

    def take(self, key: str) -> Iterator[Failure | Replaced]:
        """Yield what is known of a controller, and forget it."""
        if key in self:
            found = self.failures.get(key), self.replaced.get(key)
            self._failures.pop(key, None)
            self._replaced.pop(key, None)
            yield from filter(None, found)

    @property
    def failures(self) -> dict[str, Failure]:
        """The restarts that did not help, if that is not too long ago."""
        now = self._now().monotonic
        return {key: failure for key, failure in self._failures.items() if now < failure.until}

    @property
    def replaced(self) -> dict[str, Replaced]:
        """The pods that were being replaced, if that is not too long ago."""
        late = self._now().monotonic >= self._read + self._limits.unreplaced
        return {} if late else dict(self._replaced)


_GONE = 10  # Pods of a StatefulSet that are remembered: those that went last.
BATCH = 50  # Pods that are decided on before other tasks, such as reviews, get a turn.

_UNDECIDED = Replica("", "", Sidecar.UNKNOWN)
_UNKNOWN = Expectation(expected=None, reason="Istio's injectors are not known yet")

_NONE = msgspec.Raw()  # Any other keeps the whole text in memory that it was decoded from.

# Annotations that decide; others may be as long as the whole pod.
_ANNOTATIONS = (INJECT, INJECTED, MIRROR)
_MOST_OWNERS = 2  # Controllers that are kept: a pod with two has none (`owners.controller`).
_LONGEST = 16  # Characters of one that are kept: a longer value is no value.


@dataclass(slots=True, eq=False)
class StoredPod:
    """A pod, and the decision about it."""

    key: Key
    replica: Replica = _UNDECIDED
    reason: str = ""
    owner: PodOwner | None = None
    application: str = ""
    running: bool = False
    # The pod itself, reduced. None if only a change of the pod can make it unmeshed.
    bare: Pod | None = None


@dataclass(slots=True, eq=False)
class PodOwner:
    """A controller of pods. Nobody checks that its UID is that of an object in the namespace."""

    namespace: str
    reference: OwnerReference
    pods: list[StoredPod] = field(default_factory=list[StoredPod])
    job: owners.Job | None = None  # The batch Job, read before a pod of it is restarted.
    rollout: Rollout = field(default_factory=Rollout)
    step: Step | None = None  # None: none of its pods is to be restarted.
    waiting: float | None = None  # Since when it waits for its turn (monotonic).
    reported: bool = False  # Whether it was reported that its restarts have stopped.
    # A StatefulSet's pods whose name is not back yet, and since when (monotonic).
    gone: dict[str, float] = field(default_factory=dict[str, float])

    def __str__(self) -> str:
        return f"{self.reference.kind}/{self.reference.name}"

    @property
    def key(self) -> str:
        """Identifies it: its UID, among the objects of its namespace."""
        return f"{self.namespace}/{self.reference.uid}"

    @property
    def replicas(self) -> list[Replica]:
        """Its pods as the rollout sees them."""
        return [pod.replica for pod in self.pods]


class PodStore:
    """Pods, their controllers and decisions; ``changed`` has controllers to look at again."""

    def __init__(
        self,
        namespaces: Mapping[str, Mapping[str, str]],
        policy: RepairPolicy,
        recorder: RepairRecorder,
        woken: asyncio.Event,
        options: PodOptions | None = None,
        *,
        clock: Clock = system_clock,
    ) -> None:
        """Start empty; ``woken`` is set when something is to be decided, or is queued."""
        self._now = clock
        self._namespaces, self._policy = namespaces, policy
        self._options = options or PodOptions()
        self._recorder, self._woken = recorder, woken
        self.owners: dict[str, PodOwner] = {}
        self._doubted: set[str | None] = set()
        self._deciding = False
        self.mesh, self.applications = Mesh(), Applications()
        self.pods: dict[Key, StoredPod] = {}
        self.changed = OrderedDict[PodOwner, None]()

    def apply(self, pod: Pod) -> None:
        """The pod exists and looks like this."""
        key = key_of(pod)
        stored = self.pods.setdefault(key, StoredPod(key))
        self._join(stored, owners.controller(pod))
        stored.application = shared(application_of(pod))
        stored.running = pod.status.phase == "Running"
        # A pod that is skipped whatever the injectors do matters again only if it changes itself.
        # `inject-selector` may need one that opted out once its namespace is selected.
        possible = admitted(pod, self.applications, self._options.inject)
        action = repair.decide(possible, _UNKNOWN, self._policy, live=None)
        if isinstance(action, repair.Skip):
            stored.bare = None
            self._recorder.forget(key)
            self._update(stored, rollout.replica(pod, action))
        else:
            stored.bare = _reduced(pod)
            self.decide(stored, stored.bare)

    def delete(self, key: Key) -> None:
        """The pod is gone, or finished."""
        if stored := self.pods.pop(key, None):
            self._recorder.forget(key)
            self._join(stored, None)

    def find(self, sidecar: Sidecar) -> list[StoredPod]:
        """All pods with, or without, a sidecar like this."""
        return [pod for pod in self.pods.values() if pod.replica.sidecar is sidecar]

    def decide(self, stored: StoredPod, bare: Pod) -> RepairAction:
        """Decide on a pod by all that is known now, and store the decision.

        A batch Job counts as unfinished until it is read, right before a pod of it is restarted: a
        thousand Jobs need not be read because of a few.
        """
        judged = self.judged(bare)
        if why := left_out(bare, self._options.pods, self.applications):
            expectation = Expectation(expected=False, reason=why)
        else:
            expectation = self.expect(judged)
        live = self.mesh.live(expectation.configuration) if expectation.expected else None
        owner = stored.owner if stored.owner and stored.owner.job else None
        action = repair.decide(
            judged, expectation, self._policy, live=live, job=owner.job if owner else None,
            meshed=owner is not None
            and any(pod.replica.sidecar is Sidecar.PRESENT for pod in owner.pods),
        )  # fmt: skip
        stored.reason = action.reason
        self._update(stored, rollout.replica(bare, action))
        if isinstance(action, ReportUnmeshed) and action.unmeshed:
            self._recorder.unmeshed(stored.key, action.reason, lasts=not action.waits)
        return action

    def judged(self, pod: Pod) -> Pod:
        """The pod as admission would make it now; the same object if it would not change it."""
        namespace = self._namespaces.get(pod.metadata.namespace, {})
        options = self._options
        looked_after = options.namespaces.matches(namespace) or self.applications.has(pod)
        return admitted(pod, self.applications, options.inject if looked_after else None)

    def doubt(self, namespace: str | None = None) -> None:
        """Decide again on the pods of a namespace, or on all, when `catch_up` runs next."""
        self._doubted.add(namespace)
        self._woken.set()

    @property
    def undecided(self) -> bool:
        """Whether pods are in doubt."""
        return bool(self._doubted) or self._deciding

    async def catch_up(self) -> None:
        """Decide again on all pods that are in doubt, in batches."""
        while self._doubted:
            doubted, self._doubted = self._doubted, set[str | None]()
            self._deciding = True
            everywhere = None in doubted
            pods = [p for p in self.pods.values() if everywhere or p.key.namespace in doubted]
            for number, stored in enumerate(pods):
                if number % BATCH == 0:
                    await asyncio.sleep(0)
                if stored.bare is None or self.pods.get(stored.key) is not stored:
                    continue
                try:
                    self.decide(stored, stored.bare)
                except Exception:  # One pod's failure must not stop the others.
                    self._recorder.unhandled(stored.key)
        self._deciding = False

    def queue(self, owner: PodOwner, *, restart: bool = True) -> None:
        """Queue a controller that has a pod to ``restart``, or had one."""
        if restart or owner.step is not None:
            self.changed[owner] = None
            self._woken.set()

    def expect(self, pod: Pod) -> Expectation:
        """Whether the pod, as it would leave our admission, would get a sidecar now."""
        if not self.mesh.known:
            return _UNKNOWN
        labels = self._namespaces.get(pod.metadata.namespace)
        return expected(pod, labels, self.mesh.hooks, self.mesh.policies)

    def forget(self, owner: PodOwner) -> None:
        """Remove a controller that has no pods, unless it was made again since."""
        if not owner.pods and self.owners.get(owner.key) is owner:
            del self.owners[owner.key]

    def _update(self, stored: StoredPod, replica: Replica) -> None:
        if replica != stored.replica:
            stored.replica = replica
            if stored.owner:
                self.queue(stored.owner, restart=replica.restart)

    def _join(self, stored: StoredPod, reference: OwnerReference | None) -> None:
        """The pod has this controller now, and no longer another one."""
        old, uid = stored.owner, reference.uid if reference else ""
        if uid == (old.reference.uid if old else ""):
            return
        if old:
            stored.owner = None
            old.pods.remove(stored)
            name, numbered = stored.key.name, stored.replica.ordinal is not None
            if numbered and all(pod.key.name != name for pod in old.pods):
                old.gone[name] = self._now().monotonic
                # A tenant may make pods of any name.
                while len(old.gone) > _GONE:
                    del old.gone[next(iter(old.gone))]
            if old.rollout.idle:
                self.forget(old)
            self.queue(old, restart=stored.replica.restart)
        if reference and uid:
            new = PodOwner(stored.key.namespace, reference)
            stored.owner = owner = self.owners.setdefault(new.key, new)
            owner.pods.append(stored)
            owner.gone.pop(stored.key.name, None)


def _reduced(pod: Pod) -> Pod:
    """The pod without what decides nothing."""
    every = pod.metadata.annotations or {}
    notes = {name: every[name][:_LONGEST] for name in _ANNOTATIONS if name in every}
    labels = {shared(name): shared(value) for name, value in pod.labels.items()}
    owners = tuple(owner for owner in pod.metadata.owner_references or () if owner.controller)
    metadata = structs.replace(
        pod.metadata, labels=labels, annotations=notes, owner_references=owners[:_MOST_OWNERS]
    )
    containers, init = _names(pod.containers), _names(pod.init_containers)
    spec = structs.replace(
        pod.spec, containers=containers, init_containers=init, resources=_NONE, overhead=_NONE
    )
    return structs.replace(pod, metadata=metadata, spec=spec)


def _names(containers: Iterable[Container]) -> tuple[Container, ...]:
    return tuple(
        structs.replace(container, args=None, env=None, ports=None, resources=_NONE)
        for container in containers
    )


_log = logging.getLogger(__name__)

POLL = 2.0  # Seconds between two reads of the file.
_NAMED = 3  # Pods that a reason names; the others are counted.


async def follow_applications(
    path: Path, changed: Callable[[Applications], None], interval: float = POLL
) -> None:
    """Pass the applications that the file names to ``changed``, now and after each change.

    A file that does not exist names none; one that cannot be read changes nothing.
    """
    applications = Applications()
    known: str | None = ""
    while True:
        text = _read(path, report=known is not None)
        if text is not None and text != known:
            found, problems = parse(text)
            for problem in problems:
                _log.error("%s: %s", path, problem, extra={"event": "applications"})
            if found != applications:
                applications = found
                changed(found)
        known = text
        await asyncio.sleep(interval)


def _read(path: Path, *, report: bool) -> str | None:
    """The text of the file; None if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        if report:
            _log.error("%s", error, extra={"event": "applications", "outcome": "kept"})
        return None


def application_status(store: PodStore, unlisted: str = "") -> list[ApplicationMesh]:
    """Report on each application that is named, and on all of a model together, sorted.

    ``unlisted`` says why the pods are not known; empty if they are.
    """
    found = defaultdict[Application, list[StoredPod]](list)
    for pod in store.pods.values():
        if pod.application and not pod.replica.deleting:
            for name in (pod.application, EVERY):
                found[Application(pod.key.namespace, name)].append(pod)
    every = {Application(model, EVERY) for model in store.applications.models}
    asking = sorted(store.applications.named | every, key=lambda each: (each.namespace, each.name))
    return [_status(store, each, found[each], unlisted) for each in asking]


def _status(
    store: PodStore, asking: Application, pods: Sequence[StoredPod], unlisted: str
) -> ApplicationMesh:
    expectation, mesh = store.expect(new_pod(asking)), store.mesh
    configuration, live, why = expectation.configuration, expectation.expected, expectation.reason
    if live:
        live = mesh.live(configuration)
        whys = (each.why for each in mesh.injectors if each.configuration == configuration)
        why = next(whys, "its injector is not among those that are watched")
    roots = (
        hook.control_plane.namespace
        for hook in mesh.hooks
        if (hook.configuration, hook.webhook) == (configuration, expectation.webhook)
    )
    meshed, meshed_why = (None, unlisted) if unlisted else _meshed(pods)
    return ApplicationMesh(
        namespace=asking.namespace, name=asking.name, live=live, live_reason=why,
        revision=expectation.revision, root_namespace=next(roots, ""),
        meshed=meshed, meshed_reason=meshed_why,
    )  # fmt: skip


def _meshed(pods: Sequence[StoredPod]) -> tuple[bool | None, str]:
    without = sorted(pod.key.name for pod in pods if pod.replica.sidecar is not Sidecar.PRESENT)
    if without:
        more = f" and {len(without) - _NAMED} more" if len(without) > _NAMED else ""
        return False, f"without a sidecar: {', '.join(without[:_NAMED])}{more}"
    if not any(pod.running for pod in pods):
        return None, "it has no pod that runs"
    return True, f"{len(pods)} of {len(pods)} pods have a sidecar"


def oldest(pods: Iterable[StoredPod], limit: int | None = None) -> list[Unmeshed]:
    """Return so many of the pods, the oldest first, as ``/status`` shows them."""
    found = sorted(pods, key=lambda pod: (pod.replica.created, pod.key))
    return [_unmeshed(pod) for pod in found[:limit]]


def _unmeshed(pod: StoredPod) -> Unmeshed:
    key, owner, reason = pod.key, pod.owner, pod.reason
    if owner and isinstance(owner.step, Defer | Stop) and pod.replica.restart:
        reason = f"{reason}; {owner.step.reason}"
    since = datetime.fromtimestamp(pod.replica.created, UTC)
    return Unmeshed(key.namespace, key.name, str(owner or ""), reason, since)
