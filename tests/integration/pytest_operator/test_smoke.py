"""The charm becomes active on a real Juju 3.6, told by pytest-operator."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from pytest_operator.plugin import OpsTest

APP = "istio-aux"


@pytest_asyncio.fixture(autouse=True)
async def log(request: pytest.FixtureRequest, ops_test: OpsTest) -> AsyncIterator[None]:
    """Print the log of the model, which is destroyed afterwards, if the test failed."""
    yield
    if request.session.testsfailed:
        _, text, _ = await ops_test.juju("debug-log", "--limit", "5000")
        print(text)


async def test_it_becomes_active(ops_test: OpsTest) -> None:
    """CHARM_PATH is the packed charm, IMAGE that of the workload."""
    assert ops_test.model
    await ops_test.model.deploy(
        os.environ["CHARM_PATH"],
        application_name=APP,
        resources={"istio-aux-image": os.environ["IMAGE"]},
        trust=True,
    )

    await ops_test.model.wait_for_idle(apps=[APP], status="active", timeout=20 * 60)
