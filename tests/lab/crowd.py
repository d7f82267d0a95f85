"""Pods with every kind of owner, created before Istio is installed, and what runs them.

The controllers are the cluster's own. Pods with the label `KEPT` are run by a scripted kubelet as
soon as they are there, as are those that come in their place; the others stay Pending.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from lightkube import ApiError, Client
from lightkube.codecs import AnyResource, from_dict
from lightkube.core.client import LabelValue
from lightkube.models.meta_v1 import OwnerReference
from lightkube.resources.apps_v1 import DaemonSet, ReplicaSet, StatefulSet
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Pod, ReplicationController

from lab import creation, images, meshed
from lab.clusters import Cluster
from lab.kubelet import ScriptedKubelet
from lab.waiting import until

KEPT = "crowd.lab.test/kept"
STRIPPED = "crowd.lab.test/stripped"
"""Label of pods that a webhook of the test takes their sidecar from."""
INJECT = "sidecar.istio.io/inject"
OPERATOR = {"operator.juju.is/name": "modeloperator", "model.juju.is/disable-webhook": "true"}


@dataclass(frozen=True)
class Kind:
    """Some pods of one owner.

    Attributes:
        owner: kind of the real controller that makes them.
        count: how many pods.
        fate: what the policy `restart` does to them: ``replaced``, ``refused`` by a budget,
            ``stopped`` after the first one, ``reported``, or ``ignored``: they need no sidecar.
        kept: whether they run.
        labels: of the pods.
        budgets: specs of PodDisruptionBudgets, without their selectors.
    """

    owner: str
    count: int
    fate: str
    kept: bool = False
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    budgets: tuple[dict[str, Any], ...] = ()


OWNED = {
    "plain": Kind("ReplicaSet", 4, "replaced", kept=True),
    "web": Kind("ReplicaSet", 3, "replaced", kept=True, budgets=({"maxUnavailable": 1},)),
    "db": Kind("StatefulSet", 3, "replaced", kept=True),
    "agent": Kind("DaemonSet", 1, "replaced", kept=True),
    "old": Kind("ReplicationController", 2, "replaced", kept=True),
    "held": Kind("ReplicaSet", 2, "refused", kept=True, budgets=({"minAvailable": 2},)),
    "twice": Kind("ReplicaSet", 1, "refused", kept=True, budgets=({"minAvailable": 0},) * 2),
    "hopeless": Kind("ReplicaSet", 3, "stopped", kept=True, labels={STRIPPED: "yes"}),
    "batch": Kind("Job", 2, "reported", kept=True),
    "out": Kind("ReplicaSet", 6, "ignored", labels={INJECT: "false"}),
    "modeloperator": Kind("ReplicaSet", 4, "ignored", labels=OPERATOR),
}
UNOWNED = {
    "bare": Kind("", 40, "reported"),
    "training": Kind("TFJob", 6, "reported"),
}
OWNERS: Mapping[str, Any] = {
    "DaemonSet": DaemonSet,
    "Job": Job,
    "ReplicaSet": ReplicaSet,
    "ReplicationController": ReplicationController,
    "StatefulSet": StatefulSet,
}
KINDS = {**OWNED, **UNOWNED}
# Measured on 2 busy cores: all are there after 8 s.
PATIENCE = 100.0


def populate(cluster: Cluster, namespace: str) -> None:
    """Make all of `KINDS`, and return when controllers have made theirs."""
    with cluster.client() as client:
        for name, kind in OWNED.items():
            for document in controlled(namespace, name, kind):
                client.create(document)
        pods = [
            _unowned(namespace, f"{name}-{number}", kind)
            for name, kind in UNOWNED.items()
            for number in range(kind.count)
        ]
        for made in creation.create(cluster, *pods):
            assert made.status == 201, made.body
        until(
            lambda: all(_made(client, namespace, name) for name in OWNED),
            timeout=PATIENCE,
            what="all pods to be there",
            every=0.2,
        )


def _made(client: Client, namespace: str, name: str) -> bool:
    """Whether a controller's status counts all its pods; the name of the count differs by kind."""
    kind = OWNED[name]
    owner = client.get(OWNERS[kind.owner], name, namespace=namespace)
    status = owner.to_dict().get("status", {})
    counts = ("replicas", "currentNumberScheduled", "active")
    return kind.count in {status.get(count) for count in counts}


class Keeper:
    """Runs the pods of a namespace that are to run, while it is open."""

    def __init__(self, cluster: Cluster, kubelet: ScriptedKubelet, namespace: str) -> None:
        self._ran = set[str]()
        self._client, self._kubelet, self.namespace = cluster.client(), kubelet, namespace
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keeper")
        self._error: Exception | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._error:
            raise self._error

    def pods(self, name: str = "") -> list[Pod]:
        """Those that are to run, sorted by name. Raises the error that ended the thread."""
        if self._error:
            raise self._error
        labels: dict[str, LabelValue] = {KEPT: name or None}
        found = self._client.list(Pod, namespace=self.namespace, labels=labels)
        return sorted(found, key=lambda pod: str(pod.metadata and pod.metadata.name))

    def await_ready(self) -> None:
        """Return when all of them are there and Ready. Raises TimeoutError."""
        count = sum(kind.count for kind in OWNED.values() if kind.kept)
        until(
            lambda: sum(map(meshed.is_ready, self.pods())) == count,
            timeout=PATIENCE,
            what=f"{count} pods to be Ready",
        )

    def _start(self, pod: Pod, uid: str) -> None:
        try:
            self._kubelet.run(pod)
        except ApiError as error:
            # Listed a moment ago, it may be gone by now. In a conflict it is run as it is then.
            if error.status.code not in {404, 409}:
                raise
        else:
            self._ran.add(uid)

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.1):
                for pod in self.pods():
                    assert pod.metadata
                    uid = str(pod.metadata.uid)
                    if uid not in self._ran and not pod.metadata.deletionTimestamp:
                        self._start(pod, uid)
        except Exception as error:  # A thread cannot fail a test.
            self._error = error


def kind_of(pod: str) -> str:
    """The key in `KINDS` of a pod by its name."""
    return max((name for name in KINDS if pod.startswith(f"{name}-")), key=len)


def controlled(namespace: str, name: str, kind: Kind) -> list[AnyResource]:
    """The controller and its budgets."""
    labels = {"crowd": name, **({KEPT: name} if kind.kept else {}), **kind.labels}
    container = {"name": "main", "image": images.BUSYBOX}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 1}
    template: dict[str, Any] = {"metadata": {"labels": labels}, "spec": spec}
    selector: dict[str, Any] = {"matchLabels": {"crowd": name}}
    details: dict[str, Any] = {"template": template, "selector": selector, "replicas": kind.count}
    match kind.owner:
        case "Job":
            spec["restartPolicy"] = "Never"
            details = {"template": template, "parallelism": kind.count, "completions": kind.count}
        case "ReplicationController":
            details["selector"] = selector["matchLabels"]
        case "StatefulSet":
            details |= {"serviceName": name, "podManagementPolicy": "Parallel"}
        case "DaemonSet":
            del details["replicas"]
        case _:
            pass
    version = {"Job": "batch/v1", "ReplicationController": "v1"}.get(kind.owner, "apps/v1")
    documents = [(version, kind.owner, name, details)] + [
        ("policy/v1", "PodDisruptionBudget", f"{name}-{number}", {"selector": selector, **budget})
        for number, budget in enumerate(kind.budgets)
    ]
    return [
        from_dict(
            {
                "apiVersion": version,
                "kind": what,
                "metadata": {"name": called, "namespace": namespace},
                "spec": spec,
            }
        )
        for version, what, called, spec in documents
    ]


def _unowned(namespace: str, name: str, kind: Kind) -> Pod:
    """A pod that no controller of the cluster's makes."""
    owner = None
    if kind.owner:
        owner = OwnerReference(
            apiVersion="kubeflow.org/v1",
            kind=kind.owner,
            name="gone",
            uid="00000000-gone",
            controller=True,
        )
    return meshed.pod(namespace, name, sidecar=None, restart_policy="Always", owner=owner)
