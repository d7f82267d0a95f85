"""One cluster: the model's parts together, Istio's injector, the workloads and the units."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from istio_aux.kube.errors import ApiError
from istio_aux.model.pod import PROXY
from istio_aux.model.policy import DeadProxy, QuitPolicy, RacePolicy, RepairPolicy
from istio_aux.model.webhooks import Address
from istio_aux.quit.attempt import QuitLimits
from istio_aux.settings import DEFAULTS, Settings

from simulation.ambient import Ambient
from simulation.client import Request
from simulation.kubelet import Nodes, Plan
from simulation.properties import Judge
from simulation.store import ApiServer, Change, Json, Stored
from simulation.unit import Unit
from simulation.workloads import Owner, has_sidecar, owner_of
from simulation.world import Network, World

NAMESPACES = ("apps", "batch", "greedy")
SELECTED = {"io.datastrophic/istio-aux": "enabled", "istio-injection": "enabled"}
LEASE = ("istio-aux", "istio-aux")
_BUNDLE = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tQUFBQS0tLS0tRU5EIENFUlRJRklDQVRFLS0tLS0="
_RULE = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
CONFIGURATION: Json = {
    "metadata": {"name": "istio-sidecar-injector", "labels": {"istio.io/rev": "default"}},
    "webhooks": [
        {
            "name": "namespace.sidecar-injector.istio.io",
            "clientConfig": {
                "service": {"namespace": "istio-system", "name": "istiod", "path": "/inject"},
                "caBundle": _BUNDLE,
            },
            "namespaceSelector": {"matchLabels": {"istio-injection": "enabled"}},
            "rules": [_RULE],
            "failurePolicy": "Fail",
        }
    ],
}
SLICE: Json = {
    "metadata": {
        "name": "istiod-1",
        "namespace": "istio-system",
        "labels": {"kubernetes.io/service-name": "istiod"},
    },
    "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": True}}],
    "ports": [{"name": "https-webhook", "port": 15017}],
}


_NATIVE = {"name": "native", "restartPolicy": "Always"}


class Cluster:
    """Everything that there is, and who acts at the moment."""

    def __init__(self, world: World, *, units: int) -> None:
        self.world = world
        self.server = ApiServer(world)
        self.network = Network(world)
        self.nodes = Nodes(world, self.server, 3)
        self.judge = Judge(self)
        self.nodes.told = self.judge.told
        self.owners: dict[str, Owner] = {}
        self.acting: Unit | None = None
        self.logged: list[str] = []  # Of unhandled exceptions.
        self.looked: Callable[[Stored], None] = lambda _pod: None  # A unit has read a pod.
        self.injector = "absent"  # Or `live`, or `down`: then no pod is created.
        self._place = world.dice("scheduler")
        self.server.admit = self._admit
        self.server.watchers.append(self._changed)
        for namespace in (*NAMESPACES, "istio-system", "istio-aux"):
            labels = SELECTED if namespace in NAMESPACES else {}
            self.server.create("namespaces", {"metadata": {"name": namespace, "labels": labels}})
        policy = {"metadata": {"namespace": "istio-system", "name": "istio-sidecar-injector"},
                  "data": {"config": "policy: enabled\n"}}  # fmt: skip
        self.server.create("configmaps", policy)
        for node in self.nodes.nodes:
            info = {"nodeInfo": {"kubeletVersion": node.version}}
            self.server.create("nodes", {"metadata": {"name": node.name}, "status": info})
        self.ambient: Ambient | None = None
        self.settings = self._settings()
        self.units = [Unit(self, number, self.settings) for number in range(1, units + 1)]
        world.runners += self.units

    def _settings(self) -> Settings:
        dice = self.world.dice("settings")
        delete = DeadProxy.DELETE if dice.random() < 0.5 else DeadProxy.REPORT
        return msgspec.structs.replace(
            DEFAULTS,
            webhook_address=Address("", 0),
            lease=LEASE,
            quit_policy=QuitPolicy(grace=dice.choice((0.0, 0.0, 10.0)), dead_proxy=delete),
            # With fewer slots a few pods suffice to fill them.
            quit_limits=QuitLimits(at_once=8, retries_at_once=4),
            repair_policy=RepairPolicy(race=RacePolicy.RESTART),
        )

    # Istio.

    def install_istio(self) -> None:
        """From now on new pods get sidecars."""
        self.world.tell("Istio is installed")
        self.injector = "live"
        self.server.create("endpointslices", SLICE)
        self.server.create("mutatingwebhookconfigurations", CONFIGURATION)

    def labels(self, namespace: str) -> Json:
        found = self.server.find("namespaces", "", namespace)
        return found.meta["labels"] if found else {}

    def injects(self, namespace: str) -> bool:
        return self.labels(namespace).get("istio-injection") == "enabled"

    def selects(self, namespace: str) -> bool:
        return self.labels(namespace).get("io.datastrophic/istio-aux") == "enabled"

    def _admit(self, pod: Json, namespace: str) -> Json:
        if not self.injects(namespace):
            return pod
        if self.injector == "down":
            why = f'failed calling webhook "{CONFIGURATION["webhooks"][0]["name"]}": no endpoints'
            raise ApiError(500, why, reason="InternalError")
        if self.injector == "absent":
            return pod
        proxy = {"name": PROXY, "image": "proxyv2"}
        return {**pod, "spec": {**pod["spec"], "containers": [*pod["spec"]["containers"], proxy]}}

    # Pods.

    def create_pod(self, meta: Json, policy: str, plan: Plan, *, bare: bool = False) -> Stored:
        """Create a pod as a client would; raises `ApiError`."""
        own = {"restartPolicy": plan.policy} if plan.policy else {}
        free = [node.name for node in self.nodes.nodes if not node.dead]
        pod: Json = {
            "metadata": meta,
            "spec": {
                "restartPolicy": policy,
                "terminationGracePeriodSeconds": 30,
                "nodeName": self._place.choice(free),
                "containers": [{"name": name, **own} for name in plan.runs],
                "initContainers": [] if plan.native is None else [_NATIVE],
            },
            "status": {"phase": "Pending"},
        }
        if not bare:
            pod = self._admit(pod, meta["namespace"])
        found = self.server.create("pods", pod)
        sidecar = "a sidecar" if has_sidecar(found) else "no sidecar"
        self.world.tell("{} is created with {} ({})", meta["name"], sidecar, found.uid)
        self.nodes.start(found, plan)
        return found

    def add(self, owner: Owner) -> Owner:
        """A workload of the cluster; new pods of some get no sidecar, although they should."""
        owner.stubborn = self.world.happens("stubborn owners", 0.3)
        self.owners[owner.uid] = owner
        return owner

    def owner(self, pod: Stored) -> Owner | None:
        return self.owners.get(owner_of(pod))

    def _changed(self, resource: str, change: Change) -> None:
        found = change.after or change.before
        if found is None:
            return
        if resource == "pods":
            self.judge.pod_changed(change)
            if owner := self.owner(found):
                owner.poke()
        elif owner := self.owners.get(found.uid):
            owner.poke()

    def perform(self, request: Request, do: Callable[[], bytes]) -> bytes:
        to = request.to
        body = msgspec.json.decode(request.body) if request.body else {}
        before = self.server.find(to.resource, to.namespace, to.name) if to.name else None
        self.judge.arrived(request, body)
        answer = do()
        self.judge.performed(request, body, before)
        if before and request.method == "GET" and to.resource == "pods":
            self.looked(before)
        return answer

    def restore(self) -> None:
        """Let etcd be restored: objects are as they were, and versions begin again."""
        self.world.tell("etcd is restored")
        self.server.restore()
        self.judge.restored()
        webhooks = self.server.objects["mutatingwebhookconfigurations"]
        if self.injector != "absent" and not webhooks:
            self.install_istio()
        self.nodes.restored()
        for owner in self.owners.values():
            owner.restored()

    def calm_down(self) -> None:
        """From now on nothing goes wrong any more."""
        self.world.tell("from here on nothing goes wrong any more")
        self.world.calm = True
        self.server.budget = lambda _pod: ""
        self.network.forbidden.clear()
        for node in self.nodes.nodes:
            node.recover(self.world.now)
        for unit in self.units:
            unit.calm_down()
        if self.ambient:
            self.ambient.calm_down()
        if self.injector == "down":
            self.injector = "live"

    def clear(self) -> None:
        """Delete all workloads and all pods, and let every unit see that."""
        for unit in self.units:
            unit.deaf = ""
        for owner in self.owners.values():
            owner.delete()
        for pod in list(self.server.list("pods")):
            self.server.delete_pod(pod.name)
