"""Every event leads to the same state, a second one changes nothing, relations do not mix.

The last unit deletes everything, which it knows by its labels; no other unit deletes anything. What
is cluster-wide goes with the model's namespace when nobody runs the charm's last hook.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.nightly import NIGHTLY
from lightkube.core.resource import api_info
from ops import RelationNotFoundError, pebble, testing
from scenario import mocking

import cluster

from .conftest import METADATA, MODEL_UID, PILOT, STARTED, Unit, active, refusal
from .test_certificates import handshake, served, trusted
from .test_certificates_relation import Provider
from .test_reconcile import STANDING
from .test_relations import DASHBOARD, MESH, METRICS, SAID, URL, logs_to, loki, policies
from .test_sidecar_relation import TENSORBOARD, named

CERTIFICATES = testing.Relation("certificates", remote_app_name="pki")
LOGGING = loki({0: URL})
RELATIONS: dict[str, testing.Relation] = {
    relation.endpoint: relation
    for relation in (
        PILOT, METADATA, TENSORBOARD, MESH, CERTIFICATES, METRICS, DASHBOARD, LOGGING,
    )
}  # fmt: skip

# The events that nothing has to be done for, with the reason.
LEFT_OUT = {
    "collect_app_status": "units report for themselves",
    "collect_metrics": "never sent to this charm",
    "leader_settings_changed": "deprecated; peers changed replaces it",
    "post_series_upgrade": "machines only",
    "pre_series_upgrade": "machines only",
    "secret_expired": "the library of the relation certificates renews what expires",
    "secret_rotate": "no secret of ours has a rotation",
    "peers_relation_broken": "the application is going",
    "peers_relation_departed": "what a unit needed may stay until the next event",
    "peers_relation_joined": "a unit is counted once it has published something",
    "logging_relation_joined": "an endpoint comes with changed",
    **{
        f"{endpoint.replace('-', '_')}_relation_{what}": "nothing depends on its units"
        for endpoint in RELATIONS
        for what in ("joined", "departed")
        if endpoint != "logging"
    },
}
LEFT_OUT |= {
    f"{endpoint}_relation_{what}": "ops has handlers of its own"
    for endpoint in ("charm_tracing", "receive_ca_cert")
    for what in ("created", "joined", "changed", "departed", "broken")
}
# Those with a handler of their own, and their tests.
OTHERWISE = {
    "collect_unit_status": "test_reconcile.py",
    "remove": "below",
    "stop": "below",
}


def secret_remove(unit: Unit) -> Any:
    (secret,) = (one for one in unit.state.secrets if one.owner)
    return unit.on.secret_remove(secret, revision=7)


# All of them run the same.
RECONCILED = {
    "install", "start", "upgrade_charm", "config_changed", "update_status", "leader_elected",
    "secret_changed", "secret_remove", "peers_relation_created", "peers_relation_changed",
    "logging_relation_departed",
    *(
        f"istio_aux_pebble_{what}"
        for what in ("ready", "check_failed", "check_recovered", "custom_notice")
    ),
    *(
        f"{endpoint.replace('-', '_')}_relation_{what}"
        for endpoint in RELATIONS
        for what in ("created", "changed", "broken")
    ),
}  # fmt: skip
EVENTS: dict[str, Callable[[Unit], Any]] = {
    "pebble-ready": lambda unit: unit.on.pebble_ready(unit.container),
    "secret-remove": secret_remove,
}


def test_every_event_is_in_the_table_or_left_out_on_purpose(new_unit: Unit) -> None:
    with new_unit.ctx(new_unit.on.update_status(), new_unit.state) as manager:
        reconciled = {
            kind
            for observer, method, _, kind in manager.charm.framework._observers
            if observer == manager.charm.handle.path
            and method in {"_reconcile", "_on_secret_remove"}
        }
        known = {
            name
            for name in manager.charm.on.events()
            if name != "commit" and not name.endswith(("pre_commit", "action"))
        }
    assert reconciled == RECONCILED
    assert reconciled | LEFT_OUT.keys() | OTHERWISE.keys() == known
    assert not reconciled & LEFT_OUT.keys()


def goal(unit: Unit) -> tuple[Any, ...]:
    """What the charm makes of the cluster, of its container and of what it says."""
    container = unit.container
    files = {path: path.stat().st_mtime_ns for path in unit.etc.rglob("*")}
    revisions = [s._latest_revision for s in unit.state.secrets]
    said = (unit.state.unit_status, unit.state.workload_version, unit.state.opened_ports)
    return dict(unit.api.objects), files, container.plan, container.layers, said, revisions


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_alone_reaches_the_goal_once(event: str, new_unit: Unit) -> None:
    """From nothing; neither the same event nor config-changed finds anything to do afterwards."""
    new_unit.run(EVENTS[event](new_unit))

    assert isinstance(new_unit.state.unit_status, testing.ActiveStatus)
    assert set(new_unit.api.kinds()) >= {*STANDING, "MutatingWebhookConfiguration"}
    assert set(new_unit.files) == {
        "applications",
        "config.yaml",
        "kubeconfig",
        "tls/tls.crt",
        "tls/tls.key",
        "token",
    }
    assert new_unit.container.service_statuses["istio-aux"] is pebble.ServiceStatus.ACTIVE
    assert new_unit.state.workload_version == "1.2.3"
    reached = goal(new_unit)
    new_unit.api.calls.clear()
    new_unit.run(EVENTS[event](new_unit))
    assert goal(new_unit) == reached
    assert not [call for call in new_unit.api.writes if not call.startswith("PATCH")]
    new_unit.run(new_unit.on.config_changed())
    assert goal(new_unit) == reached


def brought(unit: Unit) -> dict[str, Any]:
    """What relations bring."""
    return {
        "root namespace": unit.settings.get("root-namespace"),
        "applications": named(unit),
        "policies for a mesh": len(policies(unit)),
        "logs": logs_to(unit),
        "written": {
            one.endpoint: {*one.local_app_data, *one.local_unit_data} - OF_JUJU
            for one in unit.state.relations
            if one.endpoint in WRITTEN
        },
        "status": unit.state.unit_status,
    }


# What Juju writes itself.
OF_JUJU = {"egress-subnets", "ingress-address", "private-address"}
WRITTEN = {
    "istio-pilot": {"_supported_versions"},
    "sidecar": {"live", "meshed", "reason"},
    "certificates": {"certificate_signing_requests"},
    "metrics-endpoint": {
        "scrape_jobs",
        "scrape_metadata",
        "alert_rules",
        "prometheus_scrape_unit_address",
        "prometheus_scrape_unit_name",
    },
    "grafana-dashboard": {"dashboards"},
}
MIGRATION = (
    "; istio-pilot: root namespace kubeflow, istio-metadata: root namespace istio-system:"
    " two control planes: the injectors of both count until one of these relations is removed"
)
ISSUED = "; certificates: waiting for the certificate of pki"
ROOTS = {"istio-pilot": "kubeflow", "istio-metadata": "istio-system"}


def wanted(present: set[str]) -> dict[str, Any]:
    """What those that are present bring, each whatever the others are."""
    roots = sorted(ROOTS.keys() & present)
    return {
        "root namespace": ROOTS[roots[0]] if len(roots) == 1 else None,
        "applications": ["kubeflow/tensorboard"] if "sidecar" in present else [],
        "policies for a mesh": len({"service-mesh"} & present),
        "logs": {"loki/0": URL} if "logging" in present else {},
        "written": {name: keys for name, keys in WRITTEN.items() if name in present},
        "status": active(
            (MIGRATION if len(roots) == 2 else "")
            + (SAID if len(roots) == 2 or "service-mesh" in present else "")
            + (ISSUED if "certificates" in present else "")
        ),
    }


def combinations() -> Iterator[set[str]]:
    """Yield sets of relations: those in which each pair is in all four ways, at night every set."""
    if NIGHTLY:
        # A Gray code: one relation comes or goes at a time.
        for step in range(1, 2 ** len(RELATIONS)):
            yield {name for bit, name in enumerate(RELATIONS) if (step ^ step >> 1) >> bit & 1}
        return
    # Any two of these columns have a row of both, and rows of each without the other. The empty
    # set has neither.
    rows = dict(zip(RELATIONS, itertools.combinations(range(5), 3), strict=False))
    for row in range(5):
        yield {name for name, column in rows.items() if row in column}


def test_relations_together_bring_what_each_of_them_does(unit: Unit) -> None:
    """They come and go one at a time."""
    unit.run()
    present: set[str] = set()
    assert brought(unit) == wanted(present)
    for combination in combinations():
        for endpoint in sorted(present ^ combination):
            if endpoint in present:
                unit.leave(RELATIONS[endpoint])
            else:
                unit.relate(RELATIONS[endpoint])
            present ^= {endpoint}
            assert brought(unit) == wanted(present), (present, endpoint)


def refuse(patch: pytest.MonkeyPatch, gone: testing.Relation, tools: tuple[str, ...]) -> None:
    """Have Juju refuse access to a relation, of which ops makes this error."""
    for tool in tools:
        real = getattr(mocking._MockModelBackend, tool)

        def ask(backend: Any, *args: Any, real: Any = real, **named: Any) -> Any:
            if gone.id in (*args[:1], named.get("relation_id")):
                if real.__name__ == "relation_remote_app_name":
                    return None  # ops itself catches that error.
                raise RelationNotFoundError
            return real(backend, *args, **named)

        patch.setattr(mocking._MockModelBackend, tool, ask)


@pytest.mark.parametrize("units", ["with its units", "without"])
@pytest.mark.parametrize("endpoint", [*RELATIONS, "charm-tracing"])
def test_a_relation_that_is_gone_and_listed_fails_no_hook_and_hides_no_other(
    endpoint: str, units: str, unit: Unit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `juju remove-saas --force`: juju#23246, operator#2709, operator#2748."""
    gone = RELATIONS.get(endpoint) or testing.Relation(endpoint)
    tools = ("relation_get", "relation_set", "relation_model_get")
    more = ("relation_list", "relation_remote_app_name") if units == "without" else ()
    refuse(monkeypatch, gone, (*tools, *more))

    assert isinstance(unit.relate(gone), testing.ActiveStatus)
    for event in ("config_changed", "leader_elected", "upgrade_charm"):
        assert isinstance(unit.run(getattr(unit.on, event)()), testing.ActiveStatus)
    unit.run(unit.on.action("list-unmeshed"))

    unit.relate(dataclasses.replace(gone, id=gone.id + 1000))
    both, alone = brought(unit), wanted({endpoint})
    for fact in ("root namespace", "applications", "policies for a mesh", "logs"):
        assert both[fact] == alone[fact]


def test_a_new_unit_waits_until_the_leader_knows_its_issuer(unit: Unit) -> None:
    unit.note({"trusted-issuers": Provider().ca})
    (unit.etc / "tls" / "tls.crt").unlink()
    unit.change_container(**STARTED)

    assert unit.follow() == testing.WaitingStatus(
        "waiting for a certificate that the API server trusts"
    )


ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kubeflow/leases"


@pytest.mark.parametrize("leader", [True, False])
@pytest.mark.parametrize("event", ["stop", "remove"])
def test_the_last_unit_deletes_every_object_and_the_webhook_first(
    event: str, leader: bool, unit: Unit
) -> None:
    unit.relate(MESH)
    unit.api.calls.clear()

    unit.remove(event, leader=leader)

    assert not unit.api.objects
    deleted = [call.split("/")[-2] for call in unit.api.calls if call.startswith("DELETE")]
    assert deleted[0] == "mutatingwebhookconfigurations"
    # The workload's account never has rights that nothing narrows.
    roles, narrowing = "clusterrolebindings", "validatingadmissionpolicybindings"
    assert deleted.index(roles) < deleted.index(narrowing)


def test_the_lease_of_the_workload_goes_and_objects_of_another_application_stay(
    unit: Unit,
) -> None:
    labels = unit.api.one("ClusterRole")["metadata"]["labels"] | {"istio-aux.io/model": "other"}
    theirs = {"kind": "ClusterRole", "metadata": {"name": "theirs", "labels": labels}}
    unit.api.objects[f"{ROLES}/theirs"] = theirs
    for name in ("istio-aux", "another"):
        lease = {"kind": "Lease", "metadata": {"name": name, "labels": {}}}
        unit.api.objects[f"{LEASES}/{name}"] = lease

    unit.remove()

    assert {*unit.api.objects} == {f"{ROLES}/theirs", f"{LEASES}/another"}


@pytest.mark.parametrize("event", ["stop", "remove"])
def test_a_unit_that_goes_while_others_stay_deletes_nothing(event: str, unit: Unit) -> None:
    objects = dict(unit.api.objects)

    assert unit.remove(event, planned_units=1) == testing.WaitingStatus("the unit is being removed")

    assert unit.api.objects == objects


@pytest.mark.parametrize("code", [401, 403, 404])
def test_a_permission_that_juju_removed_does_not_stop_the_removal(code: int, unit: Unit) -> None:
    unit.api.answers = {"list mutatingwebhookconfigurations": refusal(code, "no")}

    unit.remove()

    assert unit.api.kinds() == ["MutatingWebhookConfiguration"]


GONE = "MutatingWebhookConfiguration, ClusterRoleBinding, ClusterRole"


def take_rights(unit: Unit) -> None:
    """Juju deletes the charm's role before the last hook (lp:1941655)."""
    kinds = {api_info(kind).plural for kind in cluster.OWNED}
    unit.api.denied = {f"list {kind}" for kind in {*kinds, "namespaces"}} | {"delete leases"}


def test_objects_that_are_left_without_rights_are_said_with_the_page_that_deletes_them(
    unit: Unit,
) -> None:
    take_rights(unit)

    page = "see docs/how-to/clean-up-by-hand.md"

    assert unit.remove() == testing.BlockedStatus(
        f"the unit is being removed; left in the cluster: {GONE} and 9 more: {page}"
    )
    (line,) = [log for log in unit.ctx.juju_log if log.level == "ERROR"]
    assert line.message.startswith(f"left in the cluster: {GONE}, RoleBinding, ")
    assert line.message.endswith(f"Lease, the labels of namespaces: {page}")


def test_what_an_earlier_hook_of_the_removal_has_deleted_is_not_left(unit: Unit) -> None:
    unit.remove("stop")
    take_rights(unit)

    assert unit.remove() == testing.WaitingStatus("the unit is being removed")


def test_a_unit_that_stays_after_all_and_is_removed_later_says_what_it_leaves(unit: Unit) -> None:
    unit.remove("stop")
    unit.run(planned_units=1)
    take_rights(unit)

    assert "left in the cluster: " in unit.remove().message


def test_juju_retries_the_removal_when_the_api_server_fails(unit: Unit) -> None:
    unit.api.failures = [refusal(500, "etcd is gone")]

    with pytest.raises(testing.errors.UncaughtCharmError, match="etcd is gone"):
        unit.remove()


def test_every_cluster_wide_object_goes_with_the_namespace_of_the_model(unit: Unit) -> None:
    """The garbage collector deletes them when nobody runs the charm's last hook."""
    unit.configure(race_policy="restart")

    owner = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "name": "kubeflow",
        "uid": MODEL_UID,
        # A foreground deletion of the namespace waits for them.
        "blockOwnerDeletion": True,
    }
    owners = {path: o["metadata"].get("ownerReferences") for path, o in unit.api.objects.items()}
    inside = {path for path in owners if "/namespaces/" in path}
    assert len(owners) > len(inside) > 1
    assert owners == {path: None if path in inside else [owner] for path in owners}


def test_in_the_model_of_a_controller_everything_is_in_its_namespace(
    new_unit: Unit, tmp_path: Path
) -> None:
    """Juju calls that model `controller`, and its namespace `controller-` and its own name."""
    unit, namespace = new_unit, "controller-lab"
    unit.state = dataclasses.replace(unit.state, model=testing.Model("controller"))
    unit.kubeconfig.write_text(unit.kubeconfig.read_text().replace("kubeflow", namespace))
    unit.api.model = namespace

    assert isinstance(unit.configure(), testing.ActiveStatus)

    parts = (path.partition("/namespaces/")[2].partition("/") for path in unit.api.objects)
    # What is cluster-wide has none.
    assert {name for name, _, _ in parts} == {"", namespace}
    services = [each["clientConfig"]["service"]["namespace"] for each in unit.api.webhooks]
    assert {*services} == {namespace}
    assert unit.settings["lease"] == f"{namespace}/istio-aux"
    assert handshake(served(unit), trusted(unit.api), f"istio-aux.{namespace}.svc", tmp_path)

    unit.remove()
    assert not unit.api.objects
