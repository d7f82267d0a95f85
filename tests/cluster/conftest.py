"""Fixtures of the cluster tier: one API server for the session, a namespace for each test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import lab.istio
import lightkube
import pytest
from lab.fixtures import make_namespace, namespace, pytest_runtest_makereport, running
from lab.kubelet import ScriptedKubelet
from lab.scene import Scene
from lab.workload import DEFAULT, Programs, Stages, Workload, program, stage

__all__ = ["cluster", "namespace", "pytest_runtest_makereport"]


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[lab.Cluster]:
    """etcd, API server and controller manager."""
    yield from running(request, "api")


@pytest.fixture(scope="session")
def client(cluster: lab.Cluster) -> lightkube.Client:
    """An administrator."""
    return cluster.client()


@pytest.fixture(scope="session")
def kubelet(cluster: lab.Cluster) -> Iterator[ScriptedKubelet]:
    """The cluster's only node."""
    with ScriptedKubelet(cluster) as kubelet:
        yield kubelet


@pytest.fixture(scope="module")
def istio(cluster: lab.Cluster) -> Iterator[lab.istio.Istio]:
    """Istio, which makes classic sidecars."""
    istio = lab.istio.install(cluster)
    yield istio
    istio.remove()


@pytest.fixture(scope="module")
def programs(cluster: lab.Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """Starts workloads of a file's own, which end with it."""
    with ExitStack() as ends:
        yield lambda name, settings=None, **more: ends.enter_context(
            program(cluster, tmp_path_factory.mktemp(name), name, settings, **more)
        )


@pytest.fixture(scope="module")
def stages(client: lightkube.Client, kubelet: ScriptedKubelet) -> Iterator[Stages]:
    """Makes namespaces that a workload serves, for the length of a file."""
    with ExitStack() as ends:
        yield lambda workload, **more: ends.enter_context(stage(client, kubelet, workload, **more))


@pytest.fixture(scope="session")
def workload(cluster: lab.Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workload]:
    """`istio-aux serve` under its own ServiceAccount, with the default selectors."""
    with program(
        cluster, tmp_path_factory.mktemp("istio-aux"), "istio-aux", {}, selector=DEFAULT
    ) as workload:
        yield workload


@pytest.fixture(scope="module")
def webhook(workload: Workload, control: str) -> Iterator[Workload]:
    """The workload with its webhook in force, as the charm configures it."""
    workload.publish()
    workload.await_admission(control)
    yield workload
    workload.withdraw()


@pytest.fixture(scope="module")
def served(stages: Stages, webhook: Workload) -> Scene:
    """A namespace whose pods the webhook changes."""
    return stages(webhook, changed=True)


@pytest.fixture(scope="session")
def control(client: lightkube.Client, workload: Workload) -> str:
    """A namespace that the workload serves throughout."""
    name = "control"
    make_namespace(client, name)
    workload.select(name)
    return name


@pytest.fixture
def scene(
    client: lightkube.Client, kubelet: ScriptedKubelet, control: str, namespace: str
) -> Scene:
    """A new namespace that the workload does not serve."""
    return Scene(client, kubelet, namespace, control)


@pytest.fixture
def alone(client: lightkube.Client, kubelet: ScriptedKubelet, namespace: str) -> Scene:
    """A new namespace, and no workload that could free its pods."""
    return Scene(client, kubelet, namespace, namespace)


@pytest.fixture
def selected(scene: Scene, workload: Workload) -> Scene:
    """A new namespace that the workload serves."""
    workload.select(scene.namespace)
    return scene
