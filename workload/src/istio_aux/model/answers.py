"""What a process reports on its status port: the shape of ``/status`` and ``/pods``.

The names are a contract: docs/reference/ports-and-metrics.md. The charm decodes these structs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime
from enum import StrEnum
from heapq import merge
from itertools import islice
from typing import Any

import msgspec

from istio_aux.model.documents import Cooperative, T
from istio_aux.model.found import Found
from istio_aux.model.moment import in_utc
from istio_aux.model.pod import PROXY
from istio_aux.model.policy import Capability
from istio_aux.model.resources import Requests, total
from istio_aux.model.text import listed

LONGEST = 500  # Pods of a kind in `/status`, at most: after an outage it may be every pod.
SLICE = 200  # Pods that are handled before other tasks, such as reviews, have a turn.
UNREADABLE = 20  # Unreadable objects in `/status`, at most.
MOST = 20  # Holders that are listed: tenants name their containers.
PAGE = 500  # Pods in a page of `/pods`, at most.
TEXT = 300  # Characters of a text in `/pods`: a reason or an owner may quote what a tenant wrote.


class Liveness(StrEnum):
    """How far an injector is from being live, in the order of the checks."""

    # There is no configuration, or none of its webhooks is called: pods get no sidecar.
    ABSENT = "absent"
    DEACTIVATED = "deactivated"
    # In the states from here on pods are refused: failurePolicy is Fail.
    NO_CA_BUNDLE = "no-ca-bundle"  # Its istiod never came up.
    UNREADABLE = "unreadable"
    NO_SERVICE = "no-service"
    NO_ENDPOINT = "no-endpoint"
    REFUSED = "refused"  # The probe failed, or its pod got no sidecar.
    NOT_PROBED = "not-probed"  # All that is visible is well, but no probe has reached istiod.
    LIVE = "live"

    @classmethod
    def _missing_(cls, value: object) -> Liveness:  # noqa: ARG003  its name is that of Enum
        """A state that this version does not know is not live."""
        return cls.UNREADABLE


class Injector(msgspec.Struct, frozen=True, kw_only=True):
    """One of Istio's webhook configurations and the istiod behind it; shown by ``/status``."""

    state: Liveness
    why: str  # The reason for the state, one line for people.
    configuration: str = ""  # Name of the configuration, empty if there is none.
    revision: str = ""  # The revision of Istio, empty if there is no configuration.
    # What a pod that asks for a native sidecar gets; unknown unless the injector is live.
    native: Capability = Capability.UNKNOWN
    native_why: str = ""  # The reason, one line; empty until it was checked.
    # When a leader first saw this state; `evaluate` leaves it empty.
    since: datetime | None = None

    @property
    def live(self) -> bool:
        """Whether a probe got a sidecar."""
        return self.state is Liveness.LIVE


class Holder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The containers that keep some pods running, and what these pods request together."""

    by: tuple[str, ...]  # The names of the containers.
    pods: int
    since: datetime | None  # When the first pod began to be kept; None: unknown.
    requests: Requests
    unreadable: int = 0  # The number of pods whose requests cannot be read.
    fix: str = ""
    text: str  # The holder in one line for people.


class ApplicationMesh(msgspec.Struct, frozen=True, rename="kebab"):
    """An application that asks for sidecars, as ``/status`` shows it."""

    namespace: str
    name: str
    live: bool | None  # Whether a new pod would get a sidecar now; None: not known.
    live_reason: str
    # The revision whose injector selects its pods; empty if there is none.
    revision: str
    root_namespace: str
    meshed: bool | None  # Whether each of its pods has its sidecar; None: not known.
    meshed_reason: str


class UnreadableObject(msgspec.Struct, frozen=True):
    """An object that cannot be read: what was known of it before still counts."""

    path: str  # The path of the collection.
    namespace: str
    name: str  # The object's name; empty if it cannot be read.
    reason: str


class Sidecars(msgspec.Struct, frozen=True):
    """How many pods that istio-aux looks after have a sidecar."""

    pods: int
    namespaces: int  # The number of namespaces with such pods.
    most: dict[str, int]  # The pods by namespace, most first; at most `LONGEST` namespaces.

    def text(self, still: str = "") -> str:
        """One line for people."""
        if not self.pods:
            return "no pod of the selected namespaces has a sidecar"
        (pods, has) = ("", "has") if self.pods == 1 else ("s", "have")
        where = f"{self.namespaces} namespace{'' if self.namespaces == 1 else 's'}"
        return f"{self.pods} pod{pods} in {where} {still}{has} a sidecar"


class ProcessStatus(msgspec.Struct, frozen=True, rename="kebab"):
    """What ``/status`` shows; the names are a contract: docs/reference/ports-and-metrics.md."""

    ready: bool
    missing: list[str]  # Why it is not ready, in lines for a person, and what repair waits for.
    start_mode: str  # A `StartMode`, or what another version has; likewise below.
    capability: Capability
    # Istio's webhook configurations that sort before ours; None if unknown.
    called_before_us: tuple[str, ...] | None
    injectors: list[Injector]  # Sorted by configuration; empty until they are known.
    injector_live: bool | None  # Whether any injector is live; None if unknown.
    watched_pods: int
    selected_namespaces: list[str]  # The first ones by name, at most `LONGEST`.
    # The oldest first, at most `LONGEST`; stuck ones only if this process leads.
    stuck_pods: list[Found]
    blocked_pods: list[Found]
    lost_pods: list[Found]
    holders: list[Holder]  # What keeps pods in states of `found.HELD`, at most `MOST`.
    race: str
    unmeshed_pods: list[Found]  # The oldest first, at most `LONGEST`.
    unmeshed_total: int
    unmeshed_unknown: int  # Pods without a sidecar that may need one.
    applications: list[ApplicationMesh]
    unreadable_objects: list[UnreadableObject]  # At most `UNREADABLE`.
    unreadable_total: int
    leader: bool
    lease_holder: str  # Empty if unknown or without a Lease.
    quit: str
    selected_total: int = 0
    capability_why: str = ""
    token_expires: datetime | None = None  # None: unknown.
    certificate: str = ""  # SHA-256 of the certificate that the webhook serves.
    version: str = ""  # The version of this program.
    revision: str = ""  # See `istio_aux.revision`.
    unknown_keys: tuple[str, ...] = ()  # Keys of the settings file that `unknown-keys: skip` skips.
    # Numbers of pods by their state, without those that may soon be well.
    stuck_total: int = 0
    blocked_total: int = 0
    lost_total: int = 0
    unstarted_pods: list[Found] = []
    unstarted_total: int = 0
    # None: not known, as with race-policy `none`, or before all pods are listed.
    sidecars: Sidecars | None = None
    ambient_total: int = 0  # Number of selected namespaces whose new pods are ambient.

    @property
    def absent(self) -> bool:
        """Whether there is no injector, which may be on purpose."""
        return bool(self.injectors) and {each.state for each in self.injectors} <= {
            Liveness.ABSENT,
            Liveness.DEACTIVATED,
        }

    @property
    def ambient(self) -> bool:
        """Whether new pods of every selected namespace are ambient, and get no sidecar."""
        return 0 < self.selected_total == self.ambient_total


class PodPage(msgspec.Struct, frozen=True):
    """A page of ``/pods``: by namespace and name, so that no page misses a pod that stays."""

    total: int
    pods: list[Found]
    next: str = ""  # Where the next page begins: the parameter ``after``; empty: there is none.
    leader: bool = False  # Only the leader knows stuck pods.
    holders: list[Holder] = []  # What keeps pods in states of `found.HELD`, if these are asked for.


def in_order(items: Iterable[T], key: Callable[[T], Any]) -> Cooperative[list[T]]:
    """Sort ``items`` in slices."""
    iterator = iter(items)
    slices = list[list[T]]()
    found = list[T]()
    while some := [*islice(iterator, SLICE)]:
        slices.append(sorted(some, key=key))
        yield
    for item in merge(*slices, key=key):
        found.append(item)
        if len(found) % SLICE == 0:
            yield
    return found


def group(pods: Iterable[Found]) -> Cooperative[list[Holder]]:
    """Group pods by their holder: those that hold most GPUs first, then most pods, then by name."""
    groups = defaultdict[tuple[tuple[str, ...], str], list[Found]](list)
    for number, pod in enumerate(pods):
        groups[tuple(sorted(pod.by)) or (PROXY,), pod.fix].append(pod)
        if number % SLICE == 0:
            yield
    return (
        yield from in_order(
            (_holder(by, fix, held) for (by, fix), held in groups.items()),
            lambda each: (-each.requests.gpus, -each.pods, each.by, each.fix),
        )
    )


def _holder(by: tuple[str, ...], fix: str, pods: list[Found]) -> Holder:
    since = min((pod.since for pod in pods if pod.since), default=None)
    requests = total(pod.requests for pod in pods if pod.requests is not None)
    unreadable = sum(pod.requests is None for pod in pods)
    # ``12 pods are kept by vault-agent since 2026-11-20 07:12Z: 24 GPUs, 48 CPUs``
    text = "".join(
        (
            f"{len(pods)} {'pod is' if len(pods) == 1 else 'pods are'} kept by",
            f" {listed(by, most=3)}",
            f" since {in_utc(since):%Y-%m-%d %H:%M}Z" if since else "",
            f": {requests}" if str(requests) else "",
            f"; the requests of {unreadable} cannot be read" if unreadable else "",
            f"; {fix}" if fix else "",
        )
    )
    return Holder(
        by=by,
        pods=len(pods),
        since=since,
        requests=requests,
        unreadable=unreadable,
        fix=fix,
        text=text,
    )
