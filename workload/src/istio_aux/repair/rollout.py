"""The rollout of one controller: which of its pods without a sidecar is restarted next, and when.

The pods of a controller are restarted one at a time: the next one follows when the replacement of
the last one is Ready with its sidecar. A restart that does not help is not repeated. Whether a pod
may be restarted at all is decided in `repair`.

=========== ==================================================== ===========
State       What happens                                         Next state
=========== ==================================================== ===========
idle        `started`: a pod is about to be evicted              replacing
replacing   `refused`: the pod was not evicted                   backing off
replacing   `observed`: it is still there after ``unconfirmed``   backing off
replacing   `observed`: a new pod is Ready with a sidecar        idle
replacing   `observed`: a new pod has no sidecar either          failed
replacing   `observed`: no new pod for ``unreplaced`` seconds    idle
backing off `started`, not before ``retry_at``                   replacing
failed      `observed`: that or a later pod is in its mesh        idle
failed      `observed`: ``memory`` seconds have passed           idle
failed      `observed`: as above, and `restored` left a pod      replacing
failed      `observed`: as above, and that pod is still there    backing off
idle        `restored`: an earlier leader evicted a pod          replacing
replacing   `restored`: an earlier leader evicted a pod          replacing
idle        `restored`: an earlier leader saw it fail            failed
replacing   `restored`: an earlier leader saw it fail            failed
=========== ==================================================== ===========

`next_step` says what to do in each state. After an eviction without an answer the pods show whether
it happened. While another client restarts a pod of the controller, none is restarted (`_held`).

A controller is named by namespace/UID.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from itertools import count

import msgspec

from istio_aux.model import owners
from istio_aux.model.election import FAILED, NEWEST, Replaced
from istio_aux.model.moment import Clock, Moment
from istio_aux.model.pod import Struct
from istio_aux.repair.rules import (
    SETTLED,
    AwaitCapture,
    Candidate,
    Captured,
    RepairAction,
    ReportUnmeshed,
    Restart,
    Skip,
)

_LAST = 4e9  # Seconds since 1970: the year 2096.


class RolloutLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds, and the rate limit of the whole cluster."""

    at_once: int = 5  # Controllers that may have a pod replaced at the same time.
    share: int = 3  # The most of these controllers in one namespace.
    # Seconds to wait for a replacement, and for pods that another client restarts: a Deployment's
    # default progressDeadlineSeconds.
    patience: float = 600.0
    # Without a new pod for that long, the controller wants one pod less. A controller that cannot
    # make its pod tries again after 1000 s at most (client-go DefaultControllerRateLimiter).
    # Doubled each time it happens in a row.
    unreplaced: float = 7200.0
    # A pod that is still there after that was not evicted. The API server works on a request for up
    # to 60 s (kube-apiserver --request-timeout), and a watch may lag.
    unconfirmed: float = 90.0
    # The delay after a first refusal: a PodDisruptionBudget's status lags behind a Ready pod.
    first_retry: float = 1.0
    last_retry: float = 300.0
    # How long a restart that did not help is remembered. Then one more is tried.
    memory: float = 86400.0
    # How long at least a new process remembers it, whatever both processes' clocks show.
    least_memory: float = 3600.0
    settled: float = SETTLED  # Until an uncaptured pod counts as outside its mesh.
    restarts: int | None = None  # How many pods may be restarted at all; None: any number.


class Sidecar(StrEnum):
    """Whether a pod has its sidecar, or is captured, and if not, whether it should be."""

    PRESENT = "present"
    MISSING = "missing"
    UNKNOWN = "unknown"
    UNWANTED = "unwanted"
    AWAITED = "awaited"  # An ambient mesh may capture the pod yet.


class Replica(Struct, frozen=True, gc=False):
    """A pod of a controller, as it is now; `replica` makes one."""

    name: str
    uid: str
    sidecar: Sidecar
    ready: bool = False
    deleting: bool = False  # Whether it has a deletionTimestamp.
    restart: bool = False  # Whether `repair.decide` wants it restarted.
    ordinal: int = -1  # Its number in a StatefulSet; -1: it is in none.
    created: float = 0.0  # Seconds since 1970.
    deleted: float = 0.0  # When its deletion began, by the same clock; 0 if that is not known.


class Replacement(Struct, frozen=True):
    """A pod is being replaced ``since`` a time."""

    old: Replaced
    since: float
    known: frozenset[str]  # UIDs of the pods that its controller had.
    ending: frozenset[str] = frozenset()  # UIDs of `known` that another client was deleting.
    deleted: float = 0.0  # When its deletion began, by the API server's clock; 0: not seen yet.
    sent: bool = True  # The eviction may have been sent; before that, new pods are unrelated.
    accepted: bool = False  # The API server accepted the eviction; the watch may lag behind.


class Failure(Struct, frozen=True):
    """A pod that was made after a restart has no sidecar either.

    It was ``created`` that many seconds after 1970. No pod is restarted before ``until``. ``uid``
    is empty if an earlier leader noticed.
    """

    reason: str
    created: float
    until: float
    uid: str = ""

    def of(self, pod: Replica) -> bool:
        """Whether this is the pod that failed: Istio's CNI may capture it late."""
        return pod.uid == self.uid if self.uid else pod.created == self.created


class Rollout(Struct, frozen=True):
    """What was done about the pods of one controller, and its result.

    Times are monotonic. A step of the wall clock makes none of them longer or shorter.
    """

    replacing: Replacement | None = None
    failure: Failure | None = None
    refusals: int = 0  # Refused evictions in a row.
    refusal: str = ""  # Why the last one was refused.
    retry_at: float = 0.0  # No eviction is tried before this time.
    unreplaced: int = 0  # Evictions in a row after which no new pod came.
    # Until when it is awaited that another client restarts a pod, by the reason to show.
    held: Mapping[str, float] = {}
    gone: float | None = None  # When it counts as gone, because it has no pods.

    @property
    def idle(self) -> bool:
        """Whether nothing has to be remembered once the controller has no pods."""
        return self.replacing is None and self.failure is None


# The state of a controller of which no pod was restarted. Most controllers share it.
IDLE = Rollout()


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
    uid: str = ""  # The pod that has no sidecar after a restart, if any.


Step = Next | Defer | Stop


def replica(pod: Candidate, action: RepairAction) -> Replica:
    """Reduce a pod and the decision about it."""
    return Replica(
        name=pod.key.name,
        uid=pod.key.uid,
        sidecar=Sidecar.PRESENT if pod.names_proxy else _sidecar(action),
        ready=pod.ready and not pod.deleting,
        deleting=pod.deleting,
        restart=isinstance(action, Restart),
        ordinal=owners.ordinal(pod.owner, pod.key.name),
        created=pod.created,
        deleted=pod.deleted,
    )


def first_in_line(
    waiting: Mapping[str, float],
    started: Mapping[str, float],
    served: Mapping[str, float],
    now: Moment,
    limits: RolloutLimits,
) -> list[str]:
    """Choose the controllers that may restart a pod now: those that have waited longest.

    Namespaces take turns, and have a share: pods that never get Ready delay only pods of their own
    namespace. ``waiting`` says since when a controller has a pod to restart, ``started`` since when
    one of its pods is being replaced, ``served`` when a pod of a namespace was restarted last.
    """
    busy = Counter(
        _namespace(key) for key, since in started.items() if now.monotonic < since + limits.patience
    )
    last = dict(served)
    chosen = list[str]()

    def turn(key: str) -> tuple[float, str, float, str]:
        name = _namespace(key)
        return last.get(name, waiting[key]), name, waiting[key], key

    while possible := [
        key
        for key in waiting
        if key not in chosen
        and busy[_namespace(key)] < limits.share
        and busy.total() < limits.at_once
    ]:
        key = min(possible, key=turn)
        chosen.append(key)
        busy[_namespace(key)] += 1
        last[_namespace(key)] = now.monotonic
    return chosen


def next_step(
    rollout: Rollout, pods: Sequence[Replica], now: Moment, limits: RolloutLimits
) -> Step | None:
    """Say what is next for one controller, as if there were no others.

    None: none of its pods is to be restarted, or it has had no pods for so long that it is gone.
    """
    if rollout.gone is not None and (rollout.idle or now.monotonic >= rollout.gone):
        return None
    if failure := rollout.failure:
        return Stop(failure.reason, rollout.gone or failure.until, failure.uid)
    if replacing := rollout.replacing:
        return _await(rollout, replacing, now, limits)
    possible = [pod for pod in pods if pod.restart]
    if not possible:
        return None
    refusal = f"not restarted: {rollout.refusal}; tried again later"
    for reason, until in {refusal: rollout.retry_at, **rollout.held}.items():
        if now.monotonic < until:
            return Defer(reason, until)
    return _choose(pods, possible)


def started(
    rollout: Rollout, pods: Sequence[Replica], pod: Replica, now: Moment, *, sent: bool = True
) -> Rollout:
    """``pod`` is chosen to be evicted, or is evicted now; ``pods`` are all of the controller."""
    newest = max((each.created for each in pods), default=0.0)
    same = tuple(sorted(each.uid for each in pods if each.created == newest))
    old = Replaced(pod.name, pod.uid, newest, same if len(same) <= NEWEST else ())
    replacing = Replacement(
        old,
        now.monotonic,
        known=frozenset(each.uid for each in pods),
        ending=frozenset(each.uid for each in pods if each.deleting),
        sent=sent,
    )
    return msgspec.structs.replace(rollout, replacing=replacing)


def accepted(rollout: Rollout) -> Rollout:
    """The API server has accepted the eviction."""
    replacing = rollout.replacing and msgspec.structs.replace(rollout.replacing, accepted=True)
    return msgspec.structs.replace(rollout, replacing=replacing)


def refused(
    rollout: Rollout, why: str, now: Moment, limits: RolloutLimits, *, retry_after: float = 0.0
) -> Rollout:
    """The pod was not evicted: a disruption budget forbids it (429), or the pod has changed (409).

    The delay grows with each refusal, and is at least ``retry_after`` seconds (Retry-After).
    """
    # Bounded: a float has no 2 ** 1024.
    wait = min(limits.first_retry * 2 ** min(rollout.refusals, 32), limits.last_retry)
    return msgspec.structs.replace(
        rollout,
        replacing=None,
        refusals=rollout.refusals + 1,
        refusal=why,
        retry_at=now.monotonic + max(wait, retry_after),
    )


def recalled(created: datetime, now: Moment, limits: RolloutLimits) -> Failure:
    """An earlier leader saw a replacement without a sidecar, which was ``created`` then."""
    # A tenant may have written the time: not all times exist in UTC.
    at = datetime.fromtimestamp(min(max(created.timestamp(), 0.0), _LAST), UTC)
    age = min(max(now.wall - at.timestamp(), 0.0), limits.memory - limits.least_memory)
    return Failure(
        f"a pod made at {at:%Y-%m-%d %H:%M:%S}Z, after another was evicted, is not in the mesh"
        " either",
        at.timestamp(),
        now.monotonic + limits.memory - age,
    )


def restored(
    rollout: Rollout, pods: Iterable[Replica], now: Moment, record: Failure | Replaced
) -> Rollout:
    """Take what an earlier leader left in its ``record``, unless this process has seen more itself.

    The times of a replacement begin again: the clocks of two processes differ.
    """
    if isinstance(record, Failure):
        newest = max((rollout.failure or record, record), key=lambda failure: failure.created)
        return msgspec.structs.replace(rollout, replacing=None, failure=newest)
    own = rollout.replacing
    if (
        own and own.old == record
    ):  # Another leader may have sent the eviction that this one did not.
        return msgspec.structs.replace(
            rollout, replacing=msgspec.structs.replace(own, since=now.monotonic, sent=True)
        )
    known = frozenset(pod.uid for pod in pods if record.knew(pod.uid, pod.created))
    return msgspec.structs.replace(
        rollout, replacing=Replacement(record, now.monotonic, known | {record.uid})
    )


class Recalled:
    """Failures and replaced pods of earlier leaders, by `PodOwner.key`; both are bounded."""

    def __init__(self, limits: RolloutLimits, clock: Clock) -> None:
        self._limits = limits
        self._now = clock
        self._failures: dict[str, Failure] = {}
        self._replaced: dict[str, Replaced] = {}
        self._read = 0.0  # When `_replaced` was read, by the monotonic clock.

    def __contains__(self, key: str) -> bool:
        return key in self._failures or key in self._replaced

    def update(self, failed: Mapping[str, datetime], replaced: Mapping[str, Replaced]) -> None:
        """Take what the Lease says now.

        ``replaced`` is a state, so the newest counts. Failures stay until they expire, because the
        leader that knows of them may be unable to write the Lease.
        """
        now = self._now()
        for key, created in failed.items():
            failure = recalled(created, now, self._limits)
            self._failures[key] = max(
                self._failures.get(key, failure),
                failure,
                key=lambda each: each.created,
            )
        newest = sorted(self.failures.items(), key=lambda item: (item[1].created, item[0]))
        self._failures = dict(newest[-FAILED:])
        self._replaced = dict(replaced)
        self._read = now.monotonic

    def take(self, key: str) -> Iterator[Failure | Replaced]:
        """Yield what is known of a controller, and forget it."""
        yield from filter(None, (self.failures.get(key), self.replaced.get(key)))
        self._failures.pop(key, None)
        self._replaced.pop(key, None)

    @property
    def failures(self) -> dict[str, Failure]:
        """The restarts that did not help, and that have not expired."""
        now = self._now().monotonic
        return {key: failure for key, failure in self._failures.items() if now < failure.until}

    @property
    def replaced(self) -> dict[str, Replaced]:
        """The pods that were being replaced, and that have not expired."""
        late = self._now().monotonic >= self._read + self._limits.unreplaced
        return {} if late else dict(self._replaced)


def observed(
    rollout: Rollout,
    pods: Sequence[Replica],
    now: Moment,
    limits: RolloutLimits,
    gone: Mapping[str, float] = {},
) -> Rollout:
    """The controller has these pods now, and no others.

    ``gone`` has the pods of a StatefulSet whose name is not back yet, and since when.
    """
    ends = now.monotonic + 2 * limits.patience if rollout.gone is None else rollout.gone
    rollout = msgspec.structs.replace(
        rollout,
        held=_held(rollout.held, pods, now, limits, gone),
        gone=None if pods else ends,
    )
    if failure := rollout.failure:
        own = [pod for pod in pods if failure.of(pod)]
        well = [pod for pod in pods if pod.sidecar is Sidecar.PRESENT and not pod.deleting]
        helped = any(pod.created > failure.created for pod in well) or (
            own and all(pod in well for pod in own)
        )
        if now.monotonic < failure.until and not helped:
            return rollout
        rollout = Rollout(held=rollout.held, gone=rollout.gone, replacing=rollout.replacing)
    replacing = rollout.replacing
    if replacing and not replacing.sent and all(pod.uid != replacing.old.uid for pod in pods):
        # Another client deleted the pod before us.
        return msgspec.structs.replace(rollout, replacing=None)
    return _observe(rollout, replacing, pods, now, limits) if replacing else rollout


def _observe(
    rollout: Rollout,
    replacing: Replacement,
    pods: Sequence[Replica],
    now: Moment,
    limits: RolloutLimits,
) -> Rollout:
    """Find out whether the pod was replaced, and whether that helped."""
    idle = Rollout(held=rollout.held, gone=rollout.gone)
    old = replacing.old
    if any(pod.uid == old.uid and not pod.deleting for pod in pods):
        if replacing.sent and not (there := {pod.uid for pod in pods}) <= replacing.known:
            # A watch keeps the order of changes: these pods were made before the pod was deleted.
            replacing = msgspec.structs.replace(replacing, known=replacing.known | there)
            rollout = msgspec.structs.replace(rollout, replacing=replacing)
        if replacing.accepted or now.monotonic < replacing.since + limits.unconfirmed:
            return rollout
        return refused(rollout, f"{old.pod} is still there", now, limits)
    # A client that shortens the grace period afterwards may move the timestamp forward.
    deleted = replacing.deleted or next((pod.deleted for pod in pods if pod.uid == old.uid), 0.0)
    rollout = msgspec.structs.replace(
        rollout, replacing=msgspec.structs.replace(replacing, deleted=deleted)
    )
    new = [
        pod
        for pod in (pods if replacing.sent else ())
        # A pod that the watch shows late may be an earlier replacement of another pod.
        if pod.uid not in replacing.known
        and pod.created >= int(deleted)
        # In a StatefulSet the replacement has the same name.
        and (pod.ordinal < 0 or pod.name == old.pod)
    ]
    for pod in new:
        if pod.sidecar is Sidecar.MISSING:
            failure = Failure(
                f"{pod.name}, made after {old.pod} was evicted, is not in the mesh either",
                pod.created,
                now.monotonic + limits.memory,
                pod.uid,
            )
            return msgspec.structs.replace(idle, failure=failure)
    if any(pod.ready and pod.sidecar in {Sidecar.PRESENT, Sidecar.UNWANTED} for pod in new):
        return idle
    if not new and now.monotonic >= replacing.since + _unreplaced(rollout, limits):
        return msgspec.structs.replace(idle, unreplaced=rollout.unreplaced + 1)
    return rollout


def _sidecar(action: RepairAction) -> Sidecar:
    match action:
        case Captured():
            return Sidecar.PRESENT
        case Skip():
            return Sidecar.UNWANTED
        case AwaitCapture():
            return Sidecar.AWAITED
        case ReportUnmeshed(unmeshed=False):
            return Sidecar.UNKNOWN
        case ReportUnmeshed() | Restart():
            return Sidecar.MISSING


def _await(
    rollout: Rollout, replacing: Replacement, now: Moment, limits: RolloutLimits
) -> Defer | Stop:
    awaited = f"{replacing.old.pod} was evicted, and no replacement is Ready in the mesh"
    unconfirmed = replacing.since + limits.unconfirmed
    late = replacing.since + limits.patience
    if now.monotonic >= late:
        again = replacing.since + _unreplaced(rollout, limits)
        # If there is a new pod, it is awaited further.
        until = rollout.gone or (again if now.monotonic < again else None)
        return Stop(f"{awaited} after {limits.patience:g} s", until)
    return Defer(f"{awaited} yet", unconfirmed if now.monotonic < unconfirmed else late)


def _unreplaced(rollout: Rollout, limits: RolloutLimits) -> float:
    """After how many seconds a controller without a new pod wants one pod less."""
    return min(limits.unreplaced * 2 ** min(rollout.unreplaced, 32), limits.memory)


def _held(
    before: Mapping[str, float],
    pods: Sequence[Replica],
    now: Moment,
    limits: RolloutLimits,
    gone: Mapping[str, float],
) -> dict[str, float]:
    """Find the pods that another client restarts, and until when they are awaited.

    The client is a drain, a new revision of the template, or an earlier leader that is not in the
    Lease. Such a pod is waited for no longer than any replacement: its readiness may depend on
    something else, its node may be lost, and a StatefulSet may be smaller now.
    """
    held = {
        f"{name} is gone, and not back yet": since + limits.patience for name, since in gone.items()
    }
    late = now.monotonic + limits.patience
    seen = {f"{pod.name} is being deleted": late for pod in pods if pod.deleting}
    for pod in pods:
        if pod.sidecar is Sidecar.PRESENT and not (pod.ready or pod.deleting):
            seen[f"{pod.name} is in the mesh and is not Ready yet"] = late
    # A new process does not know which pods went just before. The StatefulSet may also begin with
    # another number (spec.ordinals.start), so the wait is shorter.
    ordinals = {pod.ordinal for pod in pods if pod.ordinal >= 0}
    gap = next(number for number in count() if number not in ordinals)
    if gap < max(ordinals, default=0):
        seen[f"there is no pod with the ordinal {gap}"] = now.monotonic + limits.unconfirmed
    return held | {reason: before.get(reason, until) for reason, until in seen.items()}


def _choose(pods: Iterable[Replica], possible: Sequence[Replica]) -> Next | Defer:
    """Choose the last pod of a StatefulSet, elsewhere preferably one that is not Ready.

    A StatefulSet makes no pod while one before it is not Ready (k8s@1.36 stateful_set_control.go
    processReplica), unless its podManagementPolicy is Parallel, which is not known here. So no pod
    behind such a gap is evicted, and the pod in the gap goes first.
    """
    if any(pod.ordinal < 0 for pod in possible):
        return Next(min(possible, key=lambda pod: (pod.ready, pod.name)))
    gap = min((pod for pod in pods if not pod.ready), key=lambda pod: pod.ordinal, default=None)
    if gap is not None:
        if gap.restart:
            return Next(gap)
        possible = [pod for pod in possible if pod.ordinal < gap.ordinal]
        if not possible:
            return Defer(f"{gap.name} is not Ready, and comes before the others")
    return Next(max(possible, key=lambda pod: pod.ordinal))


def _namespace(key: str) -> str:
    return key.partition("/")[0]
