"""Fixtures of the node tier: one whole Kubernetes for the session, a namespace for each test."""

from __future__ import annotations

import os
from collections.abc import Iterator

import lab
import pytest
from lab import node
from lab.deployed import charm, client, installing, istio, istio_aux, model, requested, trainer
from lab.fixtures import namespace, pytest_runtest_makereport, running

__all__ = [
    "charm",
    "client",
    "cluster",
    "installing",
    "istio",
    "istio_aux",
    "model",
    "namespace",
    "pytest_runtest_makereport",
    "requested",
    "trainer",
]


@pytest.fixture(scope="session", autouse=True)
def machine() -> None:
    """Where the machine cannot run pods, this tier is skipped with the reason; in CI it fails."""
    if reason := node.unavailable():
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI is true, and the node tier cannot run: {reason}", pytrace=False)
        pytest.skip(reason)


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[lab.Cluster]:
    """All of Kubernetes on one node."""
    yield from running(request, "node")
