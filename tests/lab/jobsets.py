"""Kubeflow's Trainer 2.0 (overlay `manager`) and JobSet 0.8 (`default`), unmodified."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from lightkube.generic_resource import create_global_resource, create_namespaced_resource

from lab import images, upstream

if TYPE_CHECKING:
    from lab.clusters import Cluster

NAMESPACE = "kubeflow-system"
TRAINER_CERTIFICATE = "kubeflow-trainer-webhook-cert"
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
    upstream.install(
        cluster,
        NAMESPACE,
        _jobset(upstream.module("jobset", "sigs.k8s.io/jobset")),
        _trainer(upstream.module("trainer", "github.com/kubeflow/trainer/v2")),
    )
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


def _jobset(module: Path) -> Iterator[dict[str, Any]]:
    config = module / "config"
    parts = config / "components"
    where = {"namespace": NAMESPACE, "image": images.JOBSET, "prefix": "jobset-"}
    yield from upstream.components(parts, **where)
    webhooks = upstream.read(parts / "webhook" / "manifests.yaml")
    for webhook, patch in zip(webhooks, ("mutating", "validating"), strict=True):
        operations = (parts / "webhook" / "patches" / f"{patch}-patch.yaml").read_text()
        upstream.replace(webhook, yaml.safe_load(operations))
        yield upstream.place(webhook, **where)
    yield from upstream.placed(parts / "webhook" / "service.yaml", **where)
    _, deployment = upstream.read(parts / "manager" / "manager.yaml")
    [patch] = upstream.read(config / "default" / "manager_webhook_patch.yaml")
    upstream.merge(deployment, {"spec": patch["spec"]})
    yield upstream.place(deployment, **where)


def _trainer(module: Path) -> Iterator[dict[str, Any]]:
    base = module / "manifests" / "base"
    where = {"namespace": NAMESPACE, "image": images.TRAINER}
    rbac = (base / f"rbac/{name}.yaml" for name in ("service_account", "role", "role_binding"))
    crds = sorted((base / "crds").glob("trainer.kubeflow.org_*.yaml"))
    yield from upstream.placed(*crds, *rbac, **where)
    # The controller makes its certificate itself and keeps it here.
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": TRAINER_CERTIFICATE}}
    yield upstream.place(secret, **where)
    [webhook] = upstream.read(base / "webhook" / "manifests.yaml")
    upstream.replace(webhook, yaml.safe_load((base / "webhook" / "patch.yaml").read_text()))
    yield upstream.place(webhook, **where)
    yield from upstream.placed(base / "manager" / "manager.yaml", **where)
