"""The relation `sidecar`: which applications get a sidecar by it, and what each charm reads."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from charmlibs.interfaces.istio_sidecar import Mesh
from ops import pebble, testing

from .conftest import Unit, active, fail
from .test_certificates import DOWN
from .test_reconcile import PATH, WRITE, set_checks

COS_ID = "c05c05c0-0000-4000-8000-000000000001"


def asking(
    application: str, model: str = "kubeflow", remote: str = "", uuid: str | None = None
) -> testing.Relation:
    """A relation that asks for this; `uuid` is that of another model."""
    return testing.Relation(
        "sidecar",
        remote_app_name=remote or application,
        remote_app_data={"application": application, "model": model},
        remote_model_uuid=uuid,
    )


TENSORBOARD = asking("tensorboard")
ID = "model.juju.is/id"
OWN = f"expected its own model, whose namespace has the label {ID}"
NAME = "expected up to 63 lower-case letters, digits and hyphens"
# Across models, Juju replaces the name of the remote application by a token.
GRAFANA = asking("grafana", "cos", remote="remote-6f1d", uuid=COS_ID)


@pytest.fixture(autouse=True)
def cos(unit: Unit) -> None:
    """Another model."""
    unit.api.add_namespace("cos", **{ID: COS_ID, "model.juju.is/name": "cos"})


def state_of(name: str, model: str = "kubeflow", **more: Any) -> dict[str, Any]:
    """What the workload reports of an application."""
    return {
        "namespace": model,
        "name": name,
        "live": True,
        "live-reason": "istio-sidecar-injector injects",
        "revision": "default",
        "root-namespace": "istio-system",
        "meshed": False,
        "meshed-reason": f"{name}-0 has no sidecar",
        **more,
    }


def told(unit: Unit, relation: testing.Relation = TENSORBOARD) -> Mesh | None:
    """What the charm wrote to the relation."""
    return Mesh.from_databag(unit.state.get_relation(relation.id).local_app_data)


# What `state_of` is for the charm of the application.
LIVE = Mesh(
    live=True,
    reason="istio-sidecar-injector injects",
    root_namespace="istio-system",
    revision="default",
    meshed=False,
    meshed_reason="tensorboard-0 has no sidecar",
)


def named(unit: Unit) -> list[str]:
    """The applications that the workload knows of."""
    return unit.files["applications"].splitlines()[1:]


def injected(unit: Unit) -> set[str]:
    """The models with a webhook that asks for sidecars."""
    names = (webhook["name"] for webhook in unit.api.webhooks)
    return {name.partition(".")[0] for name in names if name.endswith(".inject.istio-aux.io")}


def test_an_application_gets_its_sidecar_until_it_leaves(unit: Unit) -> None:
    """Whatever the option says; and no new application restarts the workload."""
    unit.configure(inject_applications="minio,other/*")
    plan = unit.container.plan

    unit.relate(TENSORBOARD, GRAFANA)

    assert named(unit) == ["cos/grafana", "kubeflow/minio", "kubeflow/tensorboard", "other/*"]
    assert injected(unit) == {"cos", "kubeflow", "other"}
    assert unit.container.plan == plan

    unit.leave(GRAFANA)

    assert named(unit) == ["kubeflow/minio", "kubeflow/tensorboard", "other/*"]
    assert injected(unit) == {"kubeflow", "other"}


def test_every_unit_configures_its_workload_and_only_the_leader_answers(unit: Unit) -> None:
    unit.process.applications = [state_of("tensorboard")]

    unit.relate(TENSORBOARD, leader=False)

    assert named(unit) == ["kubeflow/tensorboard"]
    assert told(unit) is None


def test_each_charm_reads_what_the_workload_knows_of_its_application(unit: Unit) -> None:
    disabled = "namespace cos: istio-injection=disabled"
    nothing = {"revision": "", "root-namespace": "", "meshed": None, "meshed-reason": "not live"}
    unit.process.applications = [
        state_of("tensorboard"),
        state_of("grafana", "cos", live=False, **{"live-reason": disabled}, **nothing),
    ]

    assert unit.relate(TENSORBOARD, GRAFANA) == active(f"; not injected: cos/grafana: {disabled}")

    assert told(unit) == LIVE
    assert told(unit, GRAFANA) == Mesh(live=False, reason=disabled, meshed_reason="not live")


def claim(application: str, model: str, uuid: str = COS_ID) -> testing.Relation:
    """A request of another model, where the other side writes what it likes."""
    return asking(application, model, remote="remote-6f1d", uuid=uuid)


@pytest.mark.parametrize(
    ("relation", "refusal"),
    [
        (
            asking("minio", remote="tensorboard"),
            "tensorboard: application minio: expected its own name",
        ),
        (
            asking("tensorboard", "cos"),
            "tensorboard: model cos: expected its own model, kubeflow",
        ),
        (asking("*", remote="tensorboard"), f'tensorboard: application "*": {NAME}'),
        (claim("wallet", "victim"), f"remote-6f1d: model victim: {OWN}"),
        (claim("istio-aux", "kubeflow"), f"remote-6f1d: model kubeflow: {OWN}"),
        (claim("wallet", "nobodys"), f"remote-6f1d: model nobodys: {OWN}"),
        (claim("wallet", "elsewhere"), f"remote-6f1d: model elsewhere: {OWN}"),
        (
            claim("coredns", "kube-system", "of-the-system"),
            "remote-6f1d: model kube-system: expected one that Istio does not ignore",
        ),
    ],
    ids=[
        "another's pods", "another model's pods", "unreadable", "another's model", "our model",
        "nobody's model", "no model here", "a model that Istio ignores",
    ],
)  # fmt: skip
@pytest.mark.parametrize("leader", [True, False])
def test_a_refused_request_is_answered_with_the_reason(
    relation: testing.Relation, refusal: str, leader: bool, unit: Unit
) -> None:
    """Juju says in which model an application is."""
    unit.api.add_namespace("victim", **{ID: "of-somebody-else"})
    unit.api.add_namespace("nobodys")
    unit.api.add_namespace("kube-system", **{ID: "of-the-system"})

    assert unit.relate(relation, leader=leader) == active(f"; not granted: {refusal}")
    assert told(unit, relation) == (Mesh(live=False, reason=refusal) if leader else None)
    assert named(unit) == []
    assert injected(unit) == set()


@pytest.mark.parametrize(
    ("namespace", "model", "labels", "annotations"),
    [
        pytest.param(
            "controller-lab", "controller", {ID: "of-it", "model.juju.is/name": "controller"}, {},
            id="of a controller, whose namespace has another name",
        ),
        # Juju's labels before version 2 have no UUID.
        pytest.param("old", "old", {}, {ID: "of-it"}, id="of an older Juju"),
    ],
)  # fmt: skip
def test_a_model_is_known_by_its_id(
    namespace: str, model: str, labels: dict[str, str], annotations: dict[str, str], unit: Unit
) -> None:
    unit.api.add_namespace(namespace, **labels)
    unit.api.objects[f"/api/v1/namespaces/{namespace}"]["metadata"]["annotations"] = annotations

    unit.relate(claim("traefik", model, "of-it"))

    assert named(unit) == [f"{namespace}/traefik"]


def test_a_request_that_was_granted_stays_while_the_cluster_does_not_answer(unit: Unit) -> None:
    unit.process.applications = [state_of("grafana", "cos")]
    unit.relate(GRAFANA)
    before = told(unit, GRAFANA)
    assert before != UNKNOWN

    unit.api.broken = {"list namespaces"}
    assert isinstance(unit.run(), testing.WaitingStatus)

    assert told(unit, GRAFANA) == before
    assert named(unit) == ["cos/grafana"]


def test_nothing_is_granted_before_the_cluster_answers(unit: Unit) -> None:
    unit.api.broken = {"list namespaces"}

    unit.relate(GRAFANA)

    assert told(unit, GRAFANA) == UNKNOWN
    assert named(unit) == []
    assert injected(unit) == set()


def test_a_juju_that_does_not_say_whose_request_it_is_grants_nothing(
    unit: Unit, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(monkeypatch, "relation_model_get", DOWN)

    unit.relate(TENSORBOARD)

    assert named(unit) == []
    assert told(unit) == Mesh(live=False, reason=f"tensorboard: its model is not known: {DOWN}")


UNKNOWN = Mesh(live=False, reason="not known yet whether Istio injects")


# What a workload says that knows nothing yet.
UNKNOWING: dict[str, dict[str, Any]] = {
    "it starts": {"missing": ["the list of pods"]},
    "it has just started": {
        "injectors": [], "injects": None,
        "applications": [state_of("tensorboard", live=None, meshed=None)],
    },
    "it has not read the application's name": {"applications": []},
}  # fmt: skip


@pytest.mark.parametrize("says", UNKNOWING)
def test_nothing_is_live_before_the_first_report_and_a_restart_changes_nothing(
    says: str, unit: Unit
) -> None:
    known = dict(vars(unit.process))
    vars(unit.process).update(UNKNOWING[says])
    unit.relate(TENSORBOARD)
    assert told(unit) == UNKNOWN

    vars(unit.process).update(known)
    unit.process.applications = [state_of("tensorboard")]
    unit.run()
    vars(unit.process).update(UNKNOWING[says])
    unit.run()

    assert told(unit) == LIVE


def test_an_injector_that_cannot_be_probed_is_not_live(unit: Unit) -> None:
    why = "no unit could probe it"
    unit.process.applications = [state_of("tensorboard", live=None, **{"live-reason": why})]

    unit.relate(TENSORBOARD)

    assert told(unit) == dataclasses.replace(LIVE, live=False, reason=why)


def test_the_report_of_a_workload_that_failed_does_not_count(unit: Unit) -> None:
    unit.process.applications = [state_of("tensorboard")]
    unit.relate(TENSORBOARD)

    unit.process.running = False
    set_checks(unit, pebble.CheckStatus.DOWN)
    unit.run()

    assert told(unit) == Mesh(live=False, reason="workload: does not answer: connection refused")


@pytest.mark.parametrize(
    "broken",
    [WRITE, "patch clusterroles", "list validatingadmissionpolicies", "get serviceaccounts"],
)
@pytest.mark.parametrize("failure", ["broken", "denied"])
def test_the_relation_is_answered_whatever_fails(failure: str, broken: str, unit: Unit) -> None:
    unit.process.applications = [state_of("tensorboard")]
    unit.relate(TENSORBOARD)
    assert told(unit)

    gone = {"live": False, "live-reason": "Service istio-system/istiod has no ready endpoint"}
    unit.process.applications = [state_of("tensorboard", **gone)]
    del unit.api.objects[PATH]
    setattr(unit.api, failure, {broken})
    unit.run()

    assert told(unit) == dataclasses.replace(LIVE, live=False, reason=gone["live-reason"])
