"""Pods that missed their sidecar: a row says only what differs from a Deployment's ready pod."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from istio_aux.injector.capture import NodeAgent, read_config
from istio_aux.injector.injection import Expectation
from istio_aux.model import pod as pods
from istio_aux.model.annotations import DATAPLANE
from istio_aux.model.applications import Application
from istio_aux.model.pod import Pod
from istio_aux.model.policy import RacePolicy, RepairPolicy
from istio_aux.repair import rules
from istio_aux.repair.rules import Candidate
from msgspec import structs
from unit.rules.pods import JOB, RUNNING, State, document

REPLICAS = ("apps/v1", "ReplicaSet")
STATEFUL = ("apps/v1", "StatefulSet")

YES = Expectation(expected=True, reason="webhook namespace.sidecar-injector.istio.io selects it")
AMBIENT = Expectation(
    expected=True, reason='namespace label istio.io/dataplane-mode: "ambient"', ambient=True
)
NO = Expectation(expected=False, reason="no webhook selects it")
UNKNOWN = Expectation(expected=None, reason="the injector does not answer")

# Istio's CNI on the node of a pod.
CNI = read_config({"AMBIENT_RECONCILE_POD_RULES_ON_STARTUP": "true"})
READY = NodeAgent(ready_since=1.0, config=CNI, lacks="", place="istio-system/istio-cni-config")

OURS = Application("kubeflow", "istio-aux")
REPORT = RepairPolicy(race=RacePolicy.REPORT, ours=OURS)
RESTART = RepairPolicy(race=RacePolicy.RESTART, ours=OURS)
NONE = RepairPolicy(race=RacePolicy.NONE)


def raw(
    containers: Mapping[str, State] | None = None,
    *,
    name: str = "web-7d9f-x2k4j",
    namespace: str = "shop",
    uid: str = "pod-1",
    version: str = "41",
    owner: tuple[str, str] | None = REPLICAS,
    owner_uid: str = "owner-1",
    restart: str = "Always",
    ready: bool = True,
    created: str | None = None,
    controls: bool = True,
    **fields: Any,
) -> dict[str, Any]:
    """The pod as JSON; see `unit.rules.pods.document` for the other fields."""
    found = document(
        containers or {"main": RUNNING},
        restart=restart,
        owner=owner,
        conditions=[{"type": "Ready", "status": "True" if ready else "False"}],
        **fields,
    )
    found["metadata"] |= {
        "name": name, "namespace": namespace, "uid": uid, "resourceVersion": version,
    }  # fmt: skip
    if created is not None:
        found["metadata"]["creationTimestamp"] = created
    for reference in found["metadata"].get("ownerReferences", []):
        reference |= {"name": "web", "uid": owner_uid, "controller": controls}
    return found


def unmeshed(*args: Any, **fields: Any) -> Pod:
    """The same as a `Pod`."""
    return pods.convert(raw(*args, **fields))


def job(*args: Any, **fields: Any) -> Pod:
    """A pod of a Job, likewise."""
    return unmeshed(*args, **{"owner": JOB, "restart": "Never", **fields})


def ambient(
    redirection: str = "enabled",
    *,
    address: str = "10.0.0.7",
    renewed: bool = False,
    annotations: Mapping[str, str] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """One of an ambient mesh as JSON, with what Istio's CNI has annotated."""
    said = {"ambient.istio.io/redirection": redirection} if redirection else {}
    found = raw(annotations={**said, **(annotations or {})}, **fields)
    network = f"2026-11-21T{9 if renewed else 8:02}:16:30Z"
    got = {"type": "PodReadyToStartContainers", "status": "True", "lastTransitionTime": network}
    found["status"] |= {"podIP": address, "startTime": "2026-11-21T08:16:26Z"}
    found["status"]["conditions"].append(got)
    found["spec"]["nodeName"] = "node-1"
    return found


def agent(name: str = "istio-cni", *, ready: bool = True, **fields: Any) -> dict[str, Any]:
    """A pod of Istio's CNI, or of ztunnel, on the node of these pods."""
    label = {"istio-cni": {"k8s-app": "istio-cni-node"}, "ztunnel": {"app": "ztunnel"}}[name]
    found = raw(
        {"main": RUNNING}, name=name, namespace="istio-system", uid=name, ready=ready, labels=label,
        spec={"nodeName": "node-1"}, owner=("apps/v1", "DaemonSet"), **fields,
    )  # fmt: skip
    found["status"]["conditions"][0]["lastTransitionTime"] = "2026-11-20T08:00:00Z"
    return found


def cni(**settings: str) -> dict[str, Any]:
    """The ConfigMap of Istio's CNI, by default as Istio 1.29 and later write it."""
    about = {"name": "istio-cni-config", "namespace": "istio-system", "uid": "cni"}
    data = {"AMBIENT_RECONCILE_POD_RULES_ON_STARTUP": "true", **settings}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "data": data}


def decide(
    pod: Pod,
    policy: RepairPolicy = RESTART,
    expectation: Expectation = YES,
    *,
    live: bool | None = True,
    settled: bool = False,
    agent: NodeAgent = READY,
) -> rules.RepairAction:
    """Decide with the policy that does most."""
    around = rules.Around(expectation, live, agent, settled)
    labels = {DATAPLANE: "ambient"} if expectation.ambient else None
    found = Candidate.of(pod)
    found = structs.replace(
        found, injection=structs.replace(found.injection, namespace_labels=labels)
    )
    return rules.decide(found, around, policy)
