"""What a cluster admin may choose: small frozen types, no rules. `settings` says what they mean."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import NamedTuple

import msgspec

from istio_aux.model.applications import Application
from istio_aux.model.limits import Limit
from istio_aux.model.owners import JobCounts
from istio_aux.model.resources import Amounts
from istio_aux.model.selectors import Selector
from istio_aux.model.sidecars import SidecarRule


class Capability(StrEnum):
    """What cluster and Istio can do about start order."""

    # Istio makes sidecars native by itself: 1.27 or later, every kubelet 1.33 or later.
    UNASKED = "unasked"
    # A pod that asks for a native sidecar gets one that works: Istio is 1.24 or later, every
    # kubelet 1.29 or later, and no other webhook or policy interferes.
    NATIVE = "native"
    CLASSIC = "classic"  # Only `holdApplicationUntilProxyStarts` is safe to ask for.
    UNKNOWN = "unknown"  # Never guessed: only hold is asked for.

    @classmethod
    def _missing_(cls, value: object) -> Capability:  # noqa: ARG003  its name is that of Enum
        """A capability that this version does not know is unknown."""
        return cls.UNKNOWN

    @property
    def can(self) -> bool:
        """Whether a pod can have a native sidecar."""
        return self in {Capability.UNASKED, Capability.NATIVE}


class StartMode(StrEnum):
    """How a pod's sidecar is made to start first (`start.plan`)."""

    AUTO = "auto"
    NATIVE = "native"
    HOLD = "hold"
    NONE = "none"


class Peers(StrEnum):
    """How pods of distributed Jobs reach each other (`start.plan`)."""

    MESH = "mesh"
    DIRECT = "direct"


class StartPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How `start.plan` treats all pods; a pod's annotations override it."""

    mode: StartMode = StartMode.AUTO
    capability: Capability = Capability.UNKNOWN  # What the injector that selects the pod can do.
    peers: Peers = Peers.MESH
    sidecars: tuple[SidecarRule, ...] = ()  # Rules of the option `sidecars`.
    quits: bool = True  # Whether the proxies of finished pods are told to exit.
    job: JobCounts | None = None  # What the pod's Job counts; None: no Job, or it was not read.
    limits: tuple[Limit, ...] | None = ()  # The limits of the pod's namespace; None: not known.
    proxy: Amounts | None = None  # What the injector's proxies need; None: Istio's usual amounts.
    pods: Selector = Selector()  # `pod-selector`: other pods are not changed.
    inject: Selector | None = None  # `inject-selector`: injected although their annotation refuses.

    @property
    def counted(self) -> bool:
        """Whether the Job of the pod is known to count the exit codes of native sidecars."""
        return self.job is not None and self.job.exits


class QuitMode(StrEnum):
    """Whether proxies are told to exit; `quit.decide` decides the same in every mode."""

    ENABLED = "enabled"
    DRY_RUN = "dry-run"
    DISABLED = "disabled"


class DeadProxy(StrEnum):
    """What happens to a pod whose proxy ended although its payload may still run."""

    REPORT = "report"
    DELETE = "delete"


class QuitPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How `quit.decide` treats all pods; a pod's annotations override it."""

    grace: float = 0.0  # Seconds for telemetry that is still in flight (istio/proxy#2122).
    dead_proxy: DeadProxy = DeadProxy.REPORT
    sidecars: tuple[SidecarRule, ...] = ()


class QuitLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds in seconds, and in numbers at once."""

    deadline: float = 10.0  # Timeout of an attempt; twelve at once took 1.6 s each on a busy node.
    # Delay of the read after an attempt that seems to have worked: Istio <=1.25 drains for 5 s
    # first (mesh terminationDrainDuration), and the kubelet reports about 1 s late.
    confirm: float = 8.0
    confirm_failed: float = 2.0  # Delay of the read after one that seems to have failed.
    first_retry: float = 1.0
    last_retry: float = 300.0
    last_reading: float = 30.0  # Longest retry delay while the API server fails.
    at_once: int = 48  # First attempts: 12 in a namespace, whose Jobs may end together.
    slot: float = 2.0  # An attempt holds a slot this long; then the next begins beside it.
    retries_at_once: int = 8  # Retries and lost pods, which must not delay first attempts.
    # Delay of the second check of a lost pod: a payload that ends with its proxy is no loss. The
    # kubelet reports both ends about a second apart.
    lost_after: float = 2.0
    blocked_after: float = 60.0  # Delay of the report: most containers end a little apart.
    held_after: float = 60.0  # The same for a payload that waits for its proxy, not its image.
    unstarted_after: float = 300.0  # The same for a payload that a sidecar keeps from starting.


class RacePolicy(StrEnum):
    """What happens to pods that should have a sidecar and have none (`repair.decide`)."""

    NONE = "none"
    REPORT = "report"
    RESTART = "restart"


class RepairPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How `repair.decide` treats all pods."""

    race: RacePolicy = RacePolicy.REPORT
    ours: Application | None = None  # istio-aux itself, which is never restarted; None: no Juju.
    only: Collection[str] | None = None  # UIDs of the pods that may be restarted; None: all.


class Right(NamedTuple):
    """A right of an account, spelled as in a Role, and what needs it."""

    verb: str
    group: str
    resource: str
    purpose: str
    namespace: str = ""
    name: str = ""  # Name of the only object that it is for.

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{f'.{self.group}' if self.group else ''}"
