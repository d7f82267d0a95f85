"""A deployed charm as tests see it: the pytest fixtures, and what it has in the cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from istio_aux.model.annotations import STARTED_WITH
from lightkube import ApiError, Client
from lightkube.resources.admissionregistration_v1 import (
    MutatingWebhookConfiguration,
    ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding,
)
from lightkube.resources.core_v1 import ConfigMap, Namespace
from lightkube.resources.discovery_v1 import EndpointSlice
from lightkube.resources.rbac_authorization_v1 import ClusterRole, ClusterRoleBinding

import lab.istio
import lab.juju
from lab.meshed import PROXY
from lab.workloads import Workload, container, pod
from tools import pack

ROOT = Path(__file__).resolve().parents[2]
# The labels of a namespace that Istio injects and the charm looks after.
SELECTED = {"io.datastrophic/istio-aux": "enabled", "istio-injection": "enabled"}
REQUESTED = "requested"
# The same where sidecars are native on request.
ON_REQUEST = {"io.datastrophic/istio-aux": "enabled", "istio.io/rev": REQUESTED}
PROBE = Workload("probe", pod(container("true")))


@pytest.fixture(scope="session")
def charm() -> Path:
    return pack.pack(ROOT)


@pytest.fixture(scope="module")
def client(cluster: lab.Cluster) -> Iterator[Client]:
    with cluster.client() as client:
        yield client


@pytest.fixture(scope="session")
def requested(cluster: lab.Cluster, istio: lab.istio.Istio) -> Iterator[lab.istio.Istio]:
    """Another revision, which makes native sidecars on request: the other one never does."""
    istio = lab.istio.install(cluster, revision=REQUESTED, native="on request")
    yield istio
    istio.remove()


def await_root(client: Client, namespace: str) -> None:
    """Return when pods of a namespace can mount the certificate of Istio's authority."""
    lab.until(
        lambda: client.get(ConfigMap, "istio-ca-root-cert", namespace=namespace),
        what=f"the root certificate in {namespace}",
        ignoring=(ApiError,),
    )


def await_selected(client: Client, namespace: str, labels: Mapping[str, str] = SELECTED) -> None:
    """Select a namespace; return when its pods are injected by Istio and started by the charm."""
    client.patch(Namespace, namespace, {"metadata": {"labels": labels}})
    await_root(client, namespace)
    await_marks(client, namespace, PROXY, STARTED_WITH)


def await_marks(client: Client, namespace: str, *marks: str, probe: Workload = PROBE) -> None:
    """Return when a pod that is made in a namespace has all of these: containers, annotations."""
    made = probe.in_namespace(namespace)
    lab.until(
        lambda: all(mark in str(client.create(made, dry_run=True)) for mark in marks),
        what=f"pods of {namespace} to have {' and '.join(marks)}",
        ignoring=(ApiError,),
    )


def owned(client: Client, app: lab.juju.App) -> set[str]:
    """Kind of every cluster-wide object that the application's charm made."""
    kinds = (
        MutatingWebhookConfiguration,
        ClusterRole,
        ClusterRoleBinding,
        ValidatingAdmissionPolicy,
        ValidatingAdmissionPolicyBinding,
    )
    return {kind.__name__ for kind in kinds if [*client.list(kind, labels=owner(app))]}


def owner(app: lab.juju.App) -> dict[str, Any]:
    return {"istio-aux.io/application": app.name, "istio-aux.io/model": app.model.namespace}


def has_webhook(client: Client, app: lab.juju.App) -> bool:
    return MutatingWebhookConfiguration.__name__ in owned(client, app)


def evicts(client: Client, app: lab.juju.App) -> bool:
    role = client.get(ClusterRole, f"{app.model.name}.{app.name}-workload")
    return any("pods/eviction" in (rule.resources or ()) for rule in role.rules or ())


def list_stuck(app: lab.juju.App) -> Mapping[str, Any]:
    """What the action answers once a unit holds the Lease; a killed one holds it for 15 s."""

    def answered() -> Mapping[str, Any] | None:
        outcome = app.action("list-stuck").results
        return None if outcome["failed"] else outcome["results"]

    return lab.until(answered, what="a unit to hold the Lease", every=1)


def serving(client: Client, app: lab.juju.App) -> set[str]:
    endpoints = client.get(EndpointSlice, app.name, namespace=app.model.namespace).endpoints
    return {e.addresses[0] for e in endpoints or [] if e.conditions and e.conditions.ready}
