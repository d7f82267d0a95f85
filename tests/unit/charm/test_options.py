"""Options: what they name, what an invalid one is told, and what there is when they have changed.

The option `inject-namespaces`: Istio's label comes once Istio injects, and goes with the option.
`tests/cluster/test_ownership.py` tests it with a real API server.

Whatever the options were, their present values alone decide what there is: Acto's question. From
each set of options to each other one, also over a bad value, and while the unit is replaced:
objects, settings and Pebble's plan are those of a new application that never had other options.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from random import Random
from typing import Any, NamedTuple

import pytest
from charmlibs.interfaces.istio_sidecar import SidecarRequest
from istio_aux.model.names import IGNORED
from lab.nightly import NIGHT, sampled
from ops import testing

import workload
from config import (
    EXPECTED_APPLICATIONS,
    Applications,
    as_file,
    parse_applications,
    parse_namespaces,
)

from .conftest import WELL, ApiServer, Copies, Unit, active, refusal
from .test_reconcile import SERVER


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  ", []),
        (
            "tensorboard, cos/traefik,cos/loki,cos/catalogue,cos/grafana,cos/alertmanager",
            [
                Applications("cos", ("alertmanager", "catalogue", "grafana", "loki", "traefik")),
                Applications("kubeflow", ("tensorboard",)),
            ],
        ),
        ("a,kubeflow/a,a", [Applications("kubeflow", ("a",))]),
        ("a,*,cos/grafana", [Applications("cos", ("grafana",)), Applications("kubeflow", ("*",))]),
    ],
)
def test_applications_are_of_the_charms_own_model_unless_another_is_named(
    text: str, expected: list[Applications]
) -> None:
    assert parse_applications(text, "kubeflow") == tuple(expected)


@pytest.mark.parametrize(
    ("parse", "entry", "expected"),
    [
        *(
            (partial(parse_applications, model="kubeflow"), entry, EXPECTED_APPLICATIONS)
            for entry in (
                "A", "a b", "a_b", "-a", "a-", "/a", "a/", "/", "*/a", "*/*", "**", "a*", "a/b/c",
                "a.b", "a" * 64, "é",
            )
        ),
        *(
            (parse_namespaces, entry, "names of namespaces separated by commas")
            for entry in ("A", "*", "a/b", "a.b", "a=b", "a" * 64, "")
        ),
    ],
)  # fmt: skip
def test_a_bad_entry_is_named_with_what_is_allowed(
    parse: Callable[[str], object], entry: str, expected: str
) -> None:
    said = f"{json.dumps(entry)}: expected {expected}"

    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        parse(f"good,{entry}")


@pytest.mark.parametrize(
    ("text", "lines"),
    [("", []), ("b,a,cos/*", ["cos/*", "kubeflow/a", "kubeflow/b"])],
)
def test_the_workloads_file_has_a_line_for_each_application_and_is_never_empty(
    text: str, lines: list[str]
) -> None:
    comment, *rest = as_file(parse_applications(text, "kubeflow")).splitlines()

    assert comment.startswith("#")
    assert rest == lines


@pytest.mark.parametrize("name", ["a", "a" * 63, "a" * 64, "A", "a-", "0", "a.b"])
def test_option_and_relation_accept_the_same_names(name: str) -> None:
    asked = SidecarRequest.from_databag({"application": name, "model": "kubeflow"})
    try:
        named = parse_applications(name, "kubeflow")
    except ValueError:
        named = ()

    assert ((Applications("kubeflow", (name,)),) == named) == (asked is not None)


def test_namespaces_are_sorted_and_each_named_once() -> None:
    assert parse_namespaces("team-b, team-a,team-b") == ("team-a", "team-b")


@pytest.mark.parametrize("name", IGNORED)
def test_models_and_namespaces_that_istio_ignores_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f'^"{name}": expected models that Istio does not ignore$'):
        parse_applications(f"good,{name}/a", "kubeflow")
    with pytest.raises(ValueError, match=f'^"{name}": expected namespaces that Istio does not'):
        parse_namespaces(f"team-a,{name}")


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


Options = dict[str, str | int]

NAMESPACES = ("team-a", "team-b")
# Some values of each option, all but the first with consequences of their own.
VALUES: dict[str, tuple[str | int, ...]] = {
    "namespace-selectors": ("team=a", "team=a; team in (b,c),!d", ""),
    "pod-selector": ("", "app=job", "app in (a,b),!c"),
    "inject-selector": ("", "app=step"),
    "start-mode": ("auto", "native", "hold", "none"),
    "peers": ("mesh", "direct"),
    "sidecars": ("", "vault-agent=native,otel=9000/stop", "log=ignore", "none"),
    "quit": ("enabled", "dry-run", "disabled"),
    "quit-grace": (0, 30),
    "dead-proxy": ("report", "delete"),
    "race-policy": ("report", "restart", "none"),
    "inject-applications": ("", "tensorboard", "*,cos/grafana"),
    "inject-namespaces": ("", "team-a", "team-a,team-b"),
    "log-level": ("info", "debug"),
}
SETS: dict[str, Options] = {
    "defaults": {},
    "all rights": {
        "race-policy": "restart", "dead-proxy": "delete", "quit-grace": 30, "peers": "direct",
        "sidecars": "vault-agent=native,otel=9000/stop", "namespace-selectors": "team=a; team=b",
    },
    "no rights": {"quit": "disabled", "race-policy": "none", "start-mode": "none"},
    "injected": {
        "inject-applications": "*,cos/grafana", "inject-namespaces": "team-a,team-b",
        "inject-selector": "app=step", "race-policy": "restart",
    },
    "narrow": {"pod-selector": "app in (a,b),!c", "quit": "dry-run", "inject-namespaces": "team-a"},
}  # fmt: skip
BAD: Options = {"quit": "perhaps", "namespace-selectors": "=,="}
WAYS = ("at once", "over a bad value", "replaced over a bad value")
_SECRET = ("token", "tls/")


def made(unit: Unit) -> dict[str, Any]:
    """What the charm has made: in the cluster, in its container, and for Juju."""
    objects = {
        path: {**each, "metadata": {k: v for k, v in each["metadata"].items() if k != "uid"}}
        for path, each in unit.api.objects.items()
    }
    plan = unit.container.plan.to_dict()
    plan.get("services", {}).pop(workload.WAKE, None)  # It stays, and runs only while it `wakes`.
    return {
        **objects,
        **{name: text for name, text in unit.files.items() if not name.startswith(_SECRET)},
        "plan": plan,
        "wakes": unit.wakes,
        "status": unit.state.unit_status,
        "ports": unit.state.opened_ports,
        "noted": unit.noted,
    }


def configured(unit: Unit, options: Options) -> dict[str, Any]:
    """What there is once the options are set, and the next event has come."""
    unit.run(unit.on.config_changed(), config=dict(options))
    unit.run()
    return made(unit)


def changed(unit: Unit, way: str, options: Options) -> dict[str, Any]:
    """The same, over a bad value, with which the unit perhaps starts anew."""
    if way != "at once":
        assert isinstance(unit.run(unit.on.config_changed(), config={**BAD}), testing.BlockedStatus)
        if way.startswith("replaced"):
            unit.replace()
    return configured(unit, options)


def differences(found: dict[str, Any], fresh: dict[str, Any]) -> list[str]:
    return sorted(key for key in {*found, *fresh} if found.get(key) != fresh.get(key))


class Application:
    """Makes new applications, and remembers what each set of options makes of one."""

    def __init__(self, new: Copies, folders: pytest.TempPathFactory) -> None:
        self._new, self._folders = new, folders
        self._fresh = dict[str, dict[str, Any]]()

    @contextmanager
    def begin(self) -> Iterator[Unit]:
        """Yield the unit of a new application, in a cluster with namespaces."""
        with self._new(self._folders.mktemp("application")) as unit:
            for name in NAMESPACES:
                unit.api.add_namespace(name)
            yield unit

    def walk(self, start: Options, steps: list[tuple[str, Options]]) -> Iterator[str]:
        """Yield each step after which something is otherwise than in a new application."""
        before = start
        with self.begin() as unit:
            configured(unit, start)
            for way, options in steps:
                if wrong := differences(changed(unit, way, options), self.fresh(options)):
                    yield f"from {before} to {options}, {way}: {', '.join(wrong)}"
                before = options

    def fresh(self, options: Options) -> dict[str, Any]:
        key = repr(sorted(options.items()))
        if key not in self._fresh:
            with self.begin() as unit:
                self._fresh[key] = configured(unit, options)
        return self._fresh[key]


@pytest.fixture
def application(
    installed: tuple[Copies, Copies], tmp_path_factory: pytest.TempPathFactory
) -> Application:
    return Application(installed[0], tmp_path_factory)


def every_pair() -> list[str]:
    """A walk that goes once from each set to each other."""
    names, walk = [*SETS], list[str]()
    for low, first in enumerate(names):
        for second in names[low + 1 :]:
            walk += [first, second]
        walk.append(first)
    return walk


def test_every_way_between_option_sets_ends_as_a_new_application_begins(
    application: Application,
) -> None:
    walk = every_pair()
    steps = [(WAYS[number % 3], SETS[name]) for number, name in enumerate(walk[1:])]
    assert [*application.walk(SETS[walk[0]], steps)] == []


@pytest.mark.nightly("five sets of options")
def test_no_walk_of_this_night_ends_otherwise_than_a_new_application(
    application: Application,
) -> None:
    dice = Random(f"options {NIGHT}")
    sets = [
        {name: dice.choice(values) for name, values in VALUES.items() if dice.random() < 0.5}
        for _ in range(15)
    ]
    steps = [(dice.choice(WAYS), dice.choice(sets)) for _ in range(300)]
    again = f"NIGHTLY={NIGHT} tox -e nightly -- tests/unit/charm/test_options.py"
    assert sampled(again, application.walk({}, steps)) == []
