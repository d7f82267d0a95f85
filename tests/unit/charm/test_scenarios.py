"""Every event leads to the same state, a second one changes nothing, relations do not mix."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import ops
import pytest
from lab.nightly import NIGHTLY
from lab.pki import Provider
from ops import pebble, testing
from scenario import mocking

from .conftest import METADATA, PILOT, STARTED, Unit, active
from .test_cos import DASHBOARD, METRICS, URL, logs_to, loki
from .test_istio_relations import MESH, SAID, policies
from .test_reconcile import STANDING
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
    "collect_unit_status": "test_status.py",
    "remove": "test_removal.py",
    "stop": "test_removal.py",
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
    columns = itertools.combinations(range(5), 3)
    rows = dict(zip(RELATIONS, columns, strict=False))
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
                raise ops.RelationNotFoundError
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
