"""The pytest fixtures that the cluster and the node tier share: clusters, namespaces, logs."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Generator, Iterator, Mapping
from typing import NoReturn

import lightkube
import pytest
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Namespace, Pod, ServiceAccount
from lightkube.types import CascadeType

import lab

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


def vacate(client: lightkube.Client, namespace: str) -> None:
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


def make_namespace(
    client: lightkube.Client, name: str, labels: Mapping[str, str] | None = None
) -> None:
    """Create a namespace; return when pods can be made in it."""
    client.create(Namespace(metadata=ObjectMeta(name=name, labels=dict(labels or {}))))
    await_account(client, name)


@contextlib.contextmanager
def new_namespaces(client: lightkube.Client, *purposes: str) -> Iterator[dict[str, str]]:
    """Namespaces of new names, by what they are for; deleted at the end, which is not awaited."""
    names = {purpose: f"{purpose}-{secrets.token_hex(3)}" for purpose in purposes}
    for name in names.values():
        make_namespace(client, name)
    yield names
    for name in names.values():
        client.delete(Namespace, name)


def await_account(client: lightkube.Client, namespace: str) -> None:
    """Return when pods can be made in a new namespace: they need its default ServiceAccount."""
    lab.until(
        lambda: client.get(ServiceAccount, "default", namespace=namespace),
        what=f"the default ServiceAccount of namespace {namespace}",
        ignoring=(lightkube.ApiError,),
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
