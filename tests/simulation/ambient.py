"""An ambient mesh: Istio's CNI agents, which capture pods at once, late or never, and ztunnel.

The truth about a pod is its `Capture`; its annotation may be older, or forged. Agents go away and
come back, ztunnel refuses, pods get another network, tenants write what the agents write.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from istio_aux.model.annotations import DATAPLANE, REDIRECTION
from istio_aux.model.findings import Code
from istio_aux.repair.rollout import Sidecar
from istio_aux.repair.rules import SETTLED

from simulation.kubelet import FOREVER, Plan, Run
from simulation.store import Change, Json, Name, Stored
from simulation.workloads import ReplicaSet, is_deleting

if TYPE_CHECKING:
    from simulation.cluster import Cluster
    from simulation.unit import Process

HOME, MESHED, EXCLUDED = "istio-system", "meshed", "excluded"
TOLD = 60.0  # Seconds within which a pod that is outside is told.
SEEN = 5.0  # Seconds after which every process has seen a change.
AGAIN = 5.0  # Seconds between two attempts of an agent.

OF_AMBIENT = (
    "late captures", "lost captures", "ztunnel refuses", "agents away", "renewed networks",
    "forged annotations", "forged agents", "changed settings", "agents anew",
)  # fmt: skip
_OTHERS = (
    "lost requests", "lost answers", "slow answers", "watch lag", "crashes", "terminations",
    "freezes", "partitions", "broken watches", "silent watches", "drains", "budgets", "scaling",
    "slow controllers", "late status", "unreadable policies", "clock steps",
)  # fmt: skip


def choose(seed: int) -> frozenset[str]:
    """The faults of a seed: of the mesh alone in each second one."""
    dice = Random(f"{seed} ambient faults")
    found = {name for name in OF_AMBIENT if dice.random() < 0.5}
    if seed % 2:
        found |= {name for name in _OTHERS if dice.random() < 0.2}
    return frozenset(found)


@dataclass
class Capture:
    """What is so with a pod of the mesh."""

    name: Name
    node: str
    captured: bool = False
    lost: bool = False  # Whether its agent does not try.
    forged: bool = False
    since: float = 0.0  # When `captured` changed, or what it depends on.


class Agent:
    """Istio's CNI agent of a node."""

    def __init__(self, node: str) -> None:
        self.node, self.ready = node, True
        self.since = 0.0


class Ambient:
    """The mesh of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._world, self._server = cluster, cluster.world, cluster.server
        self._dice = self._world.dice("ambient")
        self._renews = self._dice.random() < 0.7
        self._excluded = {EXCLUDED: 0.0}  # Since when.
        self._refuses = False
        self.pods: dict[str, Capture] = {}  # By UID.
        labels = {"io.datastrophic/istio-aux": "enabled", DATAPLANE: "ambient"}
        for namespace in (MESHED, EXCLUDED):
            about = {"name": namespace, "labels": labels}
            self._server.create("namespaces", {"metadata": about})
        about = {"namespace": HOME, "name": "istio-cni-config"}
        self._server.create("configmaps", {"metadata": about, "data": self._settings()})
        self.agents = {node.name: Agent(node.name) for node in cluster.nodes.nodes}
        for node in self.agents:
            self._make(f"istio-cni-{node}", node, HOME, {"k8s-app": "istio-cni-node"})
            self._make(f"ztunnel-{node}", node, HOME, {"app": "ztunnel"})
        self._server.watchers.append(self._changed)

    def begin(self, window: float) -> None:
        """Make workloads, and plan what goes wrong within ``window`` seconds."""
        plan = Plan({"main": [Run(FOREVER)]}, 1.0)
        for name, namespace, replicas in (
            ("web", MESHED, 3),
            ("api", MESHED, 2),
            ("x", EXCLUDED, 2),
        ):
            self._cluster.add(ReplicaSet(self._cluster, namespace, name, replicas, lambda: plan))
        for name, happen in _SCHEDULED.items():
            for _ in range(self._dice.choice((1, 2, 3)) if name in self._world.faults else 0):
                self._world.at(self._dice.uniform(3.0, window), self._unless_calm, happen)
        self._look()

    def calm_down(self) -> None:
        self._refuses = False
        for agent in self.agents.values():
            self._come_back(agent)

    # Agents.

    def _settings(self) -> Json:
        return {
            "AMBIENT_ENABLED": "true",
            "AMBIENT_RECONCILE_POD_RULES_ON_STARTUP": "true" if self._renews else "false",
            "EXCLUDE_NAMESPACES": ",".join(["kube-system", *self._excluded]),
        }

    def _make(self, name: str, node: str, namespace: str, labels: Json) -> None:
        about = {"namespace": namespace, "name": name, "labels": labels}
        spec = {"nodeName": node, "containers": [{"name": "main"}]}
        self._server.create("pods", {"metadata": about, "spec": spec, "status": self._ready(True)})

    def _ready(self, ready: bool) -> Json:
        condition = {
            "type": "Ready",
            "status": "True" if ready else "False",
            "lastTransitionTime": self._world.time(),
        }
        return {"phase": "Running", "conditions": [condition]}

    def _report(self, agent: Agent) -> None:
        name = HOME, f"istio-cni-{agent.node}"
        status = self._ready(agent.ready)
        self._server.update("pods", name, lambda found: found.update(status=status))

    def _go_away(self) -> None:
        agent = self._dice.choice([*self.agents.values()])
        if not agent.ready:
            return
        self._world.tell("the agent of {} is away", agent.node)
        agent.ready, agent.since = False, self._world.now
        self._report(agent)
        self._world.after(self._dice.choice((1.0, 5.0, 35.0, 75.0)), self._come_back, agent)

    def _come_back(self, agent: Agent) -> None:
        if agent.ready:
            return
        self._world.tell("the agent of {} is back", agent.node)
        agent.ready, agent.since = True, self._world.now
        self._report(agent)
        for uid, pod in self.pods.items():
            if pod.node != agent.node or pod.captured:
                continue
            pod.lost = False  # It looks at all pods when it starts.
            if self._said(pod) != "enabled":
                self._world.after(self._dice.uniform(0.3, 2.5), self._capture, uid)
            elif self._renews and not pod.forged:
                self._set(pod, captured=True)

    def _anew(self) -> None:
        """The pod of an agent is replaced, as by a rollout."""
        agent = self._dice.choice([*self.agents.values()])
        name = f"istio-cni-{agent.node}"
        if self._server.find("pods", HOME, name):
            self._server.remove("pods", HOME, name)
            agent.ready, agent.since = False, self._world.now
            self._world.after(self._dice.uniform(1, 8), self._again, agent, name)

    def _again(self, agent: Agent, name: str) -> None:
        if self._server.find("pods", HOME, name) is None:
            self._make(name, agent.node, HOME, {"k8s-app": "istio-cni-node"})
        self._come_back(agent)

    def _exclude(self) -> None:
        """An admin excludes the namespace, and the agents are rolled out."""
        if MESHED in self._excluded:
            return
        self._world.tell("{} is excluded", MESHED)
        self._excluded[MESHED] = self._world.now
        data, name = self._settings(), (HOME, "istio-cni-config")
        self._server.update("configmaps", name, lambda found: found.update(data=data))

    def _refuse(self) -> None:
        self._world.tell("ztunnel refuses")
        self._refuses = True
        self._world.after(self._dice.choice((10.0, 45.0)), setattr, self, "_refuses", False)

    # Pods.

    def _changed(self, resource: str, change: Change) -> None:
        found = change.after or change.before
        if resource != "pods" or found is None:
            return
        if change.after is None:
            self.pods.pop(found.uid, None)
        elif found.meta["namespace"] == HOME and is_deleting(found):
            self._world.after(0.1, self._server.remove, "pods", *found.name)
        elif found.meta["namespace"] in (MESHED, EXCLUDED) and found.uid not in self.pods:
            self._new(found)

    def _new(self, found: Stored) -> None:
        pod = Capture(found.name, found.object["spec"]["nodeName"], since=self._world.now)
        if found.meta.get("labels", {}).get("k8s-app"):
            return
        self.pods[found.uid] = pod
        pod.lost = self._world.happens("lost captures", 0.3)
        if self._world.happens("forged annotations", 0.2):
            pod.forged = True
            self._world.after(0.2, self._annotate, pod, "enabled")
            return
        late = self._world.happens("late captures", 0.3)
        seconds = self._dice.uniform(5, 70) if late else self._dice.uniform(0.1, 0.5)
        self._world.after(seconds, self._capture, found.uid)

    def _capture(self, uid: str) -> None:
        pod = self.pods.get(uid)
        if pod is None or pod.captured or pod.lost or pod.forged or pod.name[0] in self._excluded:
            return
        if not self.agents[pod.node].ready:
            return  # It will look at all pods when it is back.
        if self._refuses:
            self._annotate(pod, "pending")
            self._world.after(AGAIN, self._capture, uid)
            return
        self._annotate(pod, "enabled")
        self._set(pod, captured=True)

    def _set(self, pod: Capture, *, captured: bool) -> None:
        pod.captured, pod.since = captured, self._world.now

    def _annotate(self, pod: Capture, text: str) -> None:
        def change(found: Json) -> None:
            found["metadata"].setdefault("annotations", {})[REDIRECTION] = text

        self._world.tell("{} is annotated: {}", pod.name[1], text)
        self._server.update("pods", pod.name, change)

    def _said(self, pod: Capture) -> str:
        found = self._server.find("pods", *pod.name)
        return (found.meta.get("annotations") or {}).get(REDIRECTION, "") if found else ""

    def _renew(self) -> None:
        """Pods of a node get another network. Without its agent nothing captures that."""
        node = self._dice.choice([*self.agents])
        self._world.tell("the networks of {} are made anew", node)
        for uid, pod in self.pods.items():
            if pod.node == node and self._cluster.nodes.renew(uid) and not self.agents[node].ready:
                self._set(pod, captured=False)

    def _forge(self) -> None:
        """A tenant gives a pod the label of an agent."""
        name = f"forged-{self._dice.randrange(10**6)}"
        self._make(name, self._dice.choice([*self.agents]), MESHED, {"k8s-app": "istio-cni-node"})
        self._world.after(60.0, self._server.remove, "pods", MESHED, name)

    def _unless_calm(self, happen: Callable[[Ambient], None]) -> None:
        if not self._world.calm:
            happen(self)

    # What must hold.

    def evicted(self, pod: Stored) -> None:
        """A pod is evicted by a unit."""
        known = self.pods.get(pod.uid)
        if known is None:
            return
        now, agent = self._world.now, self.agents[known.node]
        if known.captured:
            self._world.violate("a captured pod is evicted", pod.name[1])
        if (pod.meta.get("annotations") or {}).get(REDIRECTION) == "pending":
            self._world.violate("a pod that waits for ztunnel is evicted", pod.name[1])
        if now > self._excluded.get(known.name[0], now) + SEEN:
            self._world.violate("a pod that nothing would capture is evicted", pod.name[1])
        if not agent.ready or now < agent.since + SETTLED - SEEN:
            self._world.violate("a pod is evicted that its agent may capture", pod.name[1])

    def _look(self) -> None:
        """In a quiet world, who is outside is told within a minute, and nobody else is."""
        if self._world.faults <= {*OF_AMBIENT}:
            for unit in self._cluster.units:
                process = unit.process
                if process and not process.stopping and self._world.now > process.began + TOLD:
                    self._compare(process)
        if not all(owner.deleted for owner in self._cluster.owners.values()):
            self._world.after(1.0, self._look)

    def _compare(self, process: Process) -> None:
        store = process.wiring._repair.store
        named = {
            pod.key.uid: getattr(pod.action, "code", "") for pod in store.find(Sidecar.MISSING)
        }
        now = self._world.now
        for uid, pod in self.pods.items():
            found, agent = self._server.find("pods", *pod.name), self.agents[pod.node]
            if found is None or is_deleting(found):
                continue
            if pod.captured and uid in named and now > pod.since + SEEN:
                self._world.violate("a captured pod is named", pod.name[1])
            excluded = self._excluded.get(pod.name[0])
            if excluded is not None:
                if now > max(excluded, process.began) + TOLD and named.get(uid) == Code.OUTSIDE:
                    self._world.violate("a pod of an excluded namespace is named", pod.name[1])
                continue
            box = self._cluster.nodes.sandboxes.get(uid)
            outside = not pod.captured and agent.ready and self._said(pod) == ""
            if outside and box and box.network:
                since = max(pod.since, agent.since, box.network, process.began) + TOLD + SEEN
                if now > since and uid not in named:
                    self._world.violate("a pod that is outside is not told", pod.name[1])


_SCHEDULED: dict[str, Callable[[Ambient], None]] = {
    "agents away": Ambient._go_away,
    "agents anew": Ambient._anew,
    "ztunnel refuses": Ambient._refuse,
    "renewed networks": Ambient._renew,
    "forged agents": Ambient._forge,
    "changed settings": Ambient._exclude,
}
