"""The pytest fixtures that the tiers share: clusters, namespaces, logs, and the deployed charm.

And what that charm has in the cluster.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest
from istio_aux.model.annotations import STARTED_WITH
from lightkube import ApiError, Client
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.admissionregistration_v1 import (
    MutatingWebhookConfiguration,
    ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding,
)
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import ConfigMap, Namespace, Pod, ServiceAccount
from lightkube.resources.discovery_v1 import EndpointSlice
from lightkube.resources.rbac_authorization_v1 import ClusterRole, ClusterRoleBinding
from lightkube.types import CascadeType

import lab.istio
import lab.juju
from lab.meshed import PROXY
from lab.workloads import Workload, container, pod
from tools import pack

MANY = 50
"""Pods; to delete one takes some milliseconds."""


def lack(what: str) -> NoReturn:
    """Skip a test that cannot run here; in CI, where nobody looks at that, it fails."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI is true: {what}", pytrace=False)
    pytest.skip(what)


def running(request: pytest.FixtureRequest, level: lab.Level) -> Iterator[lab.Cluster]:
    """A cluster for the session, whose logs are kept and named when a test failed."""
    with lab.cluster(level) as cluster:
        failed_before = request.session.testsfailed
        yield cluster
        cluster.keep_logs = request.session.testsfailed > failed_before


@pytest.fixture
def namespace(cluster: lab.Cluster) -> Iterator[str]:
    """The name of a new namespace in which pods can be made; its end is not awaited."""
    name = f"test-{secrets.token_hex(4)}"
    with cluster.client() as client:
        make_namespace(client, name)
        yield name
        vacate(client, name)


def vacate(client: Client, namespace: str) -> None:
    """Remove labels, Jobs and pods of a namespace, which is as good as deleting it; not awaited.

    Deleting one costs the control plane as much as many tests do; with many pods it is cheaper.
    """
    with lab.ending(f"namespace {namespace}"):
        if len(list(client.list(Pod, namespace=namespace))) > MANY:
            client.delete(Namespace, namespace)
            return
        client.patch(Namespace, namespace, {"metadata": {"labels": None}})
        client.deletecollection(Job, namespace=namespace, cascade=CascadeType.BACKGROUND)
        client.deletecollection(Pod, namespace=namespace)


def make_namespace(client: Client, name: str, labels: Mapping[str, str] | None = None) -> None:
    """Create a namespace; return when pods can be made in it."""
    client.create(Namespace(metadata=ObjectMeta(name=name, labels=dict(labels or {}))))
    await_account(client, name)


@contextlib.contextmanager
def new_namespaces(client: Client, *purposes: str) -> Iterator[dict[str, str]]:
    """Namespaces of new names, by what they are for; deleted at the end, which is not awaited."""
    names = {purpose: f"{purpose}-{secrets.token_hex(3)}" for purpose in purposes}
    for name in names.values():
        make_namespace(client, name)
    yield names
    for name in names.values():
        client.delete(Namespace, name)


def await_account(client: Client, namespace: str) -> None:
    """Return when pods can be made in a new namespace: they need its default ServiceAccount."""
    lab.until(
        lambda: client.get(ServiceAccount, "default", namespace=namespace),
        what=f"the default ServiceAccount of namespace {namespace}",
        ignoring=(ApiError,),
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Say at a failing test where its cluster's logs are."""
    report = yield
    cluster = getattr(item, "funcargs", {}).get("cluster")
    if report.failed and isinstance(cluster, lab.Cluster):
        report.sections.append(("lab", f"logs of {cluster.name}: {cluster.logs}"))
    return report


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
