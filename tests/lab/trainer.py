"""Kubeflow's training-operator 1.9, unmodified: its binary and its overlay `standalone`."""

from __future__ import annotations

from lightkube.generic_resource import create_namespaced_resource

from lab import Cluster, images, upstream

MODULE = "github.com/kubeflow/training-operator"
NAMESPACE = "kubeflow"
NAME = "training-operator"
# Labels of a user's namespace (kubeflow profile-controller namespace-labels.yaml, profiles v1).
PROFILE = {
    "app.kubernetes.io/part-of": "kubeflow-profile",
    "istio-injection": "enabled",
    "katib.kubeflow.org/metrics-collector-injection": "enabled",
    "pipelines.kubeflow.org/enabled": "true",
    "serving.kubeflow.org/inferenceservice": "enabled",
}

TFJob = create_namespaced_resource("kubeflow.org", "v1", "TFJob", "tfjobs")
PyTorchJob = create_namespaced_resource("kubeflow.org", "v1", "PyTorchJob", "pytorchjobs")


def install(cluster: Cluster) -> None:
    """Start the operator in the cluster; `await_ready` waits for it."""
    cluster.load(images.controller(images.TRAINING_OPERATOR, "training-operator"))
    cluster.load(images.alpine())
    overlay = upstream.module(NAME, MODULE) / "manifests/overlays/standalone"
    documents = upstream.built(overlay, image=images.TRAINING_OPERATOR)
    upstream.install(cluster, NAMESPACE, documents)


def await_ready(cluster: Cluster) -> None:
    """Return when the operator's own webhook accepts a TFJob."""
    container = {"name": "tensorflow", "image": images.BUSYBOX}
    worker = {"replicas": 1, "template": {"spec": {"containers": [container]}}}
    metadata = {"name": "is-the-operator-ready", "namespace": "default"}
    spec = {"tfReplicaSpecs": {"Worker": worker}}
    job = TFJob.from_dict({"metadata": metadata, "spec": spec})
    with cluster.client() as client:
        upstream.await_served(lambda: client.create(job, dry_run=True), NAME)
