"""What happens to the pods of one controller while they are restarted, told step by step."""

from __future__ import annotations

import math
from typing import Any

from istio_aux.core.pacing import (
    Course,
    Group,
    Member,
    Mesh,
    Next,
    Pace,
    Step,
    begun,
    refused,
    seen,
    step,
)
from msgspec import structs

PACE = Pace(at_once=2, patience=600.0, doubt=60.0, first_retry=10.0, last_retry=300.0)


def bare(name: str, uid: str = "", *, ready: bool = True, **more: Any) -> Member:
    """A pod without a sidecar that may be restarted."""
    place = name.removeprefix("web-")
    details = {"mesh": Mesh.UNMESHED, "restart": True} | more
    return Member(
        name=name,
        uid=uid or f"old-{name}",
        ready=ready,
        ordinal=int(place) if place.isdigit() else None,
        **details,
    )


def meshed(name: str, uid: str = "", **more: Any) -> Member:
    """A pod with a sidecar."""
    return bare(name, uid or f"new-{name}", mesh=Mesh.MESHED, restart=False, **more)


def going(pod: Member) -> Member:
    """The same pod on its way out."""
    return structs.replace(pod, mesh=_going(pod), ready=False, deleting=True, restart=False)


def _going(pod: Member) -> Mesh:
    return Mesh.MESHED if pod.mesh is Mesh.MESHED else Mesh.UNWANTED


class Story:
    """What happens to one controller. A class because it remembers."""

    def __init__(self, *members: Member, at: float = math.inf) -> None:
        self.members, self.course, self.now, self.at = members, Course(), 1000.0, at

    @property
    def next(self) -> Step:
        return step(Group(self.members, self.course, self.at), self.now, PACE)

    def evict(self) -> str:
        """Do what is next; returns the name of the pod."""
        found = self.next
        assert isinstance(found, Next), found
        self.course = begun(Group(self.members, self.course), found.pod, self.now)
        return found.pod.name

    def refuse(self, why: str) -> None:
        self.course = refused(self.course, why, self.now, PACE)

    def see(self, *members: Member, after: float = 1.0) -> Step:
        """Some time later the controller has these pods; returns what is next."""
        self.now += after
        self.members = members
        self.course = seen(Group(members, self.course), self.now, PACE)
        return self.next
