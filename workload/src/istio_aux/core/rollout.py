"""The rollout of one controller: which of its pods without a sidecar is restarted next, and when.

The pods of a controller are restarted one at a time: the next one follows when the replacement of
the last one is Ready with its sidecar. A restart that does not help is not repeated. Whether a pod
may be restarted at all is decided in `repair`.

=========== ==================================================== ===========
State       What happens                                         Next state
=========== ==================================================== ===========
idle        `started`: a pod is about to be evicted              replacing
replacing   `refused`: the pod was not evicted                   backing off
replacing   `observed`: after ``doubt`` the pod is still there   backing off
replacing   `observed`: a new pod is Ready with a sidecar        idle
replacing   `observed`: a new pod has no sidecar either          failed
backing off `started`, not before ``retry_at``                   replacing
failed      `observed`: a later pod has its sidecar              idle
failed      `observed`: ``memory`` seconds have passed           idle
any         `restored`: an earlier leader saw it fail            failed
=========== ==================================================== ===========

`next_step` says what to do in each state. After an eviction without an answer the pods show whether
it happened.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum

import msgspec
from msgspec import structs

from istio_aux.core import ownership, repair
from istio_aux.core.moment import Moment
from istio_aux.core.pod import Pod, Struct


class RolloutLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds, and the rate limit of the whole cluster."""

    at_once: int = 5  # Controllers of which a pod is being replaced at the same time.
    patience: float = 600.0  # For a replacement: a Deployment's default progressDeadlineSeconds.
    # A pod that is still there after that was not evicted. The API server works on a request for up
    # to 60 s (kube-apiserver --request-timeout), and a watch may lag.
    doubt: float = 90.0
    # After a refusal: the status of a PodDisruptionBudget lags behind a pod that is Ready.
    first_retry: float = 1.0
    last_retry: float = 300.0
    memory: float = 86400.0  # For a restart that did not help. One more is tried afterwards.
    restarts: int | None = None  # How many pods may be restarted at all; None: any number.


class Sidecar(StrEnum):
    """Whether a pod has its sidecar, and if not, whether it should."""

    PRESENT = "present"
    MISSING = "missing"
    UNKNOWN = "unknown"
    UNWANTED = "unwanted"


class Replica(Struct, frozen=True, gc=False):
    """A pod of a controller, as it is now; `replica` makes one."""

    name: str
    uid: str
    sidecar: Sidecar
    ready: bool = False
    deleting: bool = False  # Whether it has a deletionTimestamp.
    restart: bool = False  # Whether `repair.decide` wants it restarted.
    ordinal: int | None = None  # Its number in a StatefulSet.
    created: float = 0.0  # Seconds since 1970.


class Replacement(Struct, frozen=True):
    """``pod`` is being replaced ``since`` a time; its controller had pods of the ``known`` UIDs."""

    pod: Replica
    since: float
    known: frozenset[str]


class Failure(Struct, frozen=True):
    """A pod that was made after a restart, and ``created`` then, has no sidecar either.

    ``noticed`` is not before ``created``: clocks differ. Both are seconds since 1970. ``uid`` is
    empty if an earlier leader noticed.
    """

    reason: str
    created: float
    noticed: float
    uid: str = ""


class Rollout(Struct, frozen=True):
    """What was done about the pods of one controller, and its result. Times are monotonic."""

    replacing: Replacement | None = None
    failure: Failure | None = None
    refusals: int = 0  # Refused evictions in a row.
    refusal: str = ""  # Why the last one was refused.
    retry_at: float = 0.0  # No eviction is tried before.
    served: float | None = None  # When the last eviction was tried.

    @property
    def idle(self) -> bool:
        """Whether nothing has to be remembered once the controller has no pods."""
        return self.replacing is None and self.failure is None


class Next(Struct, frozen=True):
    """Restart this pod now."""

    pod: Replica


class Defer(Struct, frozen=True):
    """Ask again when a pod of the controller changes, and at ``until`` (monotonic) if set."""

    reason: str
    until: float | None = None


class Stop(Struct, frozen=True):
    """Restart no pod of this controller, and report that; ask again as for `Defer`."""

    reason: str
    until: float | None = None
    uid: str = ""  # Of the pod that shows that a restart does not help, if there is one.


Step = Next | Defer | Stop


def replica(pod: Pod, action: repair.RepairAction) -> Replica:
    """Reduce a pod and the decision about it."""
    meta, owner, present = pod.metadata, ownership.controller(pod), pod.names_proxy
    deleting, created = meta.deletion_timestamp is not None, meta.creation_timestamp
    ready = any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions or ())
    # A Job's pod with a sidecar may finish before anybody sees it Ready.
    ready = ready or (present and owner is not None and ownership.is_job(owner))
    return Replica(
        name=meta.name,
        uid=meta.uid,
        sidecar=Sidecar.PRESENT if present else _sidecar(action),
        ready=ready and not deleting,
        deleting=deleting,
        restart=isinstance(action, repair.Restart),
        ordinal=ownership.ordinal(pod),
        created=created.timestamp() if created else 0.0,
    )


def first_in_line(
    waiting: Mapping[str, Rollout], active: Iterable[Rollout], now: Moment, limits: RolloutLimits
) -> list[str]:
    """Choose from those ``waiting`` to restart a pod now, the longest unserved first.

    ``active`` are all that are replacing a pod.
    """
    begun = [rollout.replacing.since for rollout in active if rollout.replacing]
    free = limits.at_once - sum(now.monotonic < since + limits.patience for since in begun)

    def place(key: str) -> tuple[float, str]:
        served = waiting[key].served
        return (-math.inf if served is None else served, key)

    return heapq.nsmallest(free, waiting, key=place) if free > 0 else []


def next_step(
    rollout: Rollout, pods: Sequence[Replica], now: Moment, limits: RolloutLimits
) -> Step | None:
    """Say what is next for one controller, as if there were no others.

    Returns:
        None if the controller can be forgotten: no pod of it is to be restarted, or it has had no
        pod for so long that it does not exist any more.
    """
    gone = None if pods else (rollout.served or 0.0) + 2 * limits.patience
    if gone is not None and (rollout.idle or now.monotonic >= gone):
        return None
    if failure := rollout.failure:
        forgotten = now.monotonic + limits.memory - (now.wall - failure.noticed)
        return Stop(failure.reason, gone or forgotten, failure.uid)
    if replacing := rollout.replacing:
        return _await(replacing, gone, now, limits)
    possible = [pod for pod in pods if pod.restart]
    if not possible:
        return None
    if now.monotonic < rollout.retry_at:
        return Defer(f"not restarted: {rollout.refusal}; tried again later", rollout.retry_at)
    return _unproven(pods, now, limits) or _choose(pods, possible)


def started(rollout: Rollout, pods: Iterable[Replica], pod: Replica, now: Moment) -> Rollout:
    """``pod`` is about to be evicted; ``pods`` are all pods of the controller."""
    known = frozenset(each.uid for each in pods)
    replacing = Replacement(pod=pod, since=now.monotonic, known=known)
    return structs.replace(rollout, replacing=replacing, served=now.monotonic)


def refused(
    rollout: Rollout, why: str, now: Moment, limits: RolloutLimits, *, asked: float = 0.0
) -> Rollout:
    """The pod was not evicted: a disruption budget forbids it (429), or the pod has changed (409).

    The delay grows with each refusal, and is at least ``asked`` seconds (Retry-After).
    """
    # Bounded: a float has no 2 ** 1024.
    wait = min(limits.first_retry * 2 ** min(rollout.refusals, 32), limits.last_retry)
    return structs.replace(
        rollout, replacing=None, refusals=rollout.refusals + 1, refusal=why,
        retry_at=now.monotonic + max(wait, asked),
    )  # fmt: skip


def restored(rollout: Rollout, noticed: datetime) -> Rollout:
    """An earlier leader noticed at that time that a restart did not help."""
    at = noticed.astimezone(UTC)
    why = f"a pod made at {at:%Y-%m-%d %H:%M:%S}Z, after another was evicted, has no sidecar either"
    failure = Failure(reason=why, created=at.timestamp(), noticed=at.timestamp())
    return Rollout(failure=failure, served=rollout.served)


def observed(
    rollout: Rollout, pods: Sequence[Replica], now: Moment, limits: RolloutLimits
) -> Rollout:
    """The controller has these pods now, and no others."""
    idle = Rollout(served=rollout.served)
    if failure := rollout.failure:
        expired = now.wall - failure.noticed >= limits.memory
        helped = any(
            pod.sidecar is Sidecar.PRESENT and not pod.deleting and pod.created > failure.created
            for pod in pods
        )
        return idle if expired or helped else rollout
    if (replacing := rollout.replacing) is None:
        return rollout
    old = replacing.pod
    for pod in pods:
        if pod.uid == old.uid:
            if pod.deleting or now.monotonic < replacing.since + limits.doubt:
                return rollout
            return refused(rollout, f"{pod.name} is still there", now, limits)
    # In a StatefulSet the replacement has the same name.
    new = [
        pod
        for pod in pods
        if pod.uid not in replacing.known and (old.ordinal is None or pod.name == old.name)
    ]
    for pod in new:
        if pod.sidecar is Sidecar.MISSING:
            why = f"{pod.name}, made after {old.name} was evicted, has no sidecar either"
            failure = Failure(why, pod.created, max(pod.created, now.wall), pod.uid)
            return structs.replace(idle, failure=failure)
    proven = any(pod.ready and pod.sidecar in {Sidecar.PRESENT, Sidecar.UNWANTED} for pod in new)
    return idle if proven else rollout


def _sidecar(action: repair.RepairAction) -> Sidecar:
    match action:
        case repair.Skip():
            return Sidecar.UNWANTED
        case repair.ReportUnmeshed(unmeshed=False):
            return Sidecar.UNKNOWN
        case repair.ReportUnmeshed() | repair.Restart():
            return Sidecar.MISSING


def _await(
    replacing: Replacement, gone: float | None, now: Moment, limits: RolloutLimits
) -> Defer | Stop:
    awaited = f"{replacing.pod.name} was evicted, and no replacement is Ready with a sidecar"
    doubtful, late = replacing.since + limits.doubt, replacing.since + limits.patience
    if now.monotonic >= late:
        return Stop(f"{awaited} after {limits.patience:g} s", gone)
    return Defer(f"{awaited} yet", doubtful if now.monotonic < doubtful else late)


def _unproven(pods: Iterable[Replica], now: Moment, limits: RolloutLimits) -> Defer | None:
    """Wait for a pod that may be the replacement of one that another leader restarted.

    No longer than for any replacement: its readiness may depend on something else.
    """
    oldest = now.wall - limits.patience
    for pod in pods:
        awaited = pod.sidecar is Sidecar.PRESENT and not (pod.ready or pod.deleting)
        if awaited and pod.created > oldest:
            until = now.monotonic + pod.created - oldest
            return Defer(f"{pod.name} has its sidecar and is not Ready yet", until)
    return None


def _choose(pods: Iterable[Replica], possible: Sequence[Replica]) -> Next | Defer:
    """Choose the last pod of a StatefulSet, elsewhere preferably one that is not Ready.

    A StatefulSet makes no pod while one before it is not Ready (k8s@1.36 stateful_set_control.go
    processReplica), unless its podManagementPolicy is Parallel, which is not known here. So no pod
    behind such a gap is evicted, and the pod in the gap goes first.
    """
    if any(pod.ordinal is None for pod in possible):
        return Next(min(possible, key=lambda pod: (pod.ready, pod.name)))
    gap = min((pod for pod in pods if not pod.ready), key=_ordinal, default=None)
    if gap is not None:
        if gap.restart:
            return Next(gap)
        possible = [pod for pod in possible if _ordinal(pod) < _ordinal(gap)]
        if not possible:
            return Defer(f"{gap.name} is not Ready, and comes before the others")
    return Next(max(possible, key=_ordinal))


def _ordinal(pod: Replica) -> int:
    return -1 if pod.ordinal is None else pod.ordinal
