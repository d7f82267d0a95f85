"""Kueue 0.19, unmodified: its overlay `default`, without visibility of queues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lightkube import Client
from lightkube.generic_resource import create_global_resource, create_namespaced_resource
from lightkube.resources.admissionregistration_v1 import (
    MutatingWebhookConfiguration,
    ValidatingWebhookConfiguration,
)
from lightkube.resources.apps_v1 import Deployment
from lightkube.types import PatchType

from lab import Cluster, images, upstream

NAMESPACE, PREFIX = "kueue-system", "kueue-"
MANAGER = "controller-manager"
QUEUE = {"kueue.x-k8s.io/queue-name": "queue"}
# The CPU of each Job, and of a queue: one Job at a time.
SHARE = "100m"

_VERSION = "v1beta2"
Flavor = create_global_resource("kueue.x-k8s.io", _VERSION, "ResourceFlavor", "resourceflavors")
ClusterQueue = create_global_resource("kueue.x-k8s.io", _VERSION, "ClusterQueue", "clusterqueues")
LocalQueue = create_namespaced_resource("kueue.x-k8s.io", _VERSION, "LocalQueue", "localqueues")
Admission = create_namespaced_resource("kueue.x-k8s.io", _VERSION, "Workload", "workloads")


def install(cluster: Cluster) -> None:
    """Start Kueue; returns when it admits Jobs."""
    cluster.load(images.controller(images.KUEUE, "kueue"))
    upstream.install(cluster, NAMESPACE, _documents())
    flavor = Flavor.from_dict({"metadata": {"name": "any"}})
    with cluster.client() as client:
        upstream.await_served(
            lambda: client.apply(flavor, field_manager="lab", force=True), "Kueue"
        )


def remove(client: Client) -> None:
    """End Kueue, and delete its webhook configurations."""
    for kind, name in (
        (MutatingWebhookConfiguration, "mutating"),
        (ValidatingWebhookConfiguration, "validating"),
    ):
        client.delete(kind, f"{PREFIX}{name}-webhook-configuration")
    client.delete(Deployment, PREFIX + MANAGER, namespace=NAMESPACE)


def make_queue(client: Client, namespace: str) -> None:
    """A queue for the namespace, with room for one Job at a time."""
    quota = {"name": "any", "resources": [{"name": "cpu", "nominalQuota": SHARE}]}
    spec = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [quota]}],
    }
    metadata = {"name": QUEUE["kueue.x-k8s.io/queue-name"], "namespace": namespace}
    client.create(ClusterQueue.from_dict({"metadata": {"name": namespace}, "spec": spec}))
    spec = {"clusterQueue": namespace}
    client.create(LocalQueue.from_dict({"metadata": metadata, "spec": spec}))


def activate(client: Client, namespace: str, job: str, *, active: bool) -> None:
    """Let Kueue admit a Job, or not: then it suspends the Job (0.19 workload_types.go Active)."""
    for found in client.list(Admission, namespace=namespace):
        if any(owner["name"] == job for owner in found["metadata"].get("ownerReferences") or ()):
            body = {"spec": {"active": active}}
            name = found["metadata"]["name"]
            client.patch(Admission, name, body, namespace=namespace, patch_type=PatchType.MERGE)


def _documents() -> Iterator[dict[str, Any]]:
    default = upstream.module("kueue", "sigs.k8s.io/kueue") / "config/default"
    for document in upstream.built(default, image=images.KUEUE, without="visibility"):
        if document["kind"] == "Deployment":
            [manager] = document["spec"]["template"]["spec"]["containers"]
            manager["args"].append("--feature-gates=VisibilityOnDemand=false")
        yield document
