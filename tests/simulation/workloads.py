"""The controllers of workloads, as far as restarts depend on what they do.

Each looks at its pods a little after they changed, and makes or deletes some. What is written about
them stands in the docstring of `istio_aux.repair.rollout`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from istio_aux.kube.errors import ApiError
from istio_aux.model.pod import PROXY

from simulation.kubelet import Plan
from simulation.store import KINDS, Stored

if TYPE_CHECKING:
    from simulation.cluster import Cluster

ENDED = frozenset({"Succeeded", "Failed"})


def phase(pod: Stored) -> str:
    """What is reported of a pod."""
    return pod.object.get("status", {}).get("phase", "Pending")


def is_ready(pod: Stored) -> bool:
    """Whether a pod is reported as Ready, and stays."""
    conditions = pod.object.get("status", {}).get("conditions") or ()
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return ready and not is_deleting(pod)


def has_sidecar(pod: Stored) -> bool:
    return any(each["name"] == PROXY for each in pod.object["spec"]["containers"])


def is_deleting(pod: Stored) -> bool:
    return "deletionTimestamp" in pod.meta


class Owner:
    """A controller of pods with a number of replicas, and its object in the API."""

    resource = ""
    policy = "Always"

    def __init__(
        self, cluster: Cluster, namespace: str, name: str, replicas: int, plan: Callable[[], Plan]
    ) -> None:
        self.cluster, self.world, self.server = cluster, cluster.world, cluster.server
        self.namespace, self.name, self.replicas, self.plan = namespace, name, replicas, plan
        self.stubborn = False  # Whether its new pods get no sidecar, whatever the injector does.
        self.deleted = False
        self._poked = False
        self._dice = cluster.world.dice(f"owner {name}")
        self._made = 0
        self.uid = self.server.create(
            self.resource, {"metadata": {"namespace": namespace, "name": name}}
        ).uid
        self.poke()

    def __str__(self) -> str:
        return f"{KINDS[self.resource][1]} {self.name}"

    @property
    def object(self) -> Stored | None:
        return self.server.find(self.resource, self.namespace, self.name)

    @property
    def pods(self) -> list[Stored]:
        return [pod for pod in self.server.list("pods") if owner_of(pod) == self.uid]

    def poke(self) -> None:
        """Something has changed: look at it a little later."""
        if not (self._poked or self.deleted):
            self._poked = True
            pause = 0.05 + 0.2 * self._dice.random()
            if self.world.happens("slow controllers", 0.1):
                pause += self.world.dice("slow controllers").uniform(1, 20)
            self.world.after(pause, self._look)

    def _look(self) -> None:
        self._poked = False
        if self.deleted or self.object is None:
            return
        try:
            self.sync()
        except ApiError:
            self.world.after(1.0 + self._dice.random(), self.poke)

    def sync(self) -> None:
        """Do what is to be done about the pods."""
        raise NotImplementedError

    def make(self, name: str) -> None:
        """Create a pod; `ApiError` if it is refused."""
        api, kind = KINDS[self.resource]
        reference = {"apiVersion": api, "kind": kind, "name": self.name, "uid": self.uid,
                     "controller": True}  # fmt: skip
        meta = {"namespace": self.namespace, "name": name, "ownerReferences": [reference],
                "labels": {"app": self.name}}  # fmt: skip
        self.cluster.create_pod(meta, self.policy, self.plan(), bare=self.stubborn)

    def fresh_name(self) -> str:
        self._made += 1
        return f"{self.name}-{self._made}"

    def restored(self) -> None:
        """Its object is as it was; or gone, and its pods go with it."""
        if self.object is None:
            self.delete()
        self.poke()

    def delete(self) -> None:
        self.deleted = True
        self.server.remove(self.resource, self.namespace, self.name)
        for pod in self.pods:
            self.server.delete_pod(pod.name)


def owner_of(pod: Stored) -> str:
    """The UID of a pod's controller; empty if it has none."""
    references = pod.meta.get("ownerReferences")
    return references[0]["uid"] if references else ""


class ReplicaSet(Owner):
    """Makes a new pod as soon as one has to end."""

    resource = "replicasets"

    def sync(self) -> None:
        active = [pod for pod in self.pods if not is_deleting(pod) and phase(pod) not in ENDED]
        for _ in range(self.replicas - len(active)):
            self.make(self.fresh_name())
        active.sort(key=lambda pod: (is_ready(pod), -pod.version))
        for pod in active[: max(0, len(active) - self.replicas)]:
            self.server.delete_pod(pod.name)


class StatefulSet(Owner):
    """Makes a pod only once those before it are Ready, and once the old one is gone."""

    resource = "statefulsets"

    def sync(self) -> None:
        found = {pod.name[1]: pod for pod in self.pods}
        for number in range(self.replicas):
            pod = found.pop(f"{self.name}-{number}", None)
            if pod is None:
                self.make(f"{self.name}-{number}")
                return
            if is_deleting(pod) or not is_ready(pod):
                return
        if found:
            self.server.delete_pod(max(found.values(), key=lambda pod: pod.name).name)


class Job(Owner):
    """A batch Job: a pod that is deleted counts as a failure."""

    resource = "jobs"
    policy = "Never"

    def __init__(self, *args: object, **kwargs: object) -> None:
        self.failed: dict[str, None] = {}  # UIDs of the pods that counted, in order.
        self.succeeded: dict[str, None] = {}
        self.outcome = ""
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]

    def sync(self) -> None:
        if self.outcome:
            return
        active = 0
        for pod in self.pods:
            if phase(pod) == "Succeeded":
                self.succeeded[pod.uid] = None
            elif phase(pod) == "Failed" or is_deleting(pod):
                self.failed.setdefault(pod.uid)
            else:
                active += 1
        if len(self.failed) > 3:
            self.finish("Failed", [*self.failed][-1])
        elif len(self.succeeded) >= self.replicas:
            self.finish("Complete")
        else:
            for _ in range(self.replicas - len(self.succeeded) - active):
                self.make(self.fresh_name())

    def finish(self, outcome: str, because: str = "") -> None:
        """It is complete, or has failed because of the pod with this UID."""
        self.outcome = outcome
        self.world.tell("{} is finished: {}", self, outcome)
        if outcome == "Failed":
            self.cluster.judge.job_failed(self, because)


class TFJob(Job):
    """A Job of the training operator.

    A pod that runs and has to end counts as failed (1.9 pkg/core/status.go).
    """

    resource = "tfjobs"

    def sync(self) -> None:
        if self.outcome:
            return
        found, done = {pod.name[1]: pod for pod in self.pods}, 0
        for number in range(self.replicas):
            pod = found.get(f"{self.name}-worker-{number}")
            if pod is None:
                self.make(f"{self.name}-worker-{number}")
            elif phase(pod) == "Failed" or (phase(pod) == "Running" and is_deleting(pod)):
                self.finish("Failed", pod.uid)
                return
            else:
                done += phase(pod) == "Succeeded"
        if done == self.replicas:
            self.finish("Succeeded")
