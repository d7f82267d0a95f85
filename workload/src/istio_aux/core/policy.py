"""What a cluster admin may set and the pure rules obey: small frozen types, no rules."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Capability(StrEnum):
    """What cluster and Istio can do for start order; it decides between the two ways to start."""

    NATIVE = "native"
    """A pod that asks for it gets a sidecar that is an init container and restarts always: Istio is
    1.24 or later, every kubelet 1.29 or later, and no other webhook or policy is in the way."""
    CLASSIC = "classic"
    """Only `holdApplicationUntilProxyStarts` is safe to ask for."""
    UNKNOWN = "unknown"
    """It has not been found out, or cannot be. It is never guessed: only hold is asked for then."""


class StartMode(StrEnum):
    """How a pod's sidecar is made to start first; `start.plan` says what each of them means."""

    AUTO = "auto"
    """Native for Job-like pods where cluster and Istio can, hold for all others."""
    NATIVE = "native"
    """Native for Job-like pods, whatever is known of cluster and Istio; hold for all others."""
    HOLD = "hold"
    OFF = "off"
    """Pods stay as their authors wrote them."""


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """How `start.plan` treats all pods; annotations of a pod refine it for that pod."""

    mode: StartMode = StartMode.AUTO
    capability: Capability = Capability.UNKNOWN


class QuitMode(StrEnum):
    """Whether proxies are really told to exit; `quit.decide` says the same in every mode."""

    ON = "on"
    DRY_RUN = "dry-run"
    """Everything is decided and shown, and nothing is done."""
    OFF = "off"
    """No pod is watched at all."""


class DeadProxy(StrEnum):
    """What becomes of a pod whose proxy ended for good although its payload may still run."""

    REPORT = "report"
    DELETE = "delete"
    """Where the pod's controller is known to make a new one (`ownership`); else reported too."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How `quit.decide` treats all pods; annotations of a pod refine it for that pod."""

    ignore_containers: frozenset[str] = frozenset()
    """Containers, by name, that never keep a pod's proxy alive."""
    grace: float = 0.0
    """Seconds that the proxy is left running after the last payload container finished, for
    telemetry that is still in flight (istio/proxy#2122)."""
    dead_proxy: DeadProxy = DeadProxy.REPORT
    """Whether a pod that lost its proxy may be deleted."""


class RacePolicy(StrEnum):
    """What becomes of pods that should have had a sidecar and have none (`repair.decide`)."""

    REPORT = "report"
    RESTART = "restart"
    """Evicted where the pod's controller is known to make a new one; else reported too."""
    OFF = "off"
    """Nobody looks for such pods."""


class Application(msgspec.Struct, frozen=True):
    """A Juju application: its model's namespace and the ``app.kubernetes.io/name`` of its pods."""

    namespace: str
    name: str


class RepairPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How `repair.decide` treats all pods."""

    race: RacePolicy = RacePolicy.REPORT
    restart_jobs: bool = False
    """Whether ``restart`` is meant for pods of Jobs as well. What such a pod has worked out is lost
    with it, and its end may count against its Job; without this they are only reported."""
    ours: Application | None = None
    """The application that istio-aux itself runs as; None where it runs in no pod."""
