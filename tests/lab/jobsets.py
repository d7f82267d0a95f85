"""Kubeflow's Trainer 2.0 and JobSet 0.8, unmodified: their own manifests and binaries, our images.

JobSet is put together as its overlay `default` says, without its ConfigMap and the Service of its
metrics; Trainer as its overlay `manager` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from lightkube.generic_resource import create_global_resource, create_namespaced_resource
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace

from lab import images, upstream
from lab.waiting import until

if TYPE_CHECKING:
    from lab.clusters import Cluster

NAMESPACE = "kubeflow-system"
TRAINER_CERTIFICATE = "kubeflow-trainer-webhook-cert"
RUNTIME = "shell"
# Measured beside other work on 2 cores: ready after 60 s, most of it the delays of their probes.
READY = 600

TrainJob = create_namespaced_resource("trainer.kubeflow.org", "v1alpha1", "TrainJob", "trainjobs")
JobSet = create_namespaced_resource("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets")
_Runtime = create_global_resource(
    "trainer.kubeflow.org", "v1alpha1", "ClusterTrainingRuntime", "clustertrainingruntimes"
)


def install(cluster: Cluster) -> None:
    """Start both controllers in the cluster; `await_ready` waits for them.

    Raises:
        lab.tools.BuildError: a controller or its manifests cannot be had.
    """
    cluster.load(images.controller(images.JOBSET, "jobset"))
    cluster.load(images.controller(images.TRAINER, "trainer"))
    with cluster.client() as client:
        client.apply(Namespace(metadata=ObjectMeta(name=NAMESPACE)))
        upstream.apply(client, _jobset(upstream.module("jobset", "sigs.k8s.io/jobset")))
        upstream.apply(
            client, _trainer(upstream.module("trainer", "github.com/kubeflow/trainer/v2"))
        )


def await_ready(cluster: Cluster) -> None:
    """Make the runtime `RUNTIME`; return when both controllers' webhooks answer.

    Raises:
        TimeoutError: they do not.
    """
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
    probe = JobSet.from_dict(
        {
            "metadata": {"name": "is-jobset-ready", "namespace": "default"},
            "spec": {"replicatedJobs": [job]},
        }
    )
    with cluster.client() as client:
        for made, what in (
            (lambda: client.create(probe, dry_run=True), "JobSet"),
            (lambda: client.apply(runtime, field_manager="lab", force=True), "Trainer"),
        ):
            until(
                made,
                timeout=READY,
                what=f"{what} to be ready",
                # lightkube has no ApiError for a kind that is not served yet.
                ignoring=(Exception,),
                every=0.5,
            )


def _jobset(module: Path) -> Iterator[dict[str, Any]]:
    config = module / "config"
    parts = config / "components"

    def placed(document: dict[str, Any]) -> dict[str, Any]:
        return upstream.place(document, namespace=NAMESPACE, image=images.JOBSET, prefix="jobset-")

    yield from upstream.read(parts / "crd" / "bases" / "jobset.x-k8s.io_jobsets.yaml")
    for name in ("service_account", "role", "role_binding", "leader_election_role",
                 "leader_election_role_binding"):  # fmt: skip
        yield from map(placed, upstream.read(parts / "rbac" / f"{name}.yaml"))
    yield from map(placed, upstream.read(parts / "internalcert" / "secret.yaml"))
    webhooks = upstream.read(parts / "webhook" / "manifests.yaml")
    for webhook, patch in zip(webhooks, ("mutating", "validating"), strict=True):
        operations = (parts / "webhook" / "patches" / f"{patch}-patch.yaml").read_text()
        upstream.replace(webhook, yaml.safe_load(operations))
        yield placed(webhook)
    yield from map(placed, upstream.read(parts / "webhook" / "service.yaml"))
    _, deployment = upstream.read(parts / "manager" / "manager.yaml")
    [patch] = upstream.read(config / "default" / "manager_webhook_patch.yaml")
    upstream.merge(deployment, {"spec": patch["spec"]})
    yield placed(deployment)


def _trainer(module: Path) -> Iterator[dict[str, Any]]:
    base = module / "manifests" / "base"

    def placed(document: dict[str, Any]) -> dict[str, Any]:
        return upstream.place(document, namespace=NAMESPACE, image=images.TRAINER)

    for path in sorted((base / "crds").glob("trainer.kubeflow.org_*.yaml")):
        yield from upstream.read(path)
    for path in ("service_account", "role", "role_binding"):
        yield from map(placed, upstream.read(base / "rbac" / f"{path}.yaml"))
    # The controller makes its certificate itself and keeps it here.
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": TRAINER_CERTIFICATE}}
    yield placed(secret)
    [webhook] = upstream.read(base / "webhook" / "manifests.yaml")
    upstream.replace(webhook, yaml.safe_load((base / "webhook" / "patch.yaml").read_text()))
    yield placed(webhook)
    yield from map(placed, upstream.read(base / "manager" / "manager.yaml"))
