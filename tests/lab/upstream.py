"""Manifests of other projects' controllers, from their Go modules, as kustomize does it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from lightkube import Client
from lightkube.generic_resource import create_global_resource, create_namespaced_resource
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace

from lab import toolchain, tools
from lab.waiting import until

if TYPE_CHECKING:
    from lab.clusters import Cluster

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
        ("apps", "Deployment"),
        (_RBAC, "Role"),
        (_RBAC, "RoleBinding"),
    )
}


def module(program: str, name: str) -> Path:
    """The folder of a module that a program is built from, fetched again if need be."""
    return toolchain.module(tools.PROGRAMS[program].folder, name)


def read(path: Path) -> list[Document]:
    """The documents of a file."""
    return [d for d in yaml.load_all(path.read_text(), yaml.CSafeLoader) if d]


def replace(document: Any, operations: Iterable[Document]) -> None:
    """Apply a JSON Patch of `replace` operations, the only ones that the modules use."""
    for operation in operations:
        assert operation["op"] == "replace"
        *parents, last = operation["path"].strip("/").split("/")
        target = document
        for part in parents:
            target = target[int(part) if isinstance(target, list) else part]
        target[int(last) if isinstance(target, list) else last] = operation["value"]


def merge(document: Document, patch: Document) -> None:
    """Apply a strategic merge patch; lists of objects with names are merged, others replaced."""
    for key, value in patch.items():
        present = document.get(key)
        if isinstance(value, dict) and isinstance(present, dict):
            merge(present, value)
        elif isinstance(present, list) and isinstance(value, list) and _named(value):
            named = {item["name"]: item for item in present}
            for item in value:
                merge(named.setdefault(item["name"], item), item)
            document[key] = list(named.values())
        else:
            document[key] = value


def _named(items: list[Any]) -> bool:
    return all(isinstance(item, dict) and "name" in item for item in items)


def place(document: Document, *, namespace: str, image: str, prefix: str = "") -> Document:
    """Put an object into its namespace, with a prefix for names, and the lab's image."""
    kind = document["kind"]
    if kind != "CustomResourceDefinition":
        document["metadata"]["name"] = prefix + document["metadata"]["name"]
    if kind in _NAMESPACED:
        document["metadata"]["namespace"] = namespace
    for subject in document.get("subjects", ()):
        subject |= {"namespace": namespace, "name": prefix + subject["name"]}
    if "roleRef" in document:
        document["roleRef"]["name"] = prefix + document["roleRef"]["name"]
    for webhook in document.get("webhooks", ()):
        called = webhook["clientConfig"]["service"]
        called |= {"namespace": namespace, "name": prefix + called["name"]}
    if kind == "Deployment":
        spec = document["spec"]["template"]["spec"]
        spec["serviceAccountName"] = prefix + spec["serviceAccountName"]
        for container in spec["containers"]:
            container |= {"image": image, "imagePullPolicy": "IfNotPresent"}
        for volume in spec.get("volumes", ()):
            if "secret" in volume:
                volume["secret"]["secretName"] = prefix + volume["secret"]["secretName"]
    return document


def placed(*paths: Path, **where: str) -> Iterator[Document]:
    """The objects of some files, each in its place."""
    for path in paths:
        for document in read(path):
            yield place(document, **where)


def components(parts: Path, **where: str) -> Iterator[Document]:
    """What JobSet and Kueue have in common: CRDs, RBAC, and the Secret of a certificate."""
    names = ("service_account", "role", "role_binding", "leader_election_role",
             "leader_election_role_binding")  # fmt: skip
    rbac = (parts / f"rbac/{name}.yaml" for name in names)
    crds = sorted((parts / "crd/bases").glob("*.yaml"))
    return placed(*crds, *rbac, parts / "internalcert/secret.yaml", **where)


def install(cluster: Cluster, namespace: str, *documents: Iterable[Document]) -> None:
    """Make a namespace, and then the objects."""
    with cluster.client() as client:
        client.apply(Namespace(metadata=ObjectMeta(name=namespace)))
        for each in documents:
            apply(client, each)


def definition(group: str, version: str, plural: str, kind: str) -> Document:
    """A CustomResourceDefinition of which nothing is known: projects' own have 10,000 lines."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    served = {"name": version, "served": True, "storage": True, "schema": schema}
    names = {"kind": kind, "plural": plural, "singular": kind.lower()}
    spec = {"group": group, "names": names, "scope": "Namespaced", "versions": [served]}
    metadata = {"name": f"{plural}.{group}"}
    return {"kind": "CustomResourceDefinition", "metadata": metadata, "spec": spec}


def await_served(make: Callable[[], object], what: str) -> None:
    """Return when a controller and its webhook take an object. Raises TimeoutError."""
    # lightkube has no ApiError for a kind that is not served yet.
    until(make, what=f"{what} to be ready", ignoring=(Exception,), every=0.5)


def apply(client: Client, documents: Iterable[Document]) -> None:
    """Apply all of them, in order."""
    for document in documents:
        kind = {**_GLOBAL, **_NAMESPACED}[document["kind"]]
        client.apply(kind.from_dict(document), force=True)
