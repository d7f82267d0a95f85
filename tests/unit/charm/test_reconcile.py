"""What a unit owns in the cluster, and when its workload restarts."""

from __future__ import annotations

import dataclasses

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
    *2 * ["ValidatingAdmissionPolicy"],
    *2 * ["ValidatingAdmissionPolicyBinding"],
]


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


def test_a_starting_workload_wakes_the_charm_until_it_is_ready(new_unit: Unit) -> None:
    new_unit.process.missing = ["the list of pods", "the list of namespaces"]

    assert new_unit.configure() == testing.WaitingStatus(
        "workload: the list of pods; the list of namespaces"
    )
    assert "MutatingWebhookConfiguration" not in new_unit.api.kinds()
    assert new_unit.wakes

    new_unit.process.missing = []

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
