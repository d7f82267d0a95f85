"""Every event leads the unit to the same state, and a second one changes nothing."""

from __future__ import annotations

import dataclasses

import pytest
import yaml
from ops import pebble, testing

from .conftest import Unit, active

# The objects that do not wait for the workload.
STANDING = [
    "ClusterRole",
    "ClusterRoleBinding",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
    "PeerAuthentication",
    "Role",
    "RoleBinding",
    "ServiceAccount",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
]

EVENTS = {
    "install": lambda unit: unit.on.install(),
    "start": lambda unit: unit.on.start(),
    "upgrade": lambda unit: unit.on.upgrade_charm(),
    "config changed": lambda unit: unit.on.config_changed(),
    "update status": lambda unit: unit.on.update_status(),
    "leader elected": lambda unit: unit.on.leader_elected(),
    "pebble ready": lambda unit: unit.on.pebble_ready(unit.container),
    "peers created": lambda unit: unit.on.relation_created(unit.state.get_relations("peers")[0]),
    "peers changed": lambda unit: unit.on.relation_changed(
        unit.state.get_relations("peers")[0], remote_unit=1
    ),
}


@pytest.mark.parametrize("event", EVENTS)
def test_any_event_reaches_the_goal(event: str, new_unit: Unit) -> None:
    assert new_unit.run(EVENTS[event](new_unit)) == active()

    assert new_unit.api.kinds() == sorted([*STANDING, "MutatingWebhookConfiguration"])
    assert set(new_unit.files) == {
        "applications",
        "config.yaml",
        "kubeconfig",
        "tls/tls.crt",
        "tls/tls.key",
        "token",
    }
    assert new_unit.state.workload_version == "1.2.3"
    assert new_unit.state.opened_ports == {testing.TCPPort(8443)}
    service = new_unit.container.service_statuses["istio-aux"]
    assert service is pebble.ServiceStatus.ACTIVE


@pytest.mark.parametrize("event", EVENTS)
def test_a_second_event_changes_nothing(event: str, unit: Unit) -> None:
    objects, before, status = dict(unit.api.objects), unit.container, unit.state.unit_status
    files = {path: path.stat().st_mtime_ns for path in unit.etc.rglob("*")}
    unit.api.calls.clear()

    assert unit.run(EVENTS[event](unit)) == status

    assert unit.api.objects == objects
    assert not [call for call in unit.api.writes if not call.startswith("PATCH")]
    assert {path: path.stat().st_mtime_ns for path in unit.etc.rglob("*")} == files
    assert unit.container.plan == before.plan
    assert unit.container.layers == before.layers
    assert [s._latest_revision for s in unit.state.secrets] == [1]


def test_every_event_is_either_reconciled_or_left_out_on_purpose(
    new_unit: Unit,
) -> None:
    left_out = {
        "collect_app_status": "units report for themselves",
        "collect_metrics": "never sent to this charm",
        "collect_unit_status": "has a handler of its own",
        "leader_settings_changed": "deprecated; peers changed replaces it",
        "post_series_upgrade": "machines only",
        "pre_series_upgrade": "machines only",
        "remove": "has a handler of its own",
        "secret_expired": "the library of the relation certificates renews what expires",
        "secret_remove": "has a handler of its own",
        "secret_rotate": "no secret of ours has a rotation",
        "stop": "has a handler of its own",
        "peers_relation_broken": "the application is going",
        "peers_relation_departed": "what a unit needed may stay until the next event",
        "peers_relation_joined": "a unit is counted once it has published something",
        "certificates_relation_departed": "nothing depends on its units",
        "certificates_relation_joined": "nothing depends on its units",
        "istio_pilot_relation_departed": "nothing depends on its units",
        "istio_pilot_relation_joined": "nothing depends on its units",
        "istio_metadata_relation_departed": "nothing depends on its units",
        "istio_metadata_relation_joined": "nothing depends on its units",
        "metrics_endpoint_relation_departed": "nothing depends on its units",
        "metrics_endpoint_relation_joined": "nothing depends on its units",
        "grafana_dashboard_relation_departed": "nothing depends on its units",
        "grafana_dashboard_relation_joined": "nothing depends on its units",
        "logging_relation_joined": "an endpoint comes with changed",
        "service_mesh_relation_departed": "nothing depends on its units",
        "service_mesh_relation_joined": "nothing depends on its units",
        "sidecar_relation_departed": "nothing depends on its units",
        "sidecar_relation_joined": "nothing depends on its units",
    }
    with new_unit.ctx(new_unit.on.update_status(), new_unit.state) as manager:
        reconciled = {
            kind
            for _, method, _, kind in manager.charm.framework._observers
            if method == "_reconcile"
        }
        known = {
            name
            for name in manager.charm.on.events()
            if name != "commit" and not name.endswith(("pre_commit", "action"))
        }
    assert reconciled | set(left_out) >= known
    assert not reconciled & set(left_out)


def test_changed_settings_restart_the_workload(unit: Unit) -> None:
    before = unit.container.plan.services["istio-aux"].environment

    unit.configure(log_level="debug")

    assert unit.container.plan.services["istio-aux"].environment != before


def test_a_new_failure_policy_does_not_restart_the_workload(unit: Unit) -> None:
    before = unit.container.plan

    unit.configure(failure_policy="Fail")

    (webhook,) = unit.api.one("MutatingWebhookConfiguration")["webhooks"]
    assert webhook["failurePolicy"] == "Fail"
    assert unit.container.plan == before


def test_the_webhook_waits_until_the_workload_is_ready(new_unit: Unit) -> None:
    new_unit.process.missing = ["the first list of pods"]

    assert new_unit.configure() == testing.WaitingStatus("workload: the first list of pods")
    assert "MutatingWebhookConfiguration" not in new_unit.api.kinds()


def test_a_starting_workload_wakes_the_charm_until_it_is_ready(new_unit: Unit) -> None:
    new_unit.process.running = False
    new_unit.configure()
    assert new_unit.wakes

    new_unit.process.running = True

    assert new_unit.run() == active()
    assert "MutatingWebhookConfiguration" in new_unit.api.kinds()
    assert not new_unit.wakes


def fail_checks(unit: Unit) -> None:
    """Have every check of the container down."""
    down = pebble.CheckStatus.DOWN
    checks = {
        dataclasses.replace(check, status=down, failures=check.threshold)
        for check in unit.container.check_infos
    }
    unit.change_container(check_infos=checks)


def test_a_failed_check_does_not_wake_the_charm_because_its_recovery_will(unit: Unit) -> None:
    unit.process.running = False
    fail_checks(unit)

    assert isinstance(unit.run(), testing.WaitingStatus)
    assert not unit.wakes


def test_the_webhook_waits_while_the_service_does_not_lead_to_this_unit(unit: Unit) -> None:
    (path,) = [
        p for p, o in unit.api.objects.items() if o["kind"] == "MutatingWebhookConfiguration"
    ]
    del unit.api.objects[path]
    fail_checks(unit)

    unit.run()

    assert "MutatingWebhookConfiguration" not in unit.api.kinds()


def test_the_webhook_stays_while_this_unit_restarts(unit: Unit) -> None:
    unit.process.running = False

    unit.run()

    assert "MutatingWebhookConfiguration" in unit.api.kinds()


def test_an_object_of_an_older_version_is_deleted(unit: Unit) -> None:
    role = unit.api.one("ClusterRole")
    base = "/apis/rbac.authorization.k8s.io/v1/clusterroles/"
    stray = {**role, "metadata": {**role["metadata"], "name": "of-an-older-version"}}
    foreign = {"kind": "ClusterRole", "metadata": {"name": "foreign", "labels": {}}}
    unit.api.objects |= {base + "of-an-older-version": stray, base + "foreign": foreign}

    unit.run()

    found = [o for o in unit.api.objects.values() if o["kind"] == "ClusterRole"]
    names = {role["metadata"]["name"] for role in found}
    assert names == {"kubeflow-istio-aux-workload", "foreign"}


def test_istio_pilot_learns_which_versions_the_charm_reads(new_unit: Unit) -> None:
    relation = testing.Relation("istio-pilot", interface="k8s-service")

    new_unit.relate(relation)

    databag = new_unit.state.get_relation(relation.id).local_app_data
    assert yaml.safe_load(databag["_supported_versions"]) == ["v1"]


def test_a_follower_runs_its_workload_and_leaves_the_cluster_to_the_leader(unit: Unit) -> None:
    unit.api.calls.clear()
    for path in list(unit.etc.glob("t*")):
        path.rename(f"{path}-of-the-leader")

    assert unit.follow(unit.on.pebble_ready(unit.container)) == active()
    assert "tls/tls.crt" in unit.files
    assert not [call for call in unit.api.writes if not call.endswith("/token")]


def test_the_charm_waits_for_pebble(new_unit: Unit) -> None:
    new_unit.change_container(can_connect=False)

    assert new_unit.run(new_unit.on.install()) == testing.WaitingStatus(
        "waiting for Pebble in container istio-aux"
    )
    assert new_unit.api.kinds() == STANDING
