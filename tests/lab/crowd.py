"""Controllers and their pods, which a scripted kubelet runs as soon as they are there.

The controllers are the cluster's own. It runs the pods that come in place of others, too.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from lightkube import ApiError
from lightkube.codecs import AnyResource, from_dict
from lightkube.core.client import LabelValue
from lightkube.resources.core_v1 import Pod

from lab import Cluster, images
from lab.kubelet import ScriptedKubelet

KEPT = "crowd.lab.test/kept"


@dataclass(frozen=True)
class Kind:
    """Some pods of one owner.

    Attributes:
        owner: kind of the real controller that makes them: DaemonSet, Job or ReplicaSet.
        count: how many pods.
        labels: of the pods.
        budgets: specs of PodDisruptionBudgets, without their selectors.
    """

    owner: str
    count: int
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    budgets: tuple[dict[str, Any], ...] = ()


class Keeper:
    """Runs the pods of a namespace that `controlled` describes, while it is open."""

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
        """Those pods, sorted by name. Raises the error that ended the thread."""
        if self._error:
            raise self._error
        labels: dict[str, LabelValue] = {KEPT: name or None}
        found = self._client.list(Pod, namespace=self.namespace, labels=labels)
        return sorted(found, key=lambda pod: str(pod.metadata and pod.metadata.name))

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


def controlled(namespace: str, name: str, kind: Kind) -> list[AnyResource]:
    labels = {KEPT: name, **kind.labels}
    container = {"name": "main", "image": images.BUSYBOX}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 1}
    template: dict[str, Any] = {"metadata": {"labels": labels}, "spec": spec}
    selector: dict[str, Any] = {"matchLabels": {KEPT: name}}
    details: dict[str, Any] = {"template": template, "selector": selector}
    match kind.owner:
        case "Job":
            spec["restartPolicy"] = "Never"
            details = {"template": template, "parallelism": kind.count, "completions": kind.count}
        case "ReplicaSet":
            details["replicas"] = kind.count
        case _:
            pass
    version = "batch/v1" if kind.owner == "Job" else "apps/v1"
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
