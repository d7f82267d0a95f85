"""What may go wrong. A seed has some of the faults; each can be switched off alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from simulation.apiserver import Json, Stored
from simulation.cluster import Cluster
from simulation.kubelet import FOREVER, MISBEHAVING, Node, Plan, Run
from simulation.workloads import Job, Owner, ReplicaSet, StatefulSet, TFJob, is_deleting, is_ready

OF_REQUESTS = (
    "lost requests", "lost answers", "slow answers", "throttling", "server errors", "late errors",
    "watch lag",
)  # fmt: skip
OF_PODS = (
    "bad agents", "dead proxies", "failing payloads", "late status", "slow controllers",
    "never ready", "old kubelets",
)  # fmt: skip
_CROWDED = frozenset({"hung node", "crowd"})
_OF_RESTARTS = frozenset(
    {
        "stubborn owners", "terminations", "crashes", "freezes", "slow controllers", "late errors",
        "drains", "injector away",
    }
)  # fmt: skip
_OF_QUITS = frozenset(
    {
        "recreated pods", "slow answers", "bad agents", "watch lag", "silent watches",
        "failing payloads", "late errors", "old kubelets",
    }
)  # fmt: skip


def choose(seed: int) -> frozenset[str]:
    """The faults of a seed: some of all, or most of those that belong together and few others."""
    dice = Random(f"{seed} faults")
    kind = dice.random()
    if kind < 0.1:
        return _CROWDED | {name for name in ("bad agents",) if dice.random() < 0.5}
    likely = _OF_RESTARTS if kind < 0.35 else _OF_QUITS if kind < 0.6 else frozenset[str]()
    rare = 0.1 if likely else 0.3
    return frozenset(name for name in ALL if dice.random() < (0.6 if name in likely else rare))


def begin(cluster: Cluster, window: float) -> None:
    """Plan the faults of this cluster within ``window`` seconds."""
    world = cluster.world
    for name, happen in SCHEDULED.items():
        if name in world.faults:
            dice = world.dice(name)
            for _ in range(dice.choice((1, 1, 2, 3))):
                when = dice.uniform(3.0, window if dice.random() < 0.6 else window / 4)
                world.at(when, _unless_calm, cluster, happen, dice)


def _unless_calm(cluster: Cluster, happen: Callable[[Cluster, Random], None], dice: Random) -> None:
    if not cluster.world.calm:
        happen(cluster, dice)


# Units.


def _terminate(cluster: Cluster, dice: Random) -> None:
    if dice.random() < 0.5:
        dice.choice(cluster.units).terminate(renamed=dice.random() < 0.5)
        return
    cluster.world.tell("a rolling upgrade begins")
    for number, unit in enumerate(reversed(cluster.units)):
        cluster.world.after(number * dice.uniform(5, 15), _upgrade, cluster, unit.number)


def _upgrade(cluster: Cluster, number: int) -> None:
    if not cluster.world.calm:
        cluster.units[number - 1].terminate(renamed=True)


def _crash(cluster: Cluster, dice: Random) -> None:
    dice.choice(cluster.units).crash(renamed=dice.random() < 0.4)


def _freeze(cluster: Cluster, dice: Random) -> None:
    dice.choice(cluster.units).freeze(dice.choice((2.0, 8.0, 14.0, 20.0, 40.0)))


def _partition(cluster: Cluster, dice: Random) -> None:
    dice.choice(cluster.units).partition(dice.choice((3.0, 12.0, 20.0, 45.0, 80.0)))


def _step(cluster: Cluster, dice: Random) -> None:
    unit, by = dice.choice(cluster.units), dice.choice((-3600.0, -60.0, -5.0, 5.0, 3600.0))
    cluster.world.tell("the clock of {} steps by {:.0f} s", unit, by)
    unit.wall_offset += by


# The API server.


def _slow(cluster: Cluster, dice: Random) -> None:
    cluster.network.slow(dice.uniform(2.0, 30.0))


def _break(cluster: Cluster, dice: Random) -> None:
    unit = dice.choice(cluster.units)
    if unit.process:
        cluster.world.tell("the watches of {} break", unit)
        unit.process.client.break_watches()


def _silence(cluster: Cluster, dice: Random) -> None:
    unit = dice.choice(cluster.units)
    if unit.process:
        cluster.world.tell("the watches of {} fall silent", unit)
        unit.process.client.silence_watches(dice.choice(("", "/api/v1/pods")))


def _forget(cluster: Cluster, _dice: Random) -> None:
    cluster.world.tell("the API server forgets old versions")
    cluster.server.forget()


def _small_pages(cluster: Cluster, dice: Random) -> None:
    cluster.server.page = dice.choice((2, 3, 5))


def _failing_lists(cluster: Cluster, _dice: Random) -> None:
    """The conversion webhooks of some kinds are gone, for good."""
    cluster.server.broken |= {"pytorchjobs", "mpijobs", "paddlejobs", "xgboostjobs", "jaxjobs"}


def _budgets(cluster: Cluster, dice: Random) -> None:
    """A controller whose pods are not all Ready may lose none."""
    cluster.world.tell("there are PodDisruptionBudgets")

    def budget(pod: object) -> str:
        owner = cluster.owner(pod)  # type: ignore[arg-type]
        ready = sum(map(is_ready, owner.pods)) if owner else 0
        if owner and ready < owner.replicas:
            return "Cannot evict pod as it would violate the pod's disruption budget."
        return ""

    cluster.server.budget = budget


# Nodes.


def _hang(cluster: Cluster, dice: Random) -> None:
    _fail(cluster, dice, "{} answers no exec", "hung", 20)


def _die(cluster: Cluster, dice: Random) -> None:
    _fail(cluster, dice, "{} is lost", "dead", 10)


def _fail(cluster: Cluster, dice: Random, told: str, how: str, least: float) -> None:
    """Let a node fail for a time, unless one has failed already."""
    node = dice.choice(cluster.nodes.nodes[1:])
    if not any(each.hung or each.dead for each in cluster.nodes.nodes):
        cluster.world.tell(told, node.name)
        setattr(node, how, True)
        cluster.world.after(dice.uniform(least, 90), _recover, cluster, node)


def _recover(cluster: Cluster, node: Node) -> None:
    if node.hung or node.dead:
        cluster.world.tell("{} is well again", node.name)
        node.recover(cluster.world.now)


def _crowd(cluster: Cluster, dice: Random) -> None:
    """Many pods finish at once on a node."""
    for _ in range(12):
        run = Run(dice.uniform(3, 5))
        lone_pod(cluster, f"crowd-{cluster.server.version}", Plan({"main": [run]}))


# Istio and workloads.


def _injector(cluster: Cluster, dice: Random) -> None:
    if cluster.injector == "live":
        cluster.world.tell("istiod is down")
        cluster.injector = "down"
        cluster.world.after(dice.uniform(2, 25), setattr, cluster, "injector", "live")


def _scale(cluster: Cluster, dice: Random) -> None:
    if owner := _service(cluster, dice):
        before = owner.replicas
        owner.replicas = max(1, before + dice.choice((-1, -1, 1)))
        cluster.world.tell("{} is scaled from {} to {}", owner, before, owner.replicas)
        cluster.judge.scaled(owner)
        owner.poke()


def _drain(cluster: Cluster, dice: Random) -> None:
    """Somebody else evicts a pod."""
    if owner := _service(cluster, dice):
        pods = [pod for pod in owner.pods if not is_deleting(pod)]
        if pods:
            pod = dice.choice(pods)
            cluster.world.tell("somebody drains {}", pod.name[1])
            cluster.server.delete_pod(pod.name)


def recreate(cluster: Cluster, pod: Stored) -> None:
    """A pod is deleted, and made anew under its name with a payload that runs on."""
    now = cluster.server.get("pods", *pod.name)
    if cluster.world.calm or now is None or now.uid != pod.uid or cluster.injector == "down":
        return
    cluster.world.tell("{} is deleted and made anew", pod.name[1])
    cluster.server.remove("pods", pod.name)
    meta: Json = {"namespace": pod.name[0], "name": pod.name[1], "labels": {}}
    run = Run(cluster.world.dice("recreated pods").uniform(20, 60))
    cluster.create_pod(meta, "Never", Plan({"main": [run]}))


def _recreate(cluster: Cluster, _dice: Random) -> None:
    """From now on pods are made anew while somebody looks at them."""

    def race(pod: Stored) -> None:
        dice = cluster.world.dice("recreated pods")
        if "ownerReferences" not in pod.meta and dice.random() < 0.3:
            cluster.world.after(dice.choice((0.0, 0.2, 1.0, 3.0, 10.0)), recreate, cluster, pod)

    cluster.looked = race


def _stubborn(cluster: Cluster, dice: Random) -> None:
    """New pods of a controller get no sidecar, although they should."""
    if not cluster.owners:
        return
    owner = dice.choice(list(cluster.owners.values()))
    cluster.world.tell("new pods of {} get no sidecar from now on", owner)
    owner.stubborn = True


def _service(cluster: Cluster, dice: Random) -> Owner | None:
    found = [
        owner
        for owner in cluster.owners.values()
        if isinstance(owner, ReplicaSet | StatefulSet) and owner.namespace != "greedy"
    ]
    return dice.choice(found) if found else None


SCHEDULED: dict[str, Callable[[Cluster, Random], None]] = {
    "terminations": _terminate,
    "crashes": _crash,
    "freezes": _freeze,
    "partitions": _partition,
    "clock steps": _step,
    "slow API server": _slow,
    "broken watches": _break,
    "silent watches": _silence,
    "forgotten versions": _forget,
    "small pages": _small_pages,
    "failing lists": _failing_lists,
    "budgets": _budgets,
    "hung node": _hang,
    "lost node": _die,
    "crowd": _crowd,
    "injector away": _injector,
    "scaling": _scale,
    "drains": _drain,
    "recreated pods": _recreate,
    "stubborn owners": _stubborn,
}
ALL = (*OF_REQUESTS, *OF_PODS, *SCHEDULED)
QUIET = frozenset({"hung node", "crowd", "bad agents", "late status"})
"""Faults of nodes and pods that delay no other pod by more than one attempt."""


# What there is at the beginning, and what comes later.


def lone_pod(cluster: Cluster, name: str, plan: Plan, policy: str = "Never") -> None:
    """A pod without a controller, whose payload finishes; refused while istiod is down."""
    if cluster.injector == "down":
        return
    meta: Json = {"namespace": "batch", "name": name, "labels": {}}
    cluster.create_pod(meta, policy, plan)


def populate(cluster: Cluster) -> None:
    """Workloads from before Istio was installed."""
    dice = cluster.world.dice("workloads")
    never = "never ready" in cluster.world.faults
    for number in range(5 if never else 0):
        cluster.add(
            ReplicaSet(cluster, "greedy", f"greedy-{number}", 1,
                       lambda: Plan({"main": [Run(FOREVER)]}, None))
        )  # fmt: skip
    for name, kind in (("db", StatefulSet), ("web", ReplicaSet), ("cache", StatefulSet)):
        if dice.random() < 0.6:
            ready = dice.uniform(0.5, 8.0)
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
    seconds = dice.uniform(5, 60)
    return lambda: Plan({"main": [Run(seconds)]}, 1.0, _agent(cluster))


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
