"""Fixtures of the chart's tests: Helm's folders, and a cluster in which the chart is installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import demo.node
import lab.istio
import lab.upstream
import pytest
from demo.scenes import Steps
from lab import node
from lab.fixtures import client, lack, namespace, pytest_runtest_makereport, running

from helm.charts import Release
from tools import rock

__all__ = ["client", "namespace", "pytest_runtest_makereport"]


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Helm's folders."""
    return tmp_path_factory.mktemp("helm")


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[lab.Cluster]:
    """All of Kubernetes on one node, with the image of the workload."""
    if reason := node.unavailable():
        lack(f"the chart cannot be installed: {reason}")
    for cluster in running(request, "node"):
        cluster.load(rock.image())
        yield cluster


@pytest.fixture(scope="session")
def steps() -> Steps:
    """Prints what the demo does."""
    return Steps()


@pytest.fixture(scope="session")
def stage(steps: Steps, cluster: lab.Cluster, home: Path) -> tuple[Release, lab.istio.Istio]:
    """The stage of `make demo`, with istio-aux from its chart."""
    release = Release(cluster, home, "istio-aux", "mesh-jobs")

    def deploy() -> Release:
        steps.done(release.install({}).strip().splitlines()[-1])
        return release

    return demo.node.set_stage(steps, cluster, deploy)


@pytest.fixture(scope="session")
def release(stage: tuple[Release, lab.istio.Istio], cluster: lab.Cluster) -> Release:
    """The chart, installed beside Istio and the training-operator."""
    lab.upstream.await_training_operator(cluster)
    return stage[0]
