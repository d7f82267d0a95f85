"""A unit dies at each of its requests: the question of Sieve (OSDI 2022), asked of every step.

One run without faults numbers the requests of both units, renewals and Events among them. Then each
is played again with one death there; from then on nothing else goes wrong.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from simulation.client import Request
from simulation.cluster import Cluster
from simulation.faults import lone_pod
from simulation.kubelet import FOREVER, Plan, Run
from simulation.play import Result, run
from simulation.workloads import Job, ReplicaSet, StatefulSet, TFJob
from simulation.world import Lost, Network, Refusal, World

HOW = {
    "before": "the unit is killed, and the write never arrives",
    "at": "the write is performed, and the unit is killed before it hears of it",
    "after": "the unit is killed once it has heard the answer, and has begun what follows",
    "twice": "as at; and so is the unit that writes next",
    "frozen": "the write is performed, and the unit stands still for longer than its Lease",
    "reading": "the unit is killed while it waits for the answer to a read",
    "lost": "the unit lives on, and its watches bring no line any more until it notices",
}
WINDOW = 90.0  # Seconds in which everything is done that is to be done without a death.
_WAY = 0.002  # Seconds of one way.
_FROZEN = 20.0
_LOST: dict[str, Lost] = {"before": "before", "at": "after", "twice": "after", "reading": "after"}


class Death(NamedTuple):
    """What happens at a request; the first one has the number 1."""

    step: int = 0
    how: str = "at"

    def __str__(self) -> str:
        return f"{self.step}:{self.how}"

    @classmethod
    def read(cls, text: str) -> Death:
        step, _, how = text.partition(":")
        return cls(int(step), how)


class Steps(Network):
    """Takes no time by chance, numbers the requests, and lets a unit die at one of them."""

    def __init__(self, world: World, death: Death) -> None:
        super().__init__(world)
        self._death, self._struck, self._told = death, 0, ""
        self.requests: list[Request] = []

    def latency(self) -> float:
        return _WAY

    def lag(self) -> float:
        return _WAY

    def refusal(self, request: Request) -> Refusal | None:  # noqa: ARG002
        return None

    def way(self, request: Request) -> float:
        self._told = ""
        self.requests.append(request)
        again = self._death.how == "twice" and self._struck == 1 and request.writes
        if len(self.requests) == self._death.step or again:
            self._struck, self._told = self._struck + 1, self._death.how
            self._strike(request)
        return _WAY

    def lost(self, request: Request) -> Lost:  # noqa: ARG002  (`way` has just seen it)
        return _LOST.get(self._told, "")

    def _strike(self, request: Request) -> None:
        unit, world = request.process.unit, self._world
        world.tell("{}: {}", request, HOW[self._told])
        match self._told:
            case "frozen":
                world.after(0, unit.freeze, _FROZEN)
            case "lost":
                world.after(0, request.process.client.silence_watches)
            case "after":
                world.after(2.5 * _WAY, unit.crash)
            case _:
                world.after(0, unit.crash)


def play(death: Death, *, trace: bool = False) -> tuple[Result, list[Request]]:
    """Play one death; returns what became of it, and the requests."""
    random.seed(0)
    world = World(0, frozenset(), trace=trace)
    cluster = Cluster(world, units=2)
    steps = cluster.network = Steps(world, death)
    return run(cluster, _begin, WINDOW), steps.requests


def deaths(*hows: str, renewals: bool = True) -> list[Death]:
    """Each of these ways to die at each request; without ``renewals``, of the Lease at none."""
    requests = play(Death())[1]
    return [
        Death(step, how)
        for how in hows or HOW
        for step, request in enumerate(requests, 1)
        if request.writes is not (how == "reading")
        and (renewals or request.to.resource != "leases")
    ]


def _begin(cluster: Cluster, _window: float) -> None:
    """Each kind of write has a workload that needs it, all from before Istio was installed."""
    for kind, name, replicas in ((ReplicaSet, "web", 3), (StatefulSet, "db", 2)):
        cluster.add(kind(cluster, "apps", name, replicas, lambda: Plan({"main": [Run(FOREVER)]})))
    hopeless = ReplicaSet(cluster, "apps", "odd", 2, lambda: Plan({"main": [Run(FOREVER)]}))
    cluster.add(hopeless).stubborn = True
    for kind, name in ((TFJob, "mnist"), (Job, "report")):
        cluster.add(kind(cluster, "batch", name, 2, lambda: Plan({"main": [Run(50.0)]})))
    for number, unit in enumerate(cluster.units):
        cluster.world.at(4.0 + number, unit.start)
    cluster.world.at(3.0, cluster.install_istio)
    for when in (8.0, 20.0):
        cluster.world.at(when, lone_pod, cluster, f"task-{when:.0f}", Plan({"main": [Run(5.0)]}))
