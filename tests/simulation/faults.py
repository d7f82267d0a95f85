"""What there is at the beginning, what comes later, and what may go wrong.

A seed has some of the faults; each can be switched off alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from istio_aux.kube.actions import NAMESPACES, PODS
from istio_aux.model.policy import QuitMode, RacePolicy, RepairPolicy
from msgspec import structs

from simulation.cluster import LEASE, SELECTED, Cluster
from simulation.kubelet import FOREVER, MISBEHAVING, NEW, Node, Plan, Run
from simulation.store import Json, Stored
from simulation.workloads import (
    Job,
    Owner,
    ReplicaSet,
    StatefulSet,
    TFJob,
    has_sidecar,
    is_deleting,
    is_ready,
)


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
    for number in range(5 if "never ready" in cluster.world.faults else 0):
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


OF_REQUESTS = (
    "lost requests", "lost answers", "slow answers", "throttling", "server errors", "late errors",
    "watch lag", "late requests",
)  # fmt: skip
OF_PODS = (
    "bad agents", "dead proxies", "failing payloads", "late status", "slow controllers",
    "never ready", "old kubelets", "native sidecars", "defects",
)  # fmt: skip
_VERBS = [
    ("GET", "pods", ""), ("POST", "pods", "exec"), ("POST", "pods", "eviction"),
    ("GET", "namespaces", ""), ("PUT", "leases", ""), ("GET", "nodes", ""), ("POST", "pods", ""),
]  # fmt: skip
_CROWDED = frozenset({"hung node", "crowd"})
_OF_RESTARTS = frozenset(
    {
        "stubborn owners", "terminations", "crashes", "freezes", "slow controllers", "late errors",
        "drains", "injector away", "late requests", "native sidecars", "clock steps",
        "tampered Lease", "relabelled namespaces", "unreadable policies",
    }
)  # fmt: skip
_OF_QUITS = frozenset(
    {
        "recreated pods", "slow answers", "bad agents", "watch lag", "silent watches",
        "failing payloads", "late errors", "old kubelets", "proxy crashes", "power cuts",
        "relabelled namespaces", "new settings", "deaf units",
    }
)  # fmt: skip
_DISASTERS = frozenset(
    {
        "reboots", "power cuts", "kubelet restarts", "kubelet upgrades", "restored etcd",
        "missing rights", "paused machines", "watch lag", "deaf units", "tampered Lease",
        "failing payloads", "silent watches",
    }
)  # fmt: skip


def choose(seed: int) -> frozenset[str]:
    """The faults of a seed: some of all, or most of those that belong together and few others."""
    dice = Random(f"{seed} faults")
    kind = dice.random()
    if kind < 0.1:
        return _CROWDED | {name for name in ("bad agents",) if dice.random() < 0.5}
    groups = ((0.3, _OF_RESTARTS), (0.5, _OF_QUITS), (0.7, _DISASTERS))
    likely = next((group for most, group in groups if kind < most), frozenset[str]())
    rare = 0.07 if likely else 0.2
    return frozenset(name for name in ALL if dice.random() < (0.5 if name in likely else rare))


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


def _reconfigure(cluster: Cluster, dice: Random) -> None:
    """Options change: one unit after another starts again with the new ones."""
    race, mode = RepairPolicy(race=dice.choice([*RacePolicy])), dice.choice([*QuitMode])
    cluster.settings = structs.replace(cluster.settings, quit=mode, repair_policy=race)
    cluster.world.tell("quit: {}, race-policy: {}", mode, race.race)
    for number, unit in enumerate(reversed(cluster.units)):
        cluster.world.after(number * dice.uniform(5, 15), unit.configure)


def _pause(cluster: Cluster, dice: Random) -> None:
    """A machine stands still: a unit, and a node with its kubelet."""
    dice.choice(cluster.units).freeze(dice.choice((5.0, 16.0, 30.0, 100.0)))
    _die(cluster, dice)


def _deafen(cluster: Cluster, dice: Random) -> None:
    """A unit learns nothing more of a collection, for good; another one does."""
    unit, path = dice.choice(cluster.units), dice.choice((PODS, NAMESPACES, NAMESPACES))
    if unit.process and len(cluster.units) > 1 and not any(each.deaf for each in cluster.units):
        cluster.world.tell("{} reads {} no more", unit, path)
        unit.deaf = path
        unit.process.client.break_watches(path)


def _tamper(cluster: Cluster, dice: Random) -> None:
    """The Lease is deleted, emptied or taken; its holder is killed, or all units later."""
    how = dice.choice(("deleted", "emptied", "taken"))
    taken = {"holderIdentity": "others", "leaseDurationSeconds": 40} if how == "taken" else {}

    def change(found: Json) -> None:
        found["metadata"]["annotations"] = {}
        found["spec"] |= taken

    cluster.world.tell("the Lease is {}", how)
    if how == "deleted":
        cluster.server.remove("leases", *LEASE)
    else:
        cluster.server.update("leases", LEASE, change)
    cluster.judge.tamper()
    for unit in cluster.units if taken else ():
        cluster.world.after(dice.uniform(25, 36), unit.crash)
    if not taken and dice.random() < 0.6:
        for unit in cluster.units:
            if unit.process and unit.process.name in cluster.judge.held:
                unit.crash(renamed=True)


def _step(cluster: Cluster, dice: Random) -> None:
    unit, by = dice.choice(cluster.units), dice.choice((-3600.0, -60.0, -5.0, 5.0, 3600.0))
    cluster.world.tell("the clock of {} steps by {:.0f} s", unit, by)
    unit.wall_offset += by


# The API server.


def _forbid(cluster: Cluster, dice: Random) -> None:
    verbs = dice.sample(_VERBS, dice.choice((1, 1, 2, len(_VERBS))))
    cluster.world.tell("forbidden: {}", verbs)
    cluster.network.forbidden |= set(verbs)
    cluster.world.after(dice.uniform(5, 90), cluster.network.forbidden.difference_update, verbs)


def _restore(cluster: Cluster, dice: Random) -> None:
    """etcd is restored from what is there now."""
    cluster.server.save()
    cluster.world.after(dice.uniform(3, 60), _restored, cluster, dice)


def _restored(cluster: Cluster, dice: Random) -> None:
    if not cluster.world.calm:
        cluster.restore()
        _stop(cluster, dice.uniform(0.5, 10))


def _stop(cluster: Cluster, seconds: float) -> None:
    """No API server listens."""
    for unit in cluster.units:
        unit.partition(seconds)


def _cut_power(cluster: Cluster, dice: Random) -> None:
    """API server and a node restart together."""
    cluster.server.restart()
    _stop(cluster, dice.uniform(0.1, 5))
    _reboot(cluster, dice)


def _stop_policies(cluster: Cluster, _dice: Random) -> None:
    """The injection policy can be read no more, for good."""
    cluster.server.broken.add("configmaps")


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


def _die(cluster: Cluster, dice: Random) -> None:
    _fail(cluster, dice, "{} is lost", "dead", 10)


def _fail(cluster: Cluster, dice: Random, told: str, how: str, least: float) -> None:
    """Let a node fail for a time, unless one has failed already."""
    if node := _well_node(cluster, dice):
        cluster.world.tell(told, node.name)
        setattr(node, how, True)
        cluster.world.after(dice.uniform(least, 90), _recover, cluster, node)


def _well_node(cluster: Cluster, dice: Random) -> Node | None:
    """A node that may fail: none has failed."""
    node = dice.choice(cluster.nodes.nodes[1:])
    return None if any(each.hung or each.dead for each in cluster.nodes.nodes) else node


def _reboot(cluster: Cluster, dice: Random) -> None:
    if node := _well_node(cluster, dice):
        cluster.world.tell("{} reboots", node.name)
        seconds = dice.choice((0.5, dice.uniform(1, 30)))
        cluster.nodes.reboot(node, seconds)
        cluster.world.after(seconds, _recover, cluster, node)


def _restart_kubelet(cluster: Cluster, dice: Random) -> None:
    node = dice.choice(cluster.nodes.nodes)
    cluster.nodes.restart(node, node.version)


def _upgrade_kubelets(cluster: Cluster, dice: Random) -> None:
    """Old kubelets are upgraded, while containers with their own restart policies fail."""
    for _ in range(8):
        own, pods = (dice.choice(("Never", "OnFailure")) for _ in range(2))
        plan = Plan({"main": [Run(dice.uniform(2, 6), 1), Run(5.0)]}, policy=own)
        name = f"mixed-{dice.randrange(10**9)}"
        cluster.world.after(dice.uniform(0, 40), lone_pod, cluster, name, plan, pods)
    for node in cluster.nodes.nodes:
        cluster.world.after(dice.uniform(5, 30), cluster.nodes.restart, node, NEW)


def _crash_proxies(cluster: Cluster, dice: Random) -> None:
    for box in cluster.nodes.sandboxes.values():
        if box.proxy and dice.random() < 0.4:
            cluster.nodes.exit(box, box.proxy, 139, box.proxy.starts)


def _recover(cluster: Cluster, node: Node) -> None:
    if node.hung or node.dead:
        cluster.world.tell("{} is well again", node.name)
        node.recover(cluster.world.now)


def _crowd(cluster: Cluster, dice: Random) -> None:
    """Many pods finish at once on a node."""
    for _ in range(12):
        lone_pod(
            cluster, f"crowd-{cluster.server.version}", Plan({"main": [Run(dice.uniform(3, 5))]})
        )


# Istio and workloads.


def _injector(cluster: Cluster, dice: Random) -> None:
    if cluster.injector == "live":
        cluster.world.tell("istiod is down")
        cluster.injector = "down"
        cluster.world.after(dice.uniform(2, 25), setattr, cluster, "injector", "live")


def _relabel(cluster: Cluster, dice: Random) -> None:
    """A namespace loses labels, for a while or for good."""
    name, lost = dice.choice(("apps", "batch")), dice.choice([SELECTED, *SELECTED])
    _label(cluster, name, {key: value for key, value in SELECTED.items() if key not in lost})
    if dice.random() < 0.7:
        cluster.world.after(dice.uniform(3, 80), _label, cluster, name, SELECTED)


def _label(cluster: Cluster, name: str, labels: Json) -> None:
    cluster.world.tell("namespace {} has the labels {}", name, [*labels])
    change = {"labels": dict(labels)}
    cluster.server.update("namespaces", ("", name), lambda found: found["metadata"].update(change))
    cluster.judge.relabelled(name)


def _scale(cluster: Cluster, dice: Random) -> None:
    if owner := _service(cluster, dice):
        before = owner.replicas
        owner.replicas = max(1, before + dice.choice((-1, -1, 1)))
        cluster.world.tell("{} is scaled from {} to {}", owner, before, owner.replicas)
        cluster.judge.scaled(owner)
        owner.poke()


def _drain(cluster: Cluster, dice: Random) -> None:
    """Somebody else evicts a pod, now or as soon as a new one is Ready."""
    owner = _service(cluster, dice)
    if owner and not owner.deleted and dice.random() < 0.6:
        before = sum(has_sidecar(pod) and is_ready(pod) for pod in owner.pods)
        _drain_next(cluster, dice, owner, before)
    elif owner:
        _evict(cluster, dice, owner)


def _drain_next(cluster: Cluster, dice: Random, owner: Owner, before: int) -> None:
    if sum(has_sidecar(pod) and is_ready(pod) for pod in owner.pods) > before:
        _evict(cluster, dice, owner)
    elif not cluster.world.calm:
        cluster.world.after(0.1, _drain_next, cluster, dice, owner, before)


def _evict(cluster: Cluster, dice: Random, owner: Owner) -> None:
    if pods := [pod for pod in owner.pods if not is_deleting(pod)]:
        pod = dice.choice(pods)
        cluster.world.tell("somebody drains {}", pod.name[1])
        cluster.server.delete_pod(pod.name)


def recreate(cluster: Cluster, pod: Stored) -> None:
    """A pod is deleted, and made anew under its name with a payload that runs on."""
    now = cluster.server.find("pods", *pod.name)
    if cluster.world.calm or now is None or now.uid != pod.uid or cluster.injector == "down":
        return
    cluster.world.tell("{} is deleted and made anew", pod.name[1])
    cluster.server.remove("pods", *pod.name)
    meta: Json = {"namespace": pod.name[0], "name": pod.name[1], "labels": {}}
    cluster.create_pod(
        meta, "Never", Plan({"main": [Run(cluster.world.dice("recreated pods").uniform(20, 60))]})
    )


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
    "crashes": lambda at, dice: dice.choice(at.units).crash(renamed=dice.random() < 0.4),
    "new settings": _reconfigure,
    "freezes": lambda at, dice: dice.choice(at.units).freeze(dice.choice((2, 8, 14, 20, 40))),
    "paused machines": _pause,
    "deaf units": _deafen,
    "tampered Lease": _tamper,
    "partitions": lambda at, dice: dice.choice(at.units).partition(
        dice.choice((3, 12, 20, 45, 80))
    ),
    "clock steps": _step,
    "slow API server": lambda at, dice: at.network.slow(dice.uniform(2.0, 30.0)),
    "missing rights": _forbid,
    "restored etcd": _restore,
    "power cuts": _cut_power,
    "unreadable policies": _stop_policies,
    "broken watches": _break,
    "silent watches": _silence,
    "forgotten versions": _forget,
    "small pages": lambda at, dice: setattr(at.server, "page", dice.choice((2, 3, 5))),
    "budgets": _budgets,
    "hung node": lambda at, dice: _fail(at, dice, "{} answers no exec", "hung", 20),
    "lost node": _die,
    "reboots": _reboot,
    "kubelet restarts": _restart_kubelet,
    "kubelet upgrades": _upgrade_kubelets,
    "proxy crashes": _crash_proxies,
    "crowd": _crowd,
    "relabelled namespaces": _relabel,
    "injector away": _injector,
    "scaling": _scale,
    "drains": _drain,
    "recreated pods": _recreate,
    "stubborn owners": _stubborn,
}
ALL = (*OF_REQUESTS, *OF_PODS, *SCHEDULED)
QUIET = frozenset({"hung node", "crowd", "bad agents", "late status"})
"""Faults of nodes and pods that delay no other pod by more than one attempt."""
