"""What the leader makes of a state of cluster, container and workload, and what it says of that.

Whatever it was, once it has passed, the next event that Pebble sends has every object in place.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
from istio_aux.model.names import SETTINGS
from ops import pebble, testing

import manifests
import workload

from .apiserver import ApiServer, endpoint, refusal
from .conftest import WELL, Copies, Unit, active

WEBHOOK, AUTHENTICATION = "MutatingWebhookConfiguration", "PeerAuthentication"
POLICIES = ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"]
BEFORE_1_30 = {"validatingadmissionpolicies", "validatingadmissionpolicybindings"}

# The objects that do not wait for the workload.
STANDING = [
    "ClusterRole",
    "ClusterRoleBinding",
    AUTHENTICATION,
    "Role",
    "RoleBinding",
    "ServiceAccount",
    *2 * POLICIES[:1],
    *2 * POLICIES[1:],
]
EVERY = sorted([*STANDING, WEBHOOK])


def but(*kinds: str) -> list[str]:
    """Every kind but these."""
    return [kind for kind in EVERY if kind not in kinds]


class Row(NamedTuple):
    """A state, an event, and what there is after it.

    Attributes:
        status: `*` in its message stands for any text.
        kinds: of the objects after the event; None: whatever there is.
        new: the unit has seen `install` only; otherwise every object is there.
        pebble: Pebble answers.
        hangs: every check of the container has failed.
        changed: fields of the object of a kind before the event; None: somebody deleted it.
        wakes: Pebble wakes the charm again.
    """

    sentence: str
    status: Any
    kinds: list[str] | None = EVERY
    new: bool = False
    api: Mapping[str, Any] = {}
    process: Mapping[str, Any] = {}
    pebble: bool = True
    hangs: bool = False
    changed: Mapping[str, Mapping[str, Any] | None] = {}
    options: Mapping[str, str] = {}
    leader: bool = True
    wakes: bool = False


SERVER = "Kubernetes API server: "
TRUST = "Trust not granted: run `juju trust istio-aux --scope=cluster` ("
FORBIDDEN = 'serviceaccounts "istio-aux-workload" is forbidden: '
PATCHES = 'User "u" cannot patch resource "serviceaccounts" in API group ""'
GRANTS = 'clusterroles "a" is forbidden: user "u" is attempting to grant RBAC permissions not'
DENIED = 'admission webhook "policy.example" denied the request'
REFRESH = "juju refresh istio-aux --resource istio-aux-image=IMAGE"
NOBODY = "waiting for a ready endpoint of Service istio-aux"
# As recorded with Istio 1.28.10 on Kubernetes 1.36.3.
AWAY = (
    'Internal error occurred: failed calling webhook "validation.istio.io": failed to call webhook:'
    ' Post "https://istiod.istio-system.svc:443/validate?timeout=10s": no endpoints available for'
    ' service "istiod"'
)
WRITE = "patch peerauthentications"
PATH = "/apis/security.istio.io/v1/namespaces/kubeflow/peerauthentications/istio-aux"
ISTIOD_AWAY = {"answers": {WRITE: refusal(500, AWAY)}}
NOT_APPLIED = f"; not applied: PeerAuthentication istio-aux: {SERVER}{AWAY}"
STUCK = {"stuck": [{"namespace": "team-a", "name": "train"}]}


def blocked(message: str) -> testing.BlockedStatus:
    return testing.BlockedStatus(message)


def waiting(message: str) -> testing.WaitingStatus:
    return testing.WaitingStatus(message)


ROWS = [
    # juju#12883: config-changed of `juju trust` may come before the rights.
    Row(
        "the leader has no trust, and may see its own model alone",
        blocked(f'{TRUST}*cannot list resource "namespaces"*'), None,
        new=True, api={"denied": {"list namespaces"}}, wakes=True,
    ),
    Row(
        "a unit that does not lead has no trust",
        blocked(f'{TRUST}*cannot create resource "tokenreviews"*'), None,
        leader=False, api={"denied": {"create tokenreviews"}}, wakes=True,
    ),
    Row(
        "of two problems the option is the first to solve", blocked("log-level: *"), None,
        new=True, api={"denied": {"list namespaces"}}, options={"log-level": "loud"}, wakes=True,
    ),
    Row(
        "the API server forbids to write", blocked(f"{TRUST}*{PATCHES})"), None,
        new=True, api={"failures": [refusal(403, FORBIDDEN + PATCHES)]}, wakes=True,
    ),
    Row(
        "the API server forbids to grant", blocked(f"{TRUST}*{GRANTS})"), None,
        new=True, api={"failures": [refusal(403, GRANTS)]}, wakes=True,
    ),
    Row(
        "a webhook denies a write, which no trust changes", waiting(f"*{SERVER}{DENIED}"), None,
        new=True, api={"failures": [refusal(403, DENIED)]}, wakes=True,
    ),
    *(
        Row(
            f"a proxy on the way answers {code} with its page",
            waiting(f"*not an answer of the Kubernetes API server: Client error '{code} *"), None,
            new=True, api={"failures": [httpx2.Response(code, text="<html>Sign in</html>")]},
            wakes=True,
        )
        for code in (401, 403)
    ),
    Row(
        "the namespace cannot be read, whose end takes what is cluster-wide with it",
        waiting(f"Namespace: {SERVER}etcd is slow"), [AUTHENTICATION], new=True,
        api={"broken": {"list namespaces"}}, wakes=True,
    ),
    Row(
        "Pebble does not answer yet", waiting("waiting for Pebble in container istio-aux"),
        STANDING, new=True, pebble=False,
    ),
    Row(
        "the workload starts", waiting("workload: the list of pods; the list of namespaces"),
        STANDING, new=True, process={"missing": ["the list of pods", "the list of namespaces"]},
        wakes=True,
    ),
    Row(
        "the workload is not ready, and says no reason", waiting("workload: not ready"),
        process={"missing": [""]}, wakes=True,
    ),
    Row(
        "no unit is ready", waiting(NOBODY), STANDING, new=True, wakes=True,
        api={"endpoints": [endpoint("istio-aux-0", "10.1.0.10", ready=False)]},
    ),
    Row("no unit is there", waiting(NOBODY), STANDING, new=True, wakes=True, api={"endpoints": []}),
    Row(
        # A cluster of two families has an EndpointSlice for each.
        "of two units one is ready", active(), new=True,
        api={"endpoints": [
            endpoint("istio-aux-0", "10.1.0.10", ready=None),
            endpoint("istio-aux-1", "10.1.0.11", ready=False),
        ]},
    ),
    Row(
        # Juju opens it after the hook; before that the Service has a port of Juju's.
        "Juju has not opened the port", waiting("waiting for port 8443 of Service istio-aux"),
        STANDING, new=True, api={"port": 65535}, wakes=True,
    ),
    Row(
        "a unit that does not lead waits for the leader's objects",
        waiting("*ServiceAccount istio-aux-workload*"), [],
        leader=False, api={"objects": {}}, wakes=True,
    ),
    Row(
        "the workload is of a revision that answers otherwise",
        waiting(f"workload: answers as another revision does: Expected `array`*: {REFRESH}"),
        process={"more": {"selected-namespaces": 3}}, wakes=True,
    ),
    Row("no unit is ready, but the webhook exists", active(), api={"endpoints": []}),
    Row(
        "the workload restarts", waiting("workload has started: it answers within seconds"),
        process={"running": False}, wakes=True,
    ),
    Row(
        "the workload hangs, and the recovery of its check is an event",
        waiting("workload has started: it answers within seconds"),
        process={"running": False}, hangs=True,
    ),
    Row(
        "the Service does not lead to this unit, and somebody deleted the webhook", active(),
        STANDING, hangs=True, changed={WEBHOOK: None},
    ),
    Row(
        "a Kubernetes before 1.30 has no policies", active(), but(*POLICIES),
        new=True, api={"unknown": BEFORE_1_30},
    ),
    Row(
        "Istio is not installed", active(), but(AUTHENTICATION),
        new=True, api={"unknown": {"peerauthentications", "authorizationpolicies"}},
    ),
    Row(
        "Istio is gone with its kinds", active(),
        api={"unknown": {"peerauthentications", "authorizationpolicies"}},
    ),
    Row(
        "istiod was never there to accept an object", active(NOT_APPLIED), but(AUTHENTICATION),
        new=True, api=ISTIOD_AWAY,
    ),
    Row(
        "istiod is away, and somebody deleted an object",
        active("; stuck: team-a/train" + NOT_APPLIED), but(AUTHENTICATION),
        api=ISTIOD_AWAY, process=STUCK, changed={AUTHENTICATION: None},
    ),
    Row("istiod is away, and every object is as it should be", active(), api=ISTIOD_AWAY),
    Row(
        # For a second or so after its CRD is created.
        "the API server cannot list a kind yet", active("; stuck: team-a/train"), process=STUCK,
        api={"answers": {"list peerauthentications": refusal(429, "storage is (re)initializing")}},
    ),
    Row(
        "the API server starts", waiting(f"Namespace: {SERVER}storage is (re)initializing"),
        api={"failures": [refusal(429, "storage is (re)initializing")]}, wakes=True,
    ),
    Row(
        "a proxy has no API server", waiting(f"Namespace: {SERVER}*"),
        api={"failures": [httpx2.Response(503, text="no healthy upstream")]}, wakes=True,
    ),
    Row(
        "no API server is reached", waiting(f"Namespace: {SERVER}connection refused"),
        api={"failures": [httpx2.ConnectError("connection refused")]}, wakes=True,
    ),
    *(
        Row(f"somebody {how} {kind}", active(), changed={kind: fields})
        for kind, how, fields in (
            ("ClusterRole", "deleted", None),
            ("ClusterRole", "emptied", {"rules": []}),
            (WEBHOOK, "deleted", None),
            (WEBHOOK, "emptied", {"webhooks": []}),
            (AUTHENTICATION, "emptied", {"spec": {"mtls": {"mode": "STRICT"}}}),
            (AUTHENTICATION, "took the labels of", {"metadata": {"name": "istio-aux", "uid": "1"}}),
        )
    ),
]  # fmt: skip


def spoil(api: ApiServer, kind: str, fields: Mapping[str, Any] | None) -> None:
    """Have somebody change an object, or delete it."""
    path = next(path for path, each in api.objects.items() if each["kind"] == kind)
    present = api.objects.pop(path)
    if fields is not None:
        api.objects[path] = {**present, **fields}


def set_checks(unit: Unit, status: pebble.CheckStatus) -> None:
    """Have every check of the container up, or down."""
    checks = {
        dataclasses.replace(
            check, status=status, failures=(status is pebble.CheckStatus.DOWN) * check.threshold
        )
        for check in unit.container.check_infos
    }
    unit.change_container(check_infos=checks)


def woken(unit: Unit) -> object:
    """The event of the notice that Pebble's service `wake` sends."""
    notice = testing.Notice(workload.WAKE_KEY)
    unit.change_container(notices=[notice])
    return unit.on.pebble_custom_notice(unit.container, notice)


def without_ids(objects: Mapping[str, Any]) -> dict[str, Any]:
    """The objects without the UIDs that the API server gives."""
    return {path: {**it, "metadata": it["metadata"] | {"uid": ""}} for path, it in objects.items()}


@pytest.fixture(scope="module")
def goal(installed: tuple[Copies, Copies], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The objects that there are in the end."""
    with installed[1](tmp_path_factory.mktemp("goal")) as unit:
        return without_ids(unit.api.objects)


@pytest.mark.parametrize("row", [pytest.param(row, id=row.sentence) for row in ROWS])
def test_an_event_says_what_it_found_and_the_next_one_has_every_object_in_place(
    row: Row, goal: dict[str, Any], installed: tuple[Copies, Copies], tmp_path: Path
) -> None:
    with installed[not row.new](tmp_path) as unit:
        well = {name: getattr(unit.api, name) for name in row.api}
        works = {name: getattr(unit.process, name) for name in row.process}
        vars(unit.api).update(row.api)
        vars(unit.process).update(row.process)
        unit.change_container(can_connect=row.pebble)
        if row.hangs:
            set_checks(unit, pebble.CheckStatus.DOWN)
        for kind, fields in row.changed.items():
            spoil(unit.api, kind, fields)

        status = unit.run(unit.on.config_changed(), config=row.options, leader=row.leader)

        assert (type(status), unit.wakes) == (type(row.status), row.wakes)
        assert fnmatchcase(status.message, row.status.message), status
        assert row.kinds is None or unit.api.kinds() == row.kinds

        vars(unit.api).update(well)
        vars(unit.process).update(works)
        unit.change_container(can_connect=True)
        set_checks(unit, pebble.CheckStatus.UP)
        assert unit.run(woken(unit), config={}, leader=True) == active()
        assert without_ids(unit.api.objects) == goal
        assert not unit.wakes


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


@pytest.mark.parametrize("broken", ["patch clusterroles", "list validatingadmissionpolicies"])
def test_a_unit_that_restarts_starts_its_workload_whatever_the_leader_cannot_apply(
    broken: str, unit: Unit
) -> None:
    unit.api.broken = {broken}

    status = unit.replace()

    assert "config.yaml" in unit.files
    assert isinstance(status, testing.WaitingStatus)
    assert "etcd is slow" in status.message


OTHERS = {
    "application prod-istio-aux in kubeflow": {"istio-aux.io/application": "prod-istio-aux"},
    "Helm release istio-aux in kubeflow": {"app.kubernetes.io/managed-by": "Helm"},
}


@pytest.mark.parametrize("kind", ["MutatingWebhookConfiguration", "ValidatingAdmissionPolicy"])
@pytest.mark.parametrize("other", OTHERS)
def test_what_another_installation_has_is_never_overwritten(
    other: str, kind: str, unit: Unit
) -> None:
    """It is blocked with both names, until one of them is removed."""
    taken = unit.api.one(kind, ".istio-aux")
    before = copy.deepcopy(taken["metadata"]["labels"])
    taken["metadata"]["labels"] |= OTHERS[other]
    stored = copy.deepcopy(unit.api.objects)

    assert unit.run() == blocked(
        f"istio-aux-kubeflow.istio-aux belongs to the {other}: remove that, or this application"
        " istio-aux in kubeflow"
    )
    assert unit.api.objects == stored
    taken["metadata"]["labels"] = before
    assert unit.run() == active()


def test_two_applications_whose_names_join_to_the_same_have_objects_of_their_own() -> None:
    """prod-istio-aux in kubeflow, and istio-aux in kubeflow-prod."""
    pairs = ("prod-istio-aux", "kubeflow"), ("istio-aux", "kubeflow-prod")
    named = [
        {
            f"{each.kind} {each.metadata.name}"
            for each in manifests.render(manifests.Values(app, model))
            if each.metadata and not each.metadata.namespace
        }
        for app, model in pairs
    ]
    assert len(named[0]) == len(named[1]) == 7
    assert named[0].isdisjoint(named[1])


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        ({"namespace-selectors": "team"}, "istio-aux-other.one selects team-a, too"),
        ({}, "istio-aux-other.one selects team-a, team-b, too"),
        ({"namespace-selectors": "team=c"}, ""),
        ({"namespace-selectors": "a in"}, ""),
        ({"pod-selector": "a"}, "istio-aux-other.one selects team-a, team-b, too"),
        (None, ""),
    ],
)
def test_a_second_installation_that_selects_the_same_namespaces_is_named(
    theirs: Any, said: str, unit: Unit
) -> None:
    """Both would tell the same proxies to exit."""
    for name, labels in (("team-a", {"team": "a"}), ("team-b", {})):
        unit.api.add_namespace(name, **{"io.datastrophic/istio-aux": "enabled"}, **labels)
    (path,) = (path for path in unit.api.objects if "mutatingwebhookconfigurations" in path)
    about = {
        "uid": "o",
        "name": "istio-aux-other.one",
        "annotations": {SETTINGS: json.dumps(theirs)},
    }
    unit.api.objects[f"{path.rpartition('/')[0]}/istio-aux-other.one"] = {
        "kind": "MutatingWebhookConfiguration", "metadata": about
    }  # fmt: skip
    assert unit.run() == testing.ActiveStatus(
        WELL.replace("; ", f"; {said}; ", 1) if said else WELL
    )


def test_a_quiet_event_of_the_leader_is_few_requests(unit: Unit) -> None:
    unit.api.calls.clear()
    unit.run()
    assert len(unit.api.calls) <= 25
