"""Objects that webhooks of others may refuse are applied last, and a refusal stops nothing else.

Istio's validator of its own kinds has `failurePolicy: Fail` once istiod has been up: while istiod
is away, the API server refuses every write of a PeerAuthentication.
"""

from __future__ import annotations

from typing import Any

import pytest
from charmlibs.interfaces.istio_sidecar import Mesh
from ops import testing

from .apiserver import refusal
from .conftest import Unit, active
from .test_injection_labels import OURS, labels
from .test_reconcile import STANDING
from .test_sidecar_relation import TENSORBOARD, state_of

# As recorded with Istio 1.28.10 on Kubernetes 1.36.3.
SERVER = "Kubernetes API server: "
AWAY = (
    'Internal error occurred: failed calling webhook "validation.istio.io": failed to call webhook:'
    ' Post "https://istiod.istio-system.svc:443/validate?timeout=10s": no endpoints available for'
    ' service "istiod"'
)
WRITE = "patch peerauthentications"
PATH = "/apis/security.istio.io/v1/namespaces/kubeflow/peerauthentications/istio-aux"


@pytest.fixture
def away(unit: Unit) -> Unit:
    """A unit whose istiod is away, without its PeerAuthentication."""
    del unit.api.objects[PATH]
    unit.api.answers[WRITE] = refusal(500, AWAY)
    return unit


def test_every_other_object_is_created_while_istiod_is_away(new_unit: Unit) -> None:
    new_unit.api.answers[WRITE] = refusal(500, AWAY)

    new_unit.configure()

    expected = [*STANDING, "MutatingWebhookConfiguration"]
    expected.remove("PeerAuthentication")
    assert new_unit.api.kinds() == sorted(expected)


def test_a_kind_that_the_api_server_cannot_list_yet_hides_nothing(unit: Unit) -> None:
    """For a second or so after a CRD is created, its objects cannot be listed."""
    starting = refusal(429, "storage is (re)initializing")
    unit.api.answers["list peerauthentications"] = starting
    unit.process.stuck = [{"namespace": "team-a", "name": "train"}]

    assert unit.run() == active("; stuck: team-a/train")


def test_the_status_names_what_is_not_applied_until_istiod_is_back(away: Unit) -> None:
    away.process.stuck = [{"namespace": "team-a", "name": "train"}]

    assert away.run() == active(
        f"; stuck: team-a/train; not applied: PeerAuthentication istio-aux: {SERVER}{AWAY}"
    )
    assert PATH not in away.api.objects
    # A hung istiod costs an event three seconds at most.
    assert away.api.patience[f"PATCH {PATH}"] == 3.0

    away.api.answers, away.process.stuck = {}, []
    assert away.run() == active()
    assert PATH in away.api.objects


@pytest.mark.parametrize(
    "broken",
    [WRITE, "patch clusterroles", "list validatingadmissionpolicies", "get serviceaccounts"],
)
@pytest.mark.parametrize("failure", ["broken", "denied"])
def test_the_relation_is_answered_whatever_fails(failure: str, broken: str, unit: Unit) -> None:
    def told() -> Mesh:
        mesh = Mesh.from_databag(unit.state.get_relation(TENSORBOARD.id).local_app_data)
        assert mesh
        return mesh

    unit.process.applications = [state_of("tensorboard")]
    unit.relate(TENSORBOARD)
    assert told().live

    gone = {"live": False, "live-reason": "Service istio-system/istiod has no ready endpoint"}
    unit.process.applications = [state_of("tensorboard", **gone)]
    del unit.api.objects[PATH]
    setattr(unit.api, failure, {broken})
    unit.run()

    assert (told().live, told().reason) == (False, gone["live-reason"])


@pytest.mark.parametrize("broken", ["patch clusterroles", "list validatingadmissionpolicies"])
def test_a_unit_that_restarts_starts_its_workload_whatever_the_leader_cannot_apply(
    broken: str, unit: Unit
) -> None:
    unit.api.broken = {broken}

    status = unit.replace()

    assert "config.yaml" in unit.files
    assert isinstance(status, testing.WaitingStatus)
    assert "etcd is slow" in status.message


def test_an_object_that_is_as_it_should_be_asks_no_validator(unit: Unit) -> None:
    """An istiod that is away would refuse it in each event, and one that hangs takes 3 s."""
    unit.api.answers[WRITE] = refusal(500, AWAY)

    assert unit.run() == active()


@pytest.mark.parametrize(
    "changed",
    [{"spec": {"mtls": {"mode": "STRICT"}}}, {"metadata": {"name": "istio-aux", "uid": "uid-1"}}],
    ids=["another spec", "no labels"],
)
def test_an_object_that_somebody_changed_is_applied_again(
    changed: dict[str, Any], unit: Unit
) -> None:
    wanted = unit.api.objects[PATH]
    unit.api.objects[PATH] = {**wanted, **changed}

    unit.run()

    assert unit.api.objects[PATH]["spec"] == wanted["spec"]
    assert unit.api.objects[PATH]["metadata"]["labels"] == wanted["metadata"]["labels"]


@pytest.mark.parametrize("code", [400, 403, 500])
def test_a_namespace_that_a_webhook_refuses_stops_neither_the_others_nor_the_status(
    code: int, unit: Unit
) -> None:
    for name in ("team-a", "team-b", "team-c"):
        unit.api.add_namespace(name)
    unit.configure(inject_namespaces="team-b")
    failed = 'failed calling webhook "rules.example"'
    for name in ("team-a", "team-b"):
        unit.api.answers[f"patch namespaces {name}"] = refusal(code, failed)

    failed = SERVER + failed
    assert unit.configure(inject_namespaces="team-a,team-c") == active(
        f"; inject-namespaces: team-a: {failed}, team-b: label not removed: {failed}"
    )
    assert labels(unit.api, "team-c") == OURS


MESH = testing.Relation(
    "service-mesh",
    remote_app_name="istio-beacon-k8s",
    remote_app_data={"labels": '{"istio.io/dataplane-mode": "ambient"}', "mesh_type": '"istio"'},
)
SAID = "; no pod of the selected namespaces has a sidecar"


def policies(unit: Unit) -> list[dict[str, Any]]:
    return [o for o in unit.api.objects.values() if o["kind"] == "AuthorizationPolicy"]


def test_an_ambient_mesh_lets_everybody_reach_both_ports_of_the_units_and_no_other(
    unit: Unit,
) -> None:
    """notebooks#652: the API server is in no mesh, so no identity of its own can be named."""
    unit.relate(MESH)

    (policy,) = policies(unit)
    assert policy["metadata"]["namespace"] == "kubeflow"
    assert policy["spec"] == {
        "selector": {"matchLabels": {"app.kubernetes.io/name": "istio-aux"}},
        "action": "ALLOW",
        "rules": [{"to": [{"operation": {"ports": ["8443", "8080"]}}]}],
    }


def test_a_cluster_without_istio_needs_no_policy(unit: Unit) -> None:
    unit.api.unknown = {"peerauthentications", "authorizationpolicies"}

    assert unit.relate(MESH) == active(SAID)
