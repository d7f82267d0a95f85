"""Manifests of other projects' controllers, from their Go modules, as kustomize makes them."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml
from lightkube import Client
from lightkube.generic_resource import create_global_resource, create_namespaced_resource
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace

from lab import Cluster, tools, until
from tools import errors, toolchain

Document = dict[str, Any]

_ADMISSION, _RBAC = "admissionregistration.k8s.io", "rbac.authorization.k8s.io"
# Objects are sent as they are written: typed models would drop what they do not know.
_GLOBAL = {
    kind: create_global_resource(group, "v1", kind, f"{kind.lower()}s")
    for group, kind in (
        ("apiextensions.k8s.io", "CustomResourceDefinition"),
        (_RBAC, "ClusterRole"),
        (_RBAC, "ClusterRoleBinding"),
        (_ADMISSION, "MutatingWebhookConfiguration"),
        (_ADMISSION, "ValidatingWebhookConfiguration"),
    )
}
_GLOBAL["PriorityClass"] = create_global_resource(
    "scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses"
)
_NAMESPACED = {
    kind: create_namespaced_resource(group, "v1", kind, f"{kind.lower()}s")
    for group, kind in (
        ("", "ConfigMap"),
        ("", "Secret"),
        ("", "Service"),
        ("", "ServiceAccount"),
        ("apps", "DaemonSet"),
        ("apps", "Deployment"),
        (_RBAC, "Role"),
        (_RBAC, "RoleBinding"),
    )
}


def module(program: str, name: str) -> Path:
    """The folder of a module that a program is built from, fetched again if need be."""
    return toolchain.module(tools.PROGRAMS[program].folder, name)


def read(path: Path) -> list[Document]:
    return [d for d in yaml.load_all(path.read_text(), yaml.CSafeLoader) if d]


def built(*parts: Path, image: str = "", without: str = "", **fields: Any) -> Iterator[Document]:
    """What kustomize makes of its folders or files, with the lab's image in each Deployment.

    `fields` are those of the kustomization, and no name has `without` in it. Namespaces are for
    the caller to make.
    """
    with tempfile.TemporaryDirectory() as place:
        fields["resources"] = [os.path.relpath(part, place) for part in parts]
        Path(place, "kustomization.yaml").write_text(json.dumps(fields))
        program = [tools.path("kubectl"), "kustomize", "--load-restrictor=LoadRestrictionsNone"]
        made = errors.run([*program, place])
    for document in yaml.load_all(made, yaml.CSafeLoader):
        if document["kind"] == "Deployment":
            for container in document["spec"]["template"]["spec"]["containers"]:
                container |= {"image": image, "imagePullPolicy": "IfNotPresent"}
        left_out = without and without in document["metadata"]["name"]
        if document["kind"] != "Namespace" and not left_out:
            yield document


def install(cluster: Cluster, namespace: str, *documents: Iterable[Document]) -> None:
    with cluster.client() as client:
        client.apply(Namespace(metadata=ObjectMeta(name=namespace)))
        for each in documents:
            apply(client, each)


def await_served(make: Callable[[], object], what: str) -> None:
    """Return when a controller and its webhook take an object. Raises TimeoutError."""
    # lightkube has no ApiError for a kind that is not served yet.
    until(make, what=f"{what} to be ready", ignoring=(Exception,), every=0.5)


def apply(client: Client, documents: Iterable[Document]) -> None:
    for document in documents:
        kind = {**_GLOBAL, **_NAMESPACED}[document["kind"]]
        client.apply(kind.from_dict(document), force=True)
