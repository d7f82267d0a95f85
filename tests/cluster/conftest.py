"""Fixtures of the cluster tier: one API server for the session, a namespace for each test."""

from __future__ import annotations

from collections.abc import Iterator

import lab
import pytest
from lab.fixtures import namespace, pytest_runtest_makereport, running

__all__ = ["cluster", "namespace", "pytest_runtest_makereport"]


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[lab.Cluster]:
    """etcd, API server and controller manager."""
    yield from running(request, "api")
