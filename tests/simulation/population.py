"""What there is at the beginning, and what comes later."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from simulation.cluster import Cluster
from simulation.kubelet import FOREVER, MISBEHAVING, Plan, Run
from simulation.store import Json
from simulation.workloads import Job, ReplicaSet, StatefulSet, TFJob


def lone_pod(cluster: Cluster, name: str, plan: Plan, policy: str = "Never") -> None:
    """A pod without a controller, whose payload finishes; refused while istiod is down."""
    if cluster.injector == "down":
        return
    meta: Json = {"namespace": "batch", "name": name, "labels": {}}
    cluster.create_pod(meta, policy, plan)


def populate(cluster: Cluster) -> None:
    """Workloads from before Istio was installed."""
    dice = cluster.world.dice("workloads")
    for unit in cluster.units if "clock steps" in cluster.world.faults else ():
        unit.wall_offset = dice.choice((0.0, -900.0, 900.0))
    never = "never ready" in cluster.world.faults
    for number in range(5 if never else 0):
        cluster.add(
            ReplicaSet(cluster, "greedy", f"greedy-{number}", 1,
                       lambda: Plan({"main": [Run(FOREVER)]}, None))
        )  # fmt: skip
    for name, kind in (("db", StatefulSet), ("web", ReplicaSet), ("cache", StatefulSet)):
        if dice.random() < 0.6:
            ready = dice.uniform(0.5, dice.choice((8.0, 30.0)))
            cluster.add(
                kind(cluster, "apps", name, dice.choice((2, 2, 3)),
                     lambda ready=ready: Plan({"main": [Run(FOREVER)]}, ready))
            )  # fmt: skip
    for name, kind in (("mnist", TFJob), ("report", Job)):
        if dice.random() < 0.5:
            cluster.add(kind(cluster, "batch", name, 2, _jobs_plan(cluster, dice)))


def grow(cluster: Cluster, window: float) -> None:
    """Workloads from after that, which finish."""
    dice, world = cluster.world.dice("work"), cluster.world
    for number in range(dice.randint(2, 5)):
        plans = _plans(cluster, dice)
        policy = dice.choice(("Never", "OnFailure"))
        world.at(
            dice.uniform(1, window / 2), lone_pod, cluster, f"task-{number}", next(plans), policy
        )
    for name, kind in (("resnet", TFJob), ("nightly", Job)):
        if dice.random() < 0.5:
            plan = _jobs_plan(cluster, dice)
            world.at(
                dice.uniform(1, window / 2), _add, cluster, kind, name, dice.choice((1, 2)), plan
            )


def _add(
    cluster: Cluster, kind: type[Job], name: str, replicas: int, plan: Callable[[], Plan]
) -> None:
    cluster.add(kind(cluster, "batch", name, replicas, plan))


def _jobs_plan(cluster: Cluster, dice: Random) -> Callable[[], Plan]:
    seconds, native = dice.uniform(5, 60), None
    if "native sidecars" in cluster.world.faults:
        native = cluster.world.dice("native sidecars").uniform(1, 60)
    return lambda: Plan({"main": [Run(seconds)]}, 1.0, _agent(cluster), native=native)


def _agent(cluster: Cluster) -> list[str]:
    if "bad agents" not in cluster.world.faults:
        return []
    dice = cluster.world.dice("bad agents")
    return [dice.choice(MISBEHAVING) for _ in range(dice.choice((0, 1, 1, 2, 4)))]


def _plans(cluster: Cluster, dice: Random) -> Iterator[Plan]:
    world = cluster.world
    while True:
        runs, own = {"main": [Run(dice.uniform(2, 40))]}, ""
        if dice.random() < 0.3:
            runs["uploader"] = [Run(dice.uniform(2, 50))]
        if "failing payloads" in world.faults:
            odd = world.dice("failing payloads")
            runs["main"] = [Run(odd.uniform(2, 10), odd.choice((0, 1, 137))), *runs["main"]]
            own = odd.choice(("", "Never", "OnFailure"))
        dies = None
        if "dead proxies" in world.faults and world.dice("dead proxies").random() < 0.3:
            dies = world.dice("dead proxies").uniform(1, 20)
        yield Plan(runs, 1.0, _agent(cluster), dies, own)
