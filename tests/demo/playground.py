"""A cluster to try istio-aux in: finished pods of a namespace hold the GPUs that others wait for.

istio-aux looks after `PROFILE`. Istio injects the pods of `FORGOTTEN`, and nobody looks after it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import lab
from lab.upstream import PROFILE as LABELS
from lightkube import Client
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace, Node, NodeStatus, Pod

from demo import scenes
from demo.scenes import Steps
from demo.story import Seen, pod_story

PROFILE, FORGOTTEN = "alice", "research"
EXAMPLES = ("tfjob.yaml", "pytorchjob.yaml", "job.yaml")
GPU = "nvidia.com/gpu"
EACH, PODS = 4, 6
GPUS = EACH * PODS
# The kubelet tries again after a second, and a proxy is ready within 300 s (`lab.until`).
TRIES = 600
COMMANDS = (
    "istio-aux audit",
    f"istio-aux explain {FORGOTTEN}/mnist-worker-0",
    f"kubectl get tfjobs,pods -n {PROFILE}",
    f"kubectl label namespace {FORGOTTEN} io.datastrophic/istio-aux=enabled",
)
"""What to try first."""


def furnish(cluster: lab.Cluster, steps: Steps) -> None:
    """Let pods hang that hold all GPUs of the node, on a stage, and a TFJob wait for some.

    The GPUs are resources that nothing is behind: `istio-aux audit` counts what pods request.
    """
    with cluster.client() as client:
        [node] = client.list(Node)
        assert node.metadata
        assert node.metadata.name
        client.patch(NodeStatus, node.metadata.name, {"status": {"capacity": {GPU: str(GPUS)}}})
        _schedulable(client, node.metadata.name)
        for name, labels in ((PROFILE, LABELS), (FORGOTTEN, {"istio-injection": "enabled"})):
            client.apply(Namespace(metadata=ObjectMeta(name=name, labels=labels)))
        for file in EXAMPLES:
            create(client, file, FORGOTTEN)
        lab.until(lambda: hung(client) == PODS, what=f"{PODS} pods of {FORGOTTEN} to hang")
        steps.done(f"{FORGOTTEN}: {PODS} pods are finished, hang, and hold {GPUS} GPUs")
        create(client, "tfjob.yaml", PROFILE)
        lab.until(lambda: refusals(client), what=f"the pods of {PROFILE} to find no GPU")
        steps.done(f"{PROFILE}: a TFJob waits for GPUs")


def create(client: Client, file: str, namespace: str) -> Any:
    """Create the job of an example in a namespace, each of its pods with some GPUs.

    A Job must not give up while its pods try again until their proxies are ready: each try counts.
    """
    job = scenes.example(scenes.EXAMPLES / file, namespace)
    spec = job["spec"]
    if job["kind"] == "Job":
        spec["backoffLimit"] = TRIES
    replicas = spec.get("tfReplicaSpecs") or spec.get("pytorchReplicaSpecs") or {"": spec}
    for replica in replicas.values():
        for container in replica["template"]["spec"]["containers"]:
            container["resources"] = {"limits": {GPU: EACH}}
    return client.create(scenes.RESOURCES[job["kind"]].from_dict(job))


def hung(client: Client) -> int:
    """How many pods hang although their payload succeeded."""
    now = datetime.now(UTC)
    stories = [
        pod_story([Seen(now, pod.to_dict())]) for pod in client.list(Pod, namespace=FORGOTTEN)
    ]
    return sum(s.hangs and bool(s.last_try and s.last_try.succeeded) for s in stories)


def refusals(client: Client) -> set[str]:
    """Why the scheduler finds no node for pods of the profile."""
    pods = client.list(Pod, namespace=PROFILE)
    conditions = [c for pod in pods if pod.status for c in pod.status.conditions or []]
    return {c.message or "" for c in conditions if c.reason == "Unschedulable"}


def _schedulable(client: Client, node: str) -> None:
    def offered() -> bool:
        status = client.get(Node, node).status
        return ((status and status.allocatable) or {}).get(GPU) == str(GPUS)

    lab.until(offered, what=f"node {node} to offer {GPUS} of {GPU}")
