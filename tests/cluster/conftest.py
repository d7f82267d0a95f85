"""Fixtures of the cluster tier: one API server for the session, a namespace for each test."""

from __future__ import annotations

from collections.abc import Iterator

import lab
import lab.istio
import lightkube
import pytest
from lab.fixtures import await_account, namespace, pytest_runtest_makereport, running
from lab.kubelet import ScriptedKubelet
from lab.scene import Scene
from lab.served import stage
from lab.workload import Workload
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace

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
    """The stand-in for Istio, which makes classic sidecars."""
    istio = lab.istio.install(cluster)
    yield istio
    istio.remove()


@pytest.fixture(scope="session")
def workload(cluster: lab.Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workload]:
    """`istio-aux serve` under its own ServiceAccount, with the default selector."""
    workload = Workload(cluster, tmp_path_factory.mktemp("istio-aux"))
    workload.deploy()
    workload.start()
    workload.await_ready()
    yield workload
    workload.stop()


@pytest.fixture(scope="module")
def webhook(workload: Workload, control: str) -> Iterator[Workload]:
    """The workload with its webhook in force, as the charm configures it."""
    workload.publish()
    workload.await_admission(control)
    yield workload
    workload.withdraw()


@pytest.fixture(scope="module")
def served(
    client: lightkube.Client, kubelet: ScriptedKubelet, webhook: Workload
) -> Iterator[Scene]:
    """A namespace whose pods the webhook changes."""
    with stage(client, kubelet, webhook) as scene:
        webhook.await_admission(scene.namespace)
        yield scene


@pytest.fixture(scope="session")
def control(client: lightkube.Client, workload: Workload) -> str:
    """A namespace that the workload serves throughout."""
    name = "control"
    client.create(Namespace(metadata=ObjectMeta(name=name)))
    await_account(client, name)
    workload.select(name)
    return name


@pytest.fixture
def scene(
    client: lightkube.Client, kubelet: ScriptedKubelet, control: str, namespace: str
) -> Scene:
    """A new namespace that the workload does not serve."""
    return Scene(client, kubelet, namespace, control)


@pytest.fixture
def selected(scene: Scene, workload: Workload) -> Scene:
    """A new namespace that the workload serves."""
    workload.select(scene.namespace)
    return scene
