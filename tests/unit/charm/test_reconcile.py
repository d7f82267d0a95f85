"""What a unit owns in the cluster, when its workload restarts, and what its webhook waits for."""

from __future__ import annotations

import dataclasses
from typing import Any

import httpx2
import pytest
from ops import pebble, testing

import workload

from .apiserver import endpoint
from .conftest import Unit, active

WEBHOOK = "MutatingWebhookConfiguration"

# The objects that do not wait for the workload.
STANDING = [
    "ClusterRole",
    "ClusterRoleBinding",
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


def test_a_starting_workload_wakes_the_charm_until_it_is_ready(new_unit: Unit) -> None:
    new_unit.process.missing = ["the list of pods", "the list of namespaces"]

    assert new_unit.configure() == testing.WaitingStatus(
        "workload: the list of pods; the list of namespaces"
    )
    assert WEBHOOK not in new_unit.api.kinds()
    assert new_unit.wakes

    new_unit.process.missing = []

    assert new_unit.run() == active()
    assert WEBHOOK in new_unit.api.kinds()
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
    (path,) = [p for p, o in unit.api.objects.items() if o["kind"] == WEBHOOK]
    del unit.api.objects[path]
    fail_checks(unit)

    unit.run()

    assert WEBHOOK not in unit.api.kinds()


def test_the_webhook_stays_while_this_unit_restarts(unit: Unit) -> None:
    unit.process.running = False

    unit.run()

    assert WEBHOOK in unit.api.kinds()


def test_a_follower_runs_its_workload_and_leaves_the_cluster_to_the_leader(unit: Unit) -> None:
    unit.api.calls.clear()
    for path in list(unit.etc.glob("t*")):
        path.rename(f"{path}-of-the-leader")

    assert unit.follow(unit.on.pebble_ready(unit.container)) == active()
    assert "tls/tls.crt" in unit.files
    assert not [call for call in unit.api.writes if not call.endswith("/token")]


@pytest.mark.parametrize("leader", [True, False])
def test_an_api_server_that_hangs_costs_a_hook_one_wait(leader: bool, unit: Unit) -> None:
    unit.api.calls.clear()
    unit.api.failures = [httpx2.ReadTimeout("timed out")] * 99

    status = unit.run(leader=leader)

    assert isinstance(status, testing.WaitingStatus)
    assert "Kubernetes API server: timed out" in status.message
    assert sum(unit.api.patience[call] for call in unit.api.calls) == 10


def test_the_charm_waits_for_pebble(new_unit: Unit) -> None:
    new_unit.change_container(can_connect=False)

    assert new_unit.run(new_unit.on.install()) == testing.WaitingStatus(
        "waiting for Pebble in container istio-aux"
    )
    assert new_unit.api.kinds() == STANDING


NOBODY = testing.WaitingStatus("waiting for a ready endpoint of Service istio-aux")


@pytest.mark.parametrize(
    ("ends", "status"),
    [
        ([("istio-aux-0", "10.1.0.10", None), ("istio-aux-1", "10.1.0.11", False)], active()),
        ([("istio-aux-0", "10.1.0.10", False)], NOBODY),
        ([], NOBODY),
    ],
    ids=["another unit is not ready", "none is ready", "no endpoint"],
)
def test_the_webhook_waits_for_ready_endpoints_only(
    ends: list[tuple[str, str, bool | None]], status: Any, new_unit: Unit
) -> None:
    """A cluster of two families has an EndpointSlice for each."""
    new_unit.api.endpoints = [endpoint(pod, at, ready=ready) for pod, at, ready in ends]

    assert new_unit.configure() == status
    assert (WEBHOOK in new_unit.api.kinds()) is (status == active())


def woken(unit: Unit) -> object:
    """The event of the notice that Pebble's service `wake` sends."""
    notice = testing.Notice(workload.WAKE_KEY)
    unit.change_container(notices=[notice])
    return unit.on.pebble_custom_notice(unit.container, notice)


def test_a_webhook_that_exists_waits_for_nothing(unit: Unit) -> None:
    unit.api.endpoints = []

    assert unit.run() == active()
    assert WEBHOOK in unit.api.kinds()


def test_the_webhook_waits_until_juju_has_opened_the_port_of_the_service(new_unit: Unit) -> None:
    """Juju opens it after the hook; before that the Service has a port of Juju's."""
    new_unit.api.port = 65535

    status = new_unit.configure()

    assert status == testing.WaitingStatus("waiting for port 8443 of Service istio-aux")
    assert WEBHOOK not in new_unit.api.kinds()
    assert new_unit.wakes

    new_unit.api.port = 8443
    assert new_unit.run(woken(new_unit)) == active()
    assert WEBHOOK in new_unit.api.kinds()
    assert not new_unit.wakes


@pytest.mark.parametrize("kind", ["ClusterRole", "MutatingWebhookConfiguration"])
@pytest.mark.parametrize("how", ["emptied", "deleted"])
def test_what_somebody_does_to_an_object_is_undone_by_the_next_event(
    kind: str, how: str, unit: Unit
) -> None:
    before = dict(unit.api.objects)
    path = next(path for path, each in before.items() if each["kind"] == kind)
    present = unit.api.objects.pop(path)
    emptied = {key: present[key] for key in ("apiVersion", "kind", "metadata")}
    if how == "emptied":
        unit.api.objects[path] = emptied

    unit.run()

    uid = {"uid": unit.api.objects[path]["metadata"]["uid"]}
    whole = {**before[path], "metadata": before[path]["metadata"] | uid}
    assert unit.api.objects[path] == whole
