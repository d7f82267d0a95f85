"""The option `inject-namespaces`: Istio's label comes once Istio injects, and goes with the option.

`tests/cluster/test_ownership.py` tests it with a real API server.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import pytest

from .apiserver import ApiServer, refusal
from .conftest import WELL, Unit, active
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
WAITS = "waiting until Istio injects"


def test_the_workload_and_its_policy_know_the_namespaces_of_the_option(teams: Unit) -> None:
    """Jobs there get a sidecar through us, so we start and quit them."""
    teams.configure(inject_namespaces="team-a")

    assert teams.files["applications"].splitlines()[1:] == ["team-a/**"]
    policy = teams.api.one("ValidatingAdmissionPolicy", ".istio-aux")
    (injected,) = [
        variable["expression"]
        for variable in policy["spec"]["variables"]
        if variable["name"] == "injected"
    ]
    assert injected == '{"team-a": ["*"]}'


class Row(NamedTuple):
    """What the option was, and is, and which labels two namespaces have then.

    Attributes:
        theirs: labels of namespace team-a that somebody else has set.
        process: what the workload says meanwhile.
        status: `*` stands for any text.
    """

    sentence: str
    before: str
    option: str
    status: str = WELL
    team_a: Mapping[str, str] = {}
    team_b: Mapping[str, str] = {}
    theirs: Mapping[str, str] = {}
    process: Mapping[str, Any] = {}
    leader: bool = True


ROWS = [
    Row("that is named", "", "team-a", team_a=OURS),
    Row("that stays in the option", "team-a", "team-a,team-b", team_a=OURS, team_b=OURS),
    Row("that is named no more", "team-a", ""),
    Row("that another one replaced", "team-a", "team-b", team_b=OURS),
    Row("while the option is invalid", "team-a", "team b", "inject-namespaces: *", OURS),
    Row("beside one that is not there", "", "gone,team-a",
        f"{WELL}; inject-namespaces: gone: not found", OURS),
    Row("while Istio does not inject", "", "team-a", f"*team-a: {WAITS}",
        process={"injects": False}),
    Row("while it is not known whether Istio injects", "", "team-a", f"*team-a: {WAITS}",
        process={"injects": None}),
    Row("while the workload is down", "team-a", "team-a", "workload *", OURS,
        process={"running": False}),
    Row("by a unit that leads", "", "team-a", leader=False),
    *(
        Row(f"that {why}", "", "team-a", f"{WELL}; inject-namespaces: team-a: {why}", theirs, {},
            theirs)
        for theirs, why in (
            ({"istio.io/dataplane-mode": "ambient"}, "is ambient"),
            ({"istio.io/rev": "1-28"}, "has istio.io/rev=1-28"),
            ({"istio-injection": "disabled"}, "has istio-injection=disabled"),
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize("row", [pytest.param(row, id=row.sentence) for row in ROWS])
def test_istios_label_is_set_on_a_namespace(row: Row, teams: Unit) -> None:
    """And what keeps one from it is in the status; no other label changes, and none is created."""
    teams.api.add_namespace("team-a", **row.theirs)
    teams.configure(inject_namespaces=row.before)
    vars(teams.process).update(row.process)

    status = teams.run(
        teams.on.config_changed(), config={"inject-namespaces": row.option}, leader=row.leader
    )

    assert fnmatchcase(status.message, row.status), status
    assert labels(teams.api, "team-a") == row.team_a
    assert labels(teams.api, "team-b") == row.team_b
    assert "/api/v1/namespaces/gone" not in teams.api.objects


def test_a_label_that_is_there_is_not_set_again(teams: Unit) -> None:
    teams.configure(inject_namespaces="team-a")
    teams.api.calls.clear()

    teams.run()

    assert "PATCH /api/v1/namespaces/team-a" not in teams.api.calls


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
    code: int, teams: Unit
) -> None:
    teams.api.add_namespace("team-c")
    teams.configure(inject_namespaces="team-b")
    failed = 'failed calling webhook "rules.example"'
    for name in ("team-a", "team-b"):
        teams.api.answers[f"patch namespaces {name}"] = refusal(code, failed)

    failed = SERVER + failed
    assert teams.configure(inject_namespaces="team-a,team-c") == active(
        f"; inject-namespaces: team-a: {failed}, team-b: label not removed: {failed}"
    )
    assert labels(teams.api, "team-c") == OURS
