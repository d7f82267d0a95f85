"""Kubeflow's Trainer 2.3 (overlay `manager`) and JobSet 0.12 (`default`), unmodified."""

from __future__ import annotations

from typing import Any

from lightkube.generic_resource import create_global_resource, create_namespaced_resource

from lab import Cluster, images, upstream

NAMESPACE = "kubeflow-system"
RUNTIME = "shell"

TrainJob = create_namespaced_resource("trainer.kubeflow.org", "v1alpha1", "TrainJob", "trainjobs")
JobSet = create_namespaced_resource("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets")
_Runtime = create_global_resource(
    "trainer.kubeflow.org", "v1alpha1", "ClusterTrainingRuntime", "clustertrainingruntimes"
)


def install(cluster: Cluster) -> None:
    """Start both controllers and make the runtime `RUNTIME`; returns when both take objects."""
    cluster.load(images.controller(images.JOBSET, "jobset"))
    cluster.load(images.controller(images.TRAINER, "trainer"))
    default = upstream.module("jobset", "sigs.k8s.io/jobset") / "config/default"
    upstream.install(cluster, "jobset-system", upstream.built(default, image=images.JOBSET))
    # Its overlay `manager`, without the JobSet of another address.
    base = upstream.module("trainer", "github.com/kubeflow/trainer/v2") / "manifests/base"
    certificate = {"name": "kubeflow-trainer-webhook-cert", "namespace": NAMESPACE}
    trainer = upstream.built(
        *(base / part for part in ("crds", "manager", "rbac", "webhook")),
        image=images.TRAINER, namespace=NAMESPACE,
        secretGenerator=[{**certificate, "options": {"disableNameSuffixHash": True}}],
    )  # fmt: skip
    upstream.install(cluster, NAMESPACE, trainer)
    # As Trainer's own runtimes are: one replicated Job, whose container is called node.
    node = {"containers": [{"name": "node", "image": images.BUSYBOX}], "restartPolicy": "Never"}
    job: dict[str, Any] = {
        "name": "node",
        "template": {
            "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
            "spec": {"backoffLimit": 0, "template": {"spec": node}},
        },
    }
    spec = {"mlPolicy": {"numNodes": 1}, "template": {"spec": {"replicatedJobs": [job]}}}
    runtime = _Runtime.from_dict({"metadata": {"name": RUNTIME}, "spec": spec})
    metadata = {"name": "is-jobset-ready", "namespace": "default"}
    probe = JobSet.from_dict({"metadata": metadata, "spec": {"replicatedJobs": [job]}})
    with cluster.client() as client:
        upstream.await_served(lambda: client.create(probe, dry_run=True), "JobSet")
        upstream.await_served(
            lambda: client.apply(runtime, field_manager="lab", force=True), "Trainer"
        )
