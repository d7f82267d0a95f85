"""The relation `service-mesh`: in an ambient mesh, API server and Prometheus reach the units."""

from __future__ import annotations

from typing import Any

from ops import testing

from .conftest import Unit, active
from .test_others_webhooks import AWAY, refusal

MESH = testing.Relation(
    "service-mesh",
    remote_app_name="istio-beacon-k8s",
    remote_app_data={"labels": '{"istio.io/dataplane-mode": "ambient"}', "mesh_type": '"istio"'},
)
SAID = "; ambient mesh: its pods have nothing to quit, pods with a sidecar have"


def policies(unit: Unit) -> list[dict[str, Any]]:
    return [o for o in unit.api.objects.values() if o["kind"] == "AuthorizationPolicy"]


def test_a_mesh_lets_everybody_reach_both_ports_of_the_units_and_no_other(unit: Unit) -> None:
    """T36: the API server is in no mesh, so no identity of its own can be named."""
    assert policies(unit) == []

    unit.relate(MESH)

    (policy,) = policies(unit)
    assert policy["metadata"]["namespace"] == "kubeflow"
    assert policy["spec"] == {
        "selector": {"matchLabels": {"app.kubernetes.io/name": "istio-aux"}},
        "action": "ALLOW",
        "rules": [{"to": [{"operation": {"ports": ["8443", "8080"]}}]}],
    }


def test_the_status_says_what_is_left_to_do_beside_an_ambient_mesh(unit: Unit) -> None:
    assert unit.relate(MESH) == active(SAID)
    assert unit.leave(MESH) == active()


def test_without_the_relation_nobody_but_the_mesh_decides(unit: Unit) -> None:
    unit.relate(MESH)

    unit.leave(MESH)

    assert policies(unit) == []


def test_only_the_leader_writes_the_policy(unit: Unit) -> None:
    every = {*unit.state.relations, MESH}

    unit.run(unit.on.relation_created(MESH), relations=every, leader=False)

    assert policies(unit) == []


def test_a_second_event_writes_no_policy_and_restarts_nothing(unit: Unit) -> None:
    unit.relate(MESH)
    plan = unit.container.plan
    unit.api.calls.clear()

    unit.run()

    assert not [call for call in unit.api.writes if "authorizationpolicies" in call]
    assert unit.container.plan == plan
    assert not [call for call in unit.api.calls if "statefulsets" in call]


def test_a_policy_that_istiod_cannot_check_now_is_said_and_comes_later(unit: Unit) -> None:
    unit.api.answers["patch authorizationpolicies"] = refusal(500, "InternalError", AWAY)
    status = unit.relate(MESH)
    assert isinstance(status, testing.ActiveStatus)
    assert "not applied: AuthorizationPolicy istio-aux" in status.message

    unit.api.answers.clear()
    unit.run()

    assert len(policies(unit)) == 1


def test_a_cluster_without_istio_needs_no_policy(unit: Unit) -> None:
    unit.api.unknown = {"peerauthentications", "authorizationpolicies"}

    assert unit.relate(MESH) == active(SAID)


def test_the_policy_goes_with_the_application(unit: Unit) -> None:
    unit.relate(MESH)

    unit.remove()

    assert policies(unit) == []
