"""Controllers and their pods, which the scripted kubelet runs as soon as they are there.

The controllers are the cluster's own. The kubelet runs the pods that come in place of others, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lightkube import Client
from lightkube.codecs import AnyResource, from_dict
from lightkube.core.client import LabelValue
from lightkube.resources.core_v1 import Pod

from lab import images, until
from lab.kubelet.kubelet import NAME
from lab.kubelet.pods import AT_ONCE
from lab.meshed import is_ready, meta


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


@dataclass(frozen=True)
class Crowd:
    """The pods of a namespace that `gather` has made there."""

    client: Client
    namespace: str

    def pods(self, name: str = "") -> list[Pod]:
        """All of them, or those of one owner, sorted by name."""
        labels: dict[str, LabelValue] = {AT_ONCE: name or None}
        found = self.client.list(Pod, namespace=self.namespace, labels=labels)
        return sorted(found, key=lambda pod: str(meta(pod).name))

    def uids(self) -> dict[str, str]:
        """The UIDs of all by name."""
        return {str(meta(pod).name): str(meta(pod).uid) for pod in self.pods()}


def gather(client: Client, namespace: str, kinds: Mapping[str, Kind]) -> Crowd:
    """Make owners of these names in a namespace; return when all of their pods run."""
    for name, kind in kinds.items():
        for document in _controlled(namespace, name, kind):
            client.create(document)
    crowd, count = Crowd(client, namespace), sum(kind.count for kind in kinds.values())
    until(lambda: sum(map(is_ready, crowd.pods())) == count, what=f"{count} pods to run")
    return crowd


def _controlled(namespace: str, name: str, kind: Kind) -> list[AnyResource]:
    labels = {AT_ONCE: name, **kind.labels}
    container = {"name": "main", "image": images.BUSYBOX}
    spec = {"containers": [container], "nodeName": NAME, "terminationGracePeriodSeconds": 1}
    template: dict[str, Any] = {"metadata": {"labels": labels}, "spec": spec}
    selector: dict[str, Any] = {"matchLabels": {AT_ONCE: name}}
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
