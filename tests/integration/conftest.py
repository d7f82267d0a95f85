"""What is deployed, and a model for each file: the tests pack and build nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import helpers
import jubilant
import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what says which build is tested."""
    parser.addoption("--charm", default=os.environ.get("CHARM_PATH"), help="path of the .charm")
    parser.addoption("--image", default=None, help="OCI image of the workload, for istio-aux-image")
    parser.addoption("--asking", default=None, help="path of tests/lab/juju/asking, packed")
    parser.addoption("--before", default=None, help="path or channel of the last revision")


def given(request: pytest.FixtureRequest, option: str, why: str) -> str:
    value = request.config.getoption(option)
    if not value:
        pytest.fail(f"{why}: pass {option}", pytrace=False)
    return value


@pytest.fixture(scope="module")
def charm(request: pytest.FixtureRequest) -> Path:
    """The packed charm."""
    return Path(given(request, "--charm", "no charm: set CHARM_PATH, or")).resolve()


@pytest.fixture(scope="module")
def image(request: pytest.FixtureRequest) -> str:
    """The workload's image, where the cluster can pull it, or has it."""
    return given(request, "--image", "no image of the workload")


@pytest.fixture(scope="module")
def asking(request: pytest.FixtureRequest) -> Path:
    """A charm that asks for a sidecar."""
    return Path(given(request, "--asking", "no charm that asks for a sidecar")).resolve()


@pytest.fixture(scope="module")
def before(request: pytest.FixtureRequest, charm: Path) -> str:
    """The last revision, a path or a channel; this one where there is none yet."""
    return request.config.getoption("--before") or str(charm)


@pytest.fixture(scope="module")
def juju(request: pytest.FixtureRequest) -> Iterator[jubilant.Juju]:
    """A model of its own, destroyed at the end. If a test failed, its log is kept before that."""
    with jubilant.temp_model() as juju:
        juju.wait_timeout = 20 * 60
        # A unit learns of trust with its next event.
        juju.model_config({"update-status-hook-interval": "30s"})
        yield juju
        if request.session.testsfailed:
            helpers.keep_logs(juju)


@pytest.fixture(scope="module")
def istio(juju: jubilant.Juju) -> Iterator[str]:
    """Charmed Kubeflow's Istio; the name of its namespace."""
    juju.deploy(helpers.ISTIO, channel=helpers.ISTIO_CHANNEL, trust=True)
    juju.wait(lambda status: jubilant.all_active(status, helpers.ISTIO))
    yield helpers.model_of(juju)
    helpers.remove(juju, helpers.ISTIO)


@pytest.fixture(scope="module")
def profile() -> Iterator[str]:
    """A namespace as the profile controller of Charmed Kubeflow makes it, and no other label."""
    helpers.kubectl("create", "namespace", helpers.PROFILE)
    helpers.kubectl("label", "namespace", helpers.PROFILE, *helpers.PROFILE_LABELS)
    yield helpers.PROFILE
    helpers.kubectl("delete", "namespace", helpers.PROFILE)
