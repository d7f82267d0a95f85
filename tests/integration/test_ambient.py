"""Beside the ambient control plane of Charmed Kubeflow: istio-k8s and its beacon."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import jubilant
import pytest
from helpers import APP, await_active, deploy, listed, message, model_of, remove

CONTROL_PLANE, BEACON = "istio-k8s", "istio-beacon-k8s"
CHANNEL = "2/stable"


@pytest.fixture(scope="module", autouse=True)
def deployed(juju: jubilant.Juju, charm: Path, image: str) -> Iterator[None]:
    """The three applications, without relations of ours."""
    juju.deploy(CONTROL_PLANE, channel=CHANNEL, trust=True)
    juju.deploy(BEACON, channel=CHANNEL, trust=True)
    deploy(juju, charm, image)
    await_active(juju, APP, CONTROL_PLANE, BEACON)
    yield
    remove(juju, APP, BEACON)
    remove(juju, CONTROL_PLANE)


def test_it_relates_to_the_control_plane_and_names_its_injector(juju: jubilant.Juju) -> None:
    juju.integrate(f"{APP}:istio-metadata", f"{CONTROL_PLANE}:istio-metadata")

    juju.wait(lambda status: jubilant.all_active(status, APP) and " live since " in message(status))


def test_api_server_and_prometheus_still_reach_units_in_an_ambient_mesh(
    juju: jubilant.Juju,
) -> None:
    juju.integrate(f"{APP}:service-mesh", f"{BEACON}:service-mesh")

    juju.wait(lambda status: jubilant.all_active(status, APP) and "ambient mesh" in message(status))

    policies = listed("authorizationpolicies.security.istio.io", "-n", model_of(juju))
    assert [policy for policy in policies if APP in policy["metadata"]["name"]]
