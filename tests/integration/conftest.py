"""The charm and the image to deploy, and `kubectl` on the cluster of the model."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from pytest_operator.plugin import OpsTest

APP = "istio-aux"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what says which build is tested; the tests pack and build nothing."""
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


Kubectl = Callable[..., Awaitable[Any]]


@pytest.fixture(scope="module")
def kubectl(ops_test: OpsTest) -> Kubectl:
    """Run kubectl; returns what it printed with `-o json`, None when it printed nothing."""

    async def run(*arguments: str) -> Any:
        code, out, err = await ops_test.run("kubectl", *arguments)
        assert code == 0, f"kubectl {' '.join(arguments)}: {err}"
        return json.loads(out) if "json" in arguments and out.strip() else None

    return run
