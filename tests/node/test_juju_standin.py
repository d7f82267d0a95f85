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


def test_a_hook_that_fails_is_tried_again_and_later_ones_wait(played: lab.juju.App) -> None:
    unit, hooks = played.leader, len(played.leader.history)
    with played.model.failing("config-get", "connection is shut down"):
        played.configure(quit_grace=1)
        with pytest.raises(lab.juju.DispatchError, match="config-changed: exit status"):
            played.settle()
        assert played.status() == ("error", 'hook failed: "config-changed"')
        played.configure(quit_grace=2)
    played.settle(failing=True)
    told = [outcome.event for outcome in unit.history[hooks:]]
    assert told[:2] == ["config-changed", "config-changed"]
    assert played.status()[0] == "active", played.status()


def test_a_hook_that_fails_can_be_given_up(played: lab.juju.App) -> None:
    """`juju resolved --no-retry`."""
    with played.model.failing("config-get", "connection is shut down"):
        played.configure(quit_grace=0)
        with pytest.raises(lab.juju.DispatchError):
            played.settle()
        hooks = len(played.leader.history)
        played.resolved(0, retry=False)
    played.settle(failing=True)
    assert "config-changed" not in [o.event for o in played.leader.history[hooks:]]


def test_a_new_pod_has_an_address_of_its_own_and_nothing_of_the_old_one(
    played: lab.juju.App,
) -> None:
    unit, address = played.leader, played.leader.address
    files = unit.containers["istio-aux"].files()
    (files / "etc/istio-aux/of-the-old-one").touch()
    hooks = len(unit.history)
    played.replace_pod(0)
    assert unit.address != address
    played.settle()
    files = unit.containers["istio-aux"].files()
    assert not (files / "etc/istio-aux/of-the-old-one").exists()
    told = [outcome.event for outcome in unit.history[hooks:]]
    assert told[:4] == ["stop", "upgrade-charm", "config-changed", "start"]
    assert "istio-aux-pebble-ready" in told
    assert played.status()[0] == "active", played.status()


def test_units_run_their_hooks_at_the_same_time(played: lab.juju.App) -> None:
    played.add_unit()
    played.settle()
    first, second = ([*unit.history] for unit in played.units)
    overlaps = [
        (a.event, b.event) for a in first for b in second if a.began < b.ended and b.began < a.ended
    ]
    assert overlaps
    played.scale(1)
    played.settle()


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
