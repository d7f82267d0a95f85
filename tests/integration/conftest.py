"""The charm and the image to deploy: the tests pack and build nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what says which build is tested."""
    parser.addoption("--charm", default=os.environ.get("CHARM_PATH"), help="path of the .charm")
    parser.addoption("--image", default=None, help="OCI image of the workload, for istio-aux-image")


@pytest.fixture(scope="module")
def charm(request: pytest.FixtureRequest) -> Path:
    """The packed charm."""
    path = request.config.getoption("--charm")
    if not path:
        pytest.fail("no charm: set CHARM_PATH or pass --charm", pytrace=False)
    return Path(path).resolve()


@pytest.fixture(scope="module")
def image(request: pytest.FixtureRequest) -> str:
    """The workload's image, where the cluster can pull it."""
    reference = request.config.getoption("--image")
    if not reference:
        pytest.fail("no image of the workload: pass --image", pytrace=False)
    return reference
