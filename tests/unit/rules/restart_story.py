"""What happens to the pods of one controller while they are restarted, told step by step."""

from __future__ import annotations

from typing import Any

from istio_aux.model.moment import Moment
from istio_aux.repair.rollout import (
    Next,
    Replica,
    Rollout,
    RolloutLimits,
    Sidecar,
    Step,
    next_step,
    observed,
    refused,
    started,
)
from msgspec import structs

LIMITS = RolloutLimits(
    at_once=2, patience=600.0, unconfirmed=60.0, first_retry=10.0, last_retry=300.0
)


def bare(name: str, uid: str = "", *, ready: bool = True, **more: Any) -> Replica:
    """A pod without a sidecar that may be restarted."""
    place = name.removeprefix("web-")
    details = {"sidecar": Sidecar.MISSING, "restart": True} | more
    return Replica(
        name=name,
        uid=uid or f"old-{name}",
        ready=ready,
        ordinal=int(place) if place.isdigit() else None,
        **details,
    )


def meshed(name: str, uid: str = "", **more: Any) -> Replica:
    """A pod with a sidecar."""
    return bare(name, uid or f"new-{name}", sidecar=Sidecar.PRESENT, restart=False, **more)


def going(pod: Replica) -> Replica:
    """The same pod with a deletionTimestamp."""
    sidecar = Sidecar.PRESENT if pod.sidecar is Sidecar.PRESENT else Sidecar.UNWANTED
    return structs.replace(pod, sidecar=sidecar, ready=False, deleting=True, restart=False)


class Story:
    """What happens to one controller."""

    def __init__(self, *pods: Replica, wall: float = 1e9) -> None:
        self.pods, self.rollout = pods, Rollout()
        self.now = Moment(1000.0, wall)
        self.gone: dict[str, float] = {}

    @property
    def next(self) -> Step | None:
        return next_step(self.rollout, self.pods, self.now, LIMITS)

    def evict(self) -> str:
        """Do what is next; returns the name of the pod."""
        found = self.next
        assert isinstance(found, Next), found
        self.rollout = started(self.rollout, self.pods, found.pod, self.now)
        return found.pod.name

    def refuse(self, why: str) -> None:
        self.rollout = refused(self.rollout, why, self.now, LIMITS)

    def see(self, *pods: Replica, after: float = 1.0) -> Step | None:
        """Some time later the controller has these pods; returns what is next."""
        self.now = Moment(self.now.monotonic + after, self.now.wall + after)
        self.pods = pods
        self.rollout = observed(self.rollout, pods, self.now, LIMITS, self.gone)
        return self.next
