"""Pods that missed their sidecar: a row says only what differs from a Deployment's ready pod."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from istio_aux.injector.injection import Expectation
from istio_aux.model import pod as pods
from istio_aux.model.applications import Application
from istio_aux.model.pod import Pod
from istio_aux.model.policy import RacePolicy, RepairPolicy
from istio_aux.repair import rules
from istio_aux.repair.candidate import Candidate
from unit.rules.pods import RUNNING, State, document

REPLICAS = ("apps/v1", "ReplicaSet")
STATEFUL = ("apps/v1", "StatefulSet")
JOB = ("batch/v1", "Job")

YES = Expectation(expected=True, reason="webhook namespace.sidecar-injector.istio.io selects it")
AMBIENT = Expectation(
    expected=True, reason='namespace label istio.io/dataplane-mode: "ambient"', ambient=True
)
NO = Expectation(expected=False, reason="no webhook selects it")
UNKNOWN = Expectation(expected=None, reason="the injector does not answer")

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
        reference |= {"name": "web", "uid": owner_uid}
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


def decide(
    pod: Pod,
    policy: RepairPolicy = RESTART,
    expectation: Expectation = YES,
    *,
    live: bool | None = True,
    settled: bool = False,
    listens: bool | None = None,
) -> rules.RepairAction:
    """Decide with the policy that does most."""
    around = rules.Around(expectation, live, settled, listens)
    return rules.decide(Candidate.of(pod), around, policy)
