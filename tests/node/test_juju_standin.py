"""The stand-in for Juju plays what real Juju does to a charm, here with the packed charm itself."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import lab
import lab.juju
import pytest
from lightkube import Client
from lightkube.resources.core_v1 import ServiceAccount
from lightkube.resources.rbac_authorization_v1 import ClusterRole


@pytest.fixture(scope="module")
def played(cluster: lab.Cluster, charm: Path) -> Iterator[lab.juju.App]:
    """The charm in a model that forces its labels on everything; not trusted at first."""
    with lab.juju.Model(cluster, f"played-{secrets.token_hex(3)}") as model:
        model.force_labels()
        app = model.deploy(charm)
        app.settle()
        yield app


def test_config_changed_may_come_before_the_rights(played: lab.juju.App) -> None:
    """juju#12883."""
    assert "Trust not granted" in played.status()[1]
    played.trust(late=True)
    assert played.leader.history[-1].event == "config-changed"
    assert "Trust not granted" in played.status()[1]


def test_what_the_charm_makes_gets_the_labels_of_juju(client: Client, played: lab.juju.App) -> None:
    """juju#21312: also the label that says who manages it."""
    played.run("config-changed")
    played.settle()
    app, model = played.name, played.model.name
    role = client.get(ClusterRole, f"{model}-{app}-workload").metadata
    assert role
    assert role.labels
    assert role.labels["app.kubernetes.io/managed-by"] == "juju"
    assert role.labels["app.juju.is/created-by"] == app


def test_by_force_nothing_runs_and_only_the_objects_of_juju_go(
    client: Client, played: lab.juju.App
) -> None:
    unit, name, model = played.leader, played.name, played.model.name
    hooks = len(unit.history)
    played.remove(force=True)
    assert len(unit.history) == hooks
    assert not unit.containers["istio-aux"].process.running
    accounts = {
        account.metadata.name
        for account in client.list(ServiceAccount, namespace=model)
        if account.metadata
    }
    assert name not in accounts
