"""Fixtures of the node tier: one whole Kubernetes for the session, a namespace for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial

import demo.node
import lab.istio
import lab.juju
import lab.upstream
import pytest
from demo.scenes import Steps
from lab import node
from lab.fixtures import (
    ON_REQUEST,
    await_selected,
    charm,
    client,
    lack,
    namespace,
    new_namespaces,
    pytest_runtest_makereport,
    requested,
    running,
)
from lightkube import Client

__all__ = [
    "charm",
    "client",
    "cluster",
    "namespace",
    "pytest_runtest_makereport",
    "requested",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Play the deployment race first: it needs a Kubernetes in which no Istio is yet."""
    items.sort(key=lambda item: item.path.stem != "test_race")


@pytest.fixture(scope="session", autouse=True)
def machine() -> None:
    """Where the machine cannot run pods, this tier is skipped with the reason; in CI it fails."""
    if reason := node.unavailable():
        lack(f"the node tier cannot run: {reason}")


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[lab.Cluster]:
    """All of Kubernetes on one node."""
    yield from running(request, "node")


@pytest.fixture(scope="session")
def steps() -> Steps:
    return Steps()


@pytest.fixture(scope="session")
def deploy(steps: Steps, cluster: lab.Cluster) -> Iterator[Callable[[], lab.juju.App]]:
    """Deploys the charm with trust, once, and returns it settled: Istio need not be there yet."""
    once = cache(partial(demo.node.deploy_charm, cluster, steps))
    yield once
    if once.cache_info().currsize:
        once().model.close()


@pytest.fixture(scope="session")
def stage(
    steps: Steps, cluster: lab.Cluster, deploy: Callable[[], lab.juju.App]
) -> tuple[lab.juju.App, lab.istio.Istio]:
    """The stage of `make demo`, on which most tests play."""
    return demo.node.set_stage(steps, cluster, deploy)


@pytest.fixture(scope="session")
def istio_aux(stage: tuple[lab.juju.App, lab.istio.Istio]) -> lab.juju.App:
    """The charm, deployed with trust and settled; tests leave it as they found it."""
    app, _ = stage
    return app


@pytest.fixture(scope="session")
def istio(stage: tuple[lab.juju.App, lab.istio.Istio]) -> lab.istio.Istio:
    """Istio, which makes classic sidecars; the image of the payloads is loaded."""
    _, istio = stage
    return istio


@pytest.fixture(scope="session")
def trainer(cluster: lab.Cluster, istio: lab.istio.Istio) -> None:
    """Kubeflow's training-operator; its jobs are meant for the mesh."""
    lab.upstream.await_training_operator(cluster)


@pytest.fixture
def selected(
    client: Client, namespace: str, istio: lab.istio.Istio, istio_aux: lab.juju.App
) -> str:
    """A new namespace that Istio injects and istio-aux looks after."""
    await_selected(client, namespace)
    return namespace


@pytest.fixture(scope="module")
def places(
    client: Client, istio: lab.istio.Istio, requested: lab.istio.Istio, istio_aux: lab.juju.App
) -> Iterator[Mapping[str, str]]:
    """A plain namespace, and two that istio-aux looks after: one with classic sidecars, and one
    whose Istio makes them native on request."""
    with new_namespaces(client, "plain", "classic", "native") as names:
        await_selected(client, names["classic"])
        await_selected(client, names["native"], ON_REQUEST)
        yield names
