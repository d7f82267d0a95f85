"""The option `inject-namespaces`: Istio's label comes once Istio injects, and goes with the option.

`tests/cluster/test_ownership.py` tests it with a real API server.
"""

from __future__ import annotations

import pytest

from .apiserver import ApiServer, refusal
from .conftest import Unit, active
from .test_reconcile import SERVER


@pytest.fixture
def teams(unit: Unit) -> Unit:
    """A unit beside two namespaces."""
    for name in ("team-a", "team-b"):
        unit.api.add_namespace(name)
    return unit


def labels(api: ApiServer, namespace: str) -> dict[str, str]:
    """Labels and annotations of the namespace; an annotation says who set the label."""
    metadata = api.objects[f"/api/v1/namespaces/{namespace}"]["metadata"]
    return metadata["labels"] | metadata["annotations"]


OURS = {"istio-injection": "enabled", "istio-aux.io/injection": "kubeflow/istio-aux"}


def test_the_charm_labels_the_namespaces_of_the_option_once(teams: Unit) -> None:
    assert teams.configure(inject_namespaces="team-a") == active()

    assert labels(teams.api, "team-a") == OURS
    assert labels(teams.api, "team-b") == {}

    teams.api.calls.clear()
    teams.run()
    assert "PATCH /api/v1/namespaces/team-a" not in teams.api.calls


def test_the_workload_and_its_policy_know_the_namespaces_of_the_option(teams: Unit) -> None:
    """Jobs there get a sidecar through us, so we start and quit them."""
    teams.configure(inject_namespaces="team-a")

    assert teams.files["applications"].splitlines()[1:] == ["team-a/**"]
    policy = teams.api.one("ValidatingAdmissionPolicy", "-istio-aux")
    (injected,) = [
        variable["expression"]
        for variable in policy["spec"]["variables"]
        if variable["name"] == "injected"
    ]
    assert injected == '{"team-a": ["*"]}'


@pytest.mark.parametrize("live", [False, None])
def test_the_label_waits_until_istio_injects(live: bool | None, teams: Unit) -> None:
    teams.process.injects = live
    waiting = teams.configure(inject_namespaces="team-a")
    assert labels(teams.api, "team-a") == {}
    assert waiting.message.endswith("inject-namespaces: team-a: waiting until Istio injects")

    teams.process.injects = True
    teams.run()

    assert labels(teams.api, "team-a") == OURS


def test_a_label_stays_while_the_workload_is_down(teams: Unit) -> None:
    teams.configure(inject_namespaces="team-a")

    teams.process.running = False
    teams.run()

    assert labels(teams.api, "team-a") == OURS


def test_a_follower_labels_nothing(teams: Unit) -> None:
    teams.run(teams.on.config_changed(), leader=False, config={"inject-namespaces": "team-a"})

    assert labels(teams.api, "team-a") == {}


@pytest.mark.parametrize("option", ["", "team-b"])
def test_a_namespace_that_left_the_option_loses_its_label(option: str, teams: Unit) -> None:
    teams.configure(inject_namespaces="team-a")

    teams.configure(inject_namespaces=option)

    assert labels(teams.api, "team-a") == {}
    assert labels(teams.api, "team-b") == (OURS if option else {})


def test_an_invalid_option_removes_no_label(teams: Unit) -> None:
    teams.configure(inject_namespaces="team-a")

    teams.configure(inject_namespaces="team b")

    assert labels(teams.api, "team-a") == OURS


@pytest.mark.parametrize(
    ("present", "why"),
    [
        ({"istio.io/dataplane-mode": "ambient"}, "is ambient"),
        ({"istio.io/rev": "1-28"}, "has istio.io/rev=1-28"),
        ({"istio-injection": "disabled"}, "has istio-injection=disabled"),
    ],
)
def test_a_namespace_with_another_label_for_istio_is_reported_and_left_alone(
    present: dict[str, str], why: str, unit: Unit
) -> None:
    unit.api.add_namespace("theirs", **present)

    assert unit.configure(inject_namespaces="theirs") == active(
        f"; inject-namespaces: theirs: {why}"
    )
    assert labels(unit.api, "theirs") == present


def test_a_missing_namespace_is_reported_and_not_created(teams: Unit) -> None:
    assert teams.configure(inject_namespaces="gone,team-a") == active(
        "; inject-namespaces: gone: not found"
    )
    assert "/api/v1/namespaces/gone" not in teams.api.objects
    assert labels(teams.api, "team-a") == OURS


def test_the_last_unit_removes_its_labels_and_leaves_the_namespaces(teams: Unit) -> None:
    """Also when it does not lead. Labels of another application stay."""
    theirs = {"istio-aux.io/injection": "kubeflow/another"}
    teams.api.objects["/api/v1/namespaces/team-b"]["metadata"]["annotations"] |= theirs
    teams.configure(inject_namespaces="team-a")

    teams.remove(leader=False)

    assert teams.api.kinds() == ["Namespace", "Namespace"]
    assert labels(teams.api, "team-a") == {}
    assert labels(teams.api, "team-b") == theirs
    assert "PATCH /api/v1/namespaces/team-b" not in teams.api.calls


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
