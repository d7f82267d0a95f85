"""Kubeflow's training-operator 1.9, unmodified: its own manifests, its own binary in our image.

The manifests are those of the Go module that the binary is built from, put together as the
module's overlay `standalone` says; here is what kustomize would do, and nothing else.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from lightkube import ApiError
from lightkube.generic_resource import create_global_resource, create_namespaced_resource
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace, Secret

from lab import images, toolchain, tools
from lab.waiting import until

if TYPE_CHECKING:
    from lab.clusters import Cluster

MODULE = "github.com/kubeflow/training-operator"
NAMESPACE = "kubeflow"
NAME = "training-operator"
CERTIFICATE = "training-operator-webhook-cert"
# Measured on 2 cores: ready after 19 s, most of it the delays of its own probes.
READY = 200

TFJob = create_namespaced_resource("kubeflow.org", "v1", "TFJob", "tfjobs")
PyTorchJob = create_namespaced_resource("kubeflow.org", "v1", "PyTorchJob", "pytorchjobs")

# Objects are sent as they are written: typed models would drop what they do not know.
_KINDS = {
    "CustomResourceDefinition": create_global_resource(
        "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions"
    ),
    "ClusterRole": create_global_resource(
        "rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles"
    ),
    "ClusterRoleBinding": create_global_resource(
        "rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings"
    ),
    "ValidatingWebhookConfiguration": create_global_resource(
        "admissionregistration.k8s.io",
        "v1",
        "ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations",
    ),
}
_NAMESPACED = {
    "ServiceAccount": create_namespaced_resource("", "v1", "ServiceAccount", "serviceaccounts"),
    "Service": create_namespaced_resource("", "v1", "Service", "services"),
    "Deployment": create_namespaced_resource("apps", "v1", "Deployment", "deployments"),
}


def install(cluster: Cluster) -> None:
    """Start the operator in the cluster; `await_ready` waits for it.

    Raises:
        ValueError: the cluster cannot run pods.
        lab.tools.BuildError: the operator or its manifests cannot be had.
    """
    if cluster.level != "node":
        raise ValueError(f"{cluster.name}: level {cluster.level}: the operator needs level node")
    cluster.load(images.training_operator())
    cluster.load(images.alpine())
    with cluster.client() as client:
        client.apply(Namespace(metadata=ObjectMeta(name=NAMESPACE)))
        # The operator makes its certificate itself and keeps it here.
        client.apply(Secret(metadata=ObjectMeta(name=CERTIFICATE, namespace=NAMESPACE)))
        for document in documents(_module()):
            kind = {**_KINDS, **_NAMESPACED}[document["kind"]]
            client.apply(kind.from_dict(document), force=True)


def await_ready(cluster: Cluster, timeout: float = READY) -> None:
    """Return when the operator's own webhook accepts a TFJob.

    Raises:
        TimeoutError: it does not.
    """
    container = {"name": "tensorflow", "image": images.BUSYBOX}
    worker = {"replicas": 1, "template": {"spec": {"containers": [container]}}}
    job = TFJob.from_dict(
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "TFJob",
            "metadata": {"name": "is-the-operator-ready", "namespace": "default"},
            "spec": {"tfReplicaSpecs": {"Worker": worker}},
        }
    )
    with cluster.client() as client:
        until(
            lambda: client.create(job, dry_run=True),
            timeout=timeout,
            what=f"deployment {NAMESPACE}/{NAME} to be ready",
            ignoring=(ApiError,),
            every=0.2,
        )


def documents(module: Path) -> Iterator[dict[str, Any]]:
    """The objects of the overlay `standalone`, but for its namespace and its secret."""
    base = module / "manifests" / "base"
    for path in sorted((base / "crds").glob("kubeflow.org_*.yaml")):
        yield from _read(path)
    for path in sorted((base / "rbac").glob("*.yaml")):
        yield from map(_in_namespace, _read(path))
    [webhook] = _read(base / "webhook" / "manifests.yaml")
    for operation in yaml.load((base / "webhook" / "patch.yaml").read_text(), yaml.CSafeLoader):
        _replace(webhook, operation)
    for entry in webhook["webhooks"]:
        entry["clientConfig"]["service"]["namespace"] = NAMESPACE
    webhook["metadata"]["labels"] = {"control-plane": "kubeflow-training-operator"}
    yield webhook
    for name in ("service.yaml", "deployment.yaml"):
        yield from map(_in_namespace, _read(base / name))


def _read(path: Path) -> list[dict[str, Any]]:
    return [d for d in yaml.load_all(path.read_text(), yaml.CSafeLoader) if d]


def _in_namespace(document: dict[str, Any]) -> dict[str, Any]:
    if document["kind"] in _NAMESPACED:
        document["metadata"]["namespace"] = NAMESPACE
    for subject in document.get("subjects", ()):
        subject["namespace"] = NAMESPACE
    if document["kind"] == "Deployment":
        for container in document["spec"]["template"]["spec"]["containers"]:
            container |= {"image": images.TRAINING_OPERATOR, "imagePullPolicy": "IfNotPresent"}
    return document


def _replace(document: Any, operation: dict[str, str]) -> None:
    """One `replace` of a JSON Patch, the only operation that the module's patch uses."""
    *parents, last = operation["path"].strip("/").split("/")
    for part in parents:
        document = document[int(part) if isinstance(document, list) else part]
    document[last] = operation["value"]


def _module() -> Path:
    """The module's folder; fetched again when only the built program was kept."""
    done = subprocess.run(
        [toolchain.go(), "mod", "download", "-json", MODULE],
        cwd=tools.PROGRAMS[NAME].folder,
        env=toolchain.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise tools.BuildError(f"{MODULE}: go mod download: {done.stderr.strip() or done.stdout}")
    return Path(json.loads(done.stdout)["Dir"])
