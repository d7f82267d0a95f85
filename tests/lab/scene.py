"""Pods that a scripted kubelet runs: a scene, whose story a test tells, and a crowd.

A scene is a namespace with pods: start them, look at them, await their end. A crowd has
controllers, the cluster's own, and pods that run as soon as they are there, also those that come in
place of others.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lightkube import Client
from lightkube.codecs import AnyResource, from_dict
from lightkube.core.client import LabelValue
from lightkube.resources.core_v1 import Event, Pod

from lab import images, meshed, until
from lab.kubelet import ScriptedKubelet
from lab.kubelet.kubelet import NAME
from lab.kubelet.pods import AT_ONCE
from lab.meshed import is_ready, meta


class Scene:
    """The pods of a namespace, run by a scripted kubelet; a workload serves ``control``."""

    def __init__(
        self, client: Client, kubelet: ScriptedKubelet, namespace: str, control: str
    ) -> None:
        self.client = client
        self.kubelet = kubelet
        self.namespace = namespace
        self._control = control

    def start(self, name: str, **what: Any) -> Pod:
        pod = self.client.create(meshed.pod(self.namespace, name, **what))
        self.kubelet.run(pod)
        return pod

    def look(self, pod: Pod) -> Pod:
        namespace, name = _name(pod).split("/")
        return self.client.get(Pod, name, namespace=namespace)

    def phase(self, pod: Pod) -> str | None:
        status = self.look(pod).status
        return status.phase if status else None

    def proxy_exit_code(self, pod: Pod) -> int | None:
        return meshed.proxy_exit_code(self.look(pod))

    def await_phase(self, pod: Pod, phase: str) -> None:
        until(lambda: self.phase(pod) == phase, what=f"pod {_name(pod)} to be {phase}")

    def notes(self, pod: Pod, reason: str = "") -> list[str]:
        """The notes of the Events on the pod, of this reason if there is one."""
        found = self.client.list(Event, namespace=self.namespace)
        mine = [event for event in found if event.involvedObject.uid == meshed.meta(pod).uid]
        return [event.message or "" for event in mine if reason in ("", event.reason)]

    def await_event(self, pod: Pod, reason: str) -> None:
        until(lambda: self.notes(pod, reason), what=f"Event {reason} on pod {_name(pod)}")

    def await_control(self) -> None:
        """Run a pod that must be freed, from its start to its end.

        Watch events come in order, and a pod that needs a quit gets it at once. So when this
        returns, an earlier change has had its effect: what the kubelet was not asked by then, it
        will not be asked.
        """
        control = self.client.create(meshed.pod(self._control, f"control-{secrets.token_hex(4)}"))
        self.kubelet.run(control)
        self.kubelet.finish(control, "main")
        self.await_phase(control, "Succeeded")


def _name(pod: Pod) -> str:
    return f"{meshed.meta(pod).namespace}/{meshed.meta(pod).name}"


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
