"""Whatever event comes, the unit ends where it should be, and stays there."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml
from ops import pebble, testing

import workload
from charm import IstioAuxCharm

from .apiserver import ApiServer
from .conftest import WELL, Files, Workload

Context = testing.Context[IstioAuxCharm]

# What is there as soon as the charm may make it, whether the workload serves or not.
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
    "install": lambda ctx, _: ctx.on.install(),
    "start": lambda ctx, _: ctx.on.start(),
    "upgrade": lambda ctx, _: ctx.on.upgrade_charm(),
    "config changed": lambda ctx, _: ctx.on.config_changed(),
    "update status": lambda ctx, _: ctx.on.update_status(),
    "leader elected": lambda ctx, _: ctx.on.leader_elected(),
    "pebble ready": lambda ctx, state: ctx.on.pebble_ready(state.get_container("istio-aux")),
    "peers created": lambda ctx, state: ctx.on.relation_created(state.get_relations("peers")[0]),
    "peers changed": lambda ctx, state: ctx.on.relation_changed(
        state.get_relations("peers")[0], remote_unit=1
    ),
}


@pytest.mark.parametrize("event", EVENTS)
def test_any_event_reaches_the_goal(
    event: str, ctx: Context, fresh: testing.State, api: ApiServer, files: Files
) -> None:
    out = ctx.run(EVENTS[event](ctx, fresh), fresh)

    assert out.unit_status == testing.ActiveStatus(WELL)
    assert api.kinds() == sorted([*STANDING, "MutatingWebhookConfiguration"])
    assert set(files()) == {
        "applications",
        "config.yaml",
        "kubeconfig",
        "tls/tls.crt",
        "tls/tls.key",
        "token",
    }
    assert out.workload_version == "1.2.3"
    assert out.opened_ports == {testing.TCPPort(8443)}
    service = out.get_container("istio-aux").service_statuses["istio-aux"]
    assert service is pebble.ServiceStatus.ACTIVE


@pytest.mark.parametrize("event", EVENTS)
def test_a_second_time_changes_nothing(
    event: str, ctx: Context, settled: testing.State, api: ApiServer, etc: Path
) -> None:
    objects = dict(api.objects)
    files = {path: path.stat().st_mtime_ns for path in etc.rglob("*")}
    before = settled.get_container("istio-aux")
    api.calls.clear()

    out = ctx.run(EVENTS[event](ctx, settled), settled)

    assert api.objects == objects
    assert not [call for call in api.writes if not call.startswith("PATCH")]
    assert {path: path.stat().st_mtime_ns for path in etc.rglob("*")} == files
    assert out.get_container("istio-aux").plan == before.plan
    assert out.get_container("istio-aux").layers == before.layers
    assert [s._latest_revision for s in out.secrets] == [1]
    assert out.unit_status == settled.unit_status


def test_every_event_is_either_reconciled_or_left_out_on_purpose(
    ctx: Context, fresh: testing.State
) -> None:
    left_out = {
        "collect_app_status": "units speak for themselves",
        "collect_metrics": "never sent to a Kubernetes charm of ours",
        "collect_unit_status": "has a handler of its own",
        "leader_settings_changed": "deprecated; peers changed says it",
        "post_series_upgrade": "machines only",
        "pre_series_upgrade": "machines only",
        "remove": "has a handler of its own",
        "secret_expired": "no secret of ours has an expiry",
        "secret_remove": "has a handler of its own",
        "secret_rotate": "no secret of ours has a rotation",
        "stop": "has a handler of its own",
        "peers_relation_broken": "the application is going",
        "peers_relation_departed": "nothing depends on how many peers there are",
        "peers_relation_joined": "nothing depends on how many peers there are",
        "istio_pilot_relation_departed": "nothing depends on its units",
        "istio_pilot_relation_joined": "nothing depends on its units",
        "istio_metadata_relation_departed": "nothing depends on its units",
        "istio_metadata_relation_joined": "nothing depends on its units",
        "sidecar_relation_departed": "nothing depends on its units",
        "sidecar_relation_joined": "nothing depends on its units",
    }
    with ctx(ctx.on.update_status(), fresh) as manager:
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


def test_changed_settings_restart_the_workload(ctx: Context, settled: testing.State) -> None:
    before = settled.get_container("istio-aux").plan.services["istio-aux"].environment

    changed = dataclasses.replace(settled, config={"log-level": "debug"})
    out = ctx.run(ctx.on.config_changed(), changed)

    assert out.get_container("istio-aux").plan.services["istio-aux"].environment != before


def test_a_failure_policy_is_no_reason_to_restart(
    ctx: Context, settled: testing.State, api: ApiServer
) -> None:
    before = settled.get_container("istio-aux").plan

    changed = dataclasses.replace(settled, config={"failure-policy": "Fail"})
    out = ctx.run(ctx.on.config_changed(), changed)

    assert api.one("MutatingWebhookConfiguration")["webhooks"][0]["failurePolicy"] == "Fail"
    assert out.get_container("istio-aux").plan == before


def test_no_webhook_before_the_workload_is_ready(
    ctx: Context, fresh: testing.State, api: ApiServer, process: Workload
) -> None:
    process.missing = ["the first list of pods"]

    out = ctx.run(ctx.on.config_changed(), fresh)

    assert "MutatingWebhookConfiguration" not in api.kinds()
    assert out.unit_status == testing.WaitingStatus("workload: the first list of pods")


def notices(manager: testing.Manager[IstioAuxCharm]) -> list[str]:
    pebble = manager.charm.unit.get_container(workload.CONTAINER).pebble
    return [notice.key for notice in pebble.get_notices()]


def test_a_starting_workload_wakes_the_charm_until_its_check_has_spoken(
    ctx: Context, fresh: testing.State, process: Workload, api: ApiServer
) -> None:
    process.running = False
    with ctx(ctx.on.config_changed(), fresh) as manager:
        starting = manager.run()
        (key,) = notices(manager)

    process.running = True
    notice = testing.Notice(key)
    container = dataclasses.replace(starting.get_container("istio-aux"), notices=[notice])
    woken = ctx.on.pebble_custom_notice(container, notice)
    ready = ctx.run(woken, dataclasses.replace(starting, containers={container}))

    assert ready.unit_status == testing.ActiveStatus(WELL)
    assert "MutatingWebhookConfiguration" in api.kinds()


def with_failed_checks(state: testing.State) -> testing.State:
    """The same, with every check of the container down."""
    container = state.get_container("istio-aux")
    checks = {
        dataclasses.replace(check, status=pebble.CheckStatus.DOWN, failures=check.threshold)
        for check in container.check_infos
    }
    return dataclasses.replace(
        state, containers={dataclasses.replace(container, check_infos=checks)}
    )


def test_a_failed_check_wakes_nobody_for_its_recovery_will(
    ctx: Context, settled: testing.State, process: Workload
) -> None:
    process.running = False
    with ctx(ctx.on.update_status(), with_failed_checks(settled)) as manager:
        out = manager.run()
        woken = notices(manager)

    assert not woken
    assert isinstance(out.unit_status, testing.WaitingStatus)


def test_no_webhook_while_the_service_does_not_lead_to_this_unit(
    ctx: Context, settled: testing.State, api: ApiServer
) -> None:
    (path,) = [p for p, o in api.objects.items() if o["kind"] == "MutatingWebhookConfiguration"]
    del api.objects[path]

    ctx.run(ctx.on.update_status(), with_failed_checks(settled))

    assert "MutatingWebhookConfiguration" not in api.kinds()


def test_a_webhook_that_is_there_stays_while_this_unit_restarts(
    ctx: Context, settled: testing.State, api: ApiServer, process: Workload
) -> None:
    process.running = False

    ctx.run(ctx.on.update_status(), settled)

    assert "MutatingWebhookConfiguration" in api.kinds()


def test_what_the_application_does_not_own_any_more_is_deleted(
    ctx: Context, settled: testing.State, api: ApiServer
) -> None:
    role = api.one("ClusterRole")
    stray = {**role, "metadata": {**role["metadata"], "name": "of-an-older-version"}}
    base = "/apis/rbac.authorization.k8s.io/v1/clusterroles/"
    api.objects[base + "of-an-older-version"] = stray
    foreign = {"kind": "ClusterRole", "metadata": {"name": "foreign", "labels": {}}}
    api.objects[base + "foreign"] = foreign

    ctx.run(ctx.on.update_status(), settled)

    names = {o["metadata"]["name"] for o in api.objects.values() if o["kind"] == "ClusterRole"}
    assert names == {"kubeflow-istio-aux-workload", "foreign"}


def test_istio_pilot_learns_which_versions_are_spoken(ctx: Context, fresh: testing.State) -> None:
    relation = testing.Relation("istio-pilot", interface="k8s-service")
    related = dataclasses.replace(fresh, relations={*fresh.relations, relation})

    out = ctx.run(ctx.on.relation_created(relation), related)

    published = out.get_relation(relation.id).local_app_data["_supported_versions"]
    assert yaml.safe_load(published) == ["v1"]


def test_a_follower_runs_its_workload_and_leaves_the_cluster_to_the_leader(
    ctx: Context,
    settled: testing.State,
    etc: Path,
    api: ApiServer,
) -> None:
    api.calls.clear()
    for path in list(etc.glob("t*")):
        path.rename(f"{path}-of-the-leader")
    follower = dataclasses.replace(settled, leader=False)

    out = ctx.run(ctx.on.pebble_ready(settled.get_container("istio-aux")), follower)

    assert out.unit_status == testing.ActiveStatus(WELL)
    assert (etc / "tls" / "tls.crt").exists()
    assert not [call for call in api.writes if not call.endswith("/token")]


def test_a_container_that_is_not_there_yet_is_waited_for(
    ctx: Context, fresh: testing.State, api: ApiServer
) -> None:
    starting = dataclasses.replace(
        fresh, containers={testing.Container("istio-aux", can_connect=False)}
    )

    out = ctx.run(ctx.on.install(), starting)

    assert out.unit_status == testing.WaitingStatus("waiting for Pebble in container istio-aux")
    assert api.kinds() == STANDING
