"""What the leader makes of a state of cluster, container and workload, and what it says of that.

Whatever it was, once it has passed, the next event that Pebble sends has every object in place.

What is no answer of an API server or of Pebble fails no hook (decision 0006). A proxy's page, half
a body: such answers come while a load balancer, a proxy or the API server itself starts or stops.
And a Pebble hangs, closes or answers nonsense, at any request.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from fnmatch import fnmatchcase
from functools import partial
from http.client import IncompleteRead, RemoteDisconnected
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import httpx2
import istio_aux
import pytest
from istio_aux.model.names import SETTINGS
from istio_aux.model.resources import Requests
from lab.nightly import NIGHTLY
from lightkube.resources.core_v1 import Namespace
from ops import pebble, testing
from scenario import mocking
from unit.apiserver import kubeconfig
from unit.rules import pods

import cluster
import manifests
import workload

from .conftest import SINCE, WELL, ApiServer, Copies, Unit, active, endpoint, injector, refusal
from .test_relations import URL, loki

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


blocked, waiting = testing.BlockedStatus, testing.WaitingStatus

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


LAST_GOOD = "last-good-options"
RUNS = "; the last good configuration runs"
OURS = "io.datastrophic/istio-aux=enabled"
FORMS = "KEY, !KEY, KEY=VALUE, KEY!=VALUE, KEY in (VALUES) or KEY notin (VALUES)"


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("quit-grace", -1, "quit-grace: -1: expected seconds, as a number of 0 or more"),
        (
            "sidecars", "daprd=kill",
            'sidecars: "daprd=kill": expected native, ignore, quit or PORT/PATH after =',
        ),
        ("pod-selector", "=", f'pod-selector: "=": expected {FORMS}, found "="'),
        (
            "inject-namespaces",
            "kube-system",
            'inject-namespaces: "kube-system": expected namespaces that Istio does not ignore',
        ),
    ],
)  # fmt: skip
def test_a_bad_option_blocks_and_names_itself_its_value_and_what_is_allowed(
    option: str, value: str | int, message: str, unit: Unit
) -> None:
    assert unit.configure(**{option: value}) == testing.BlockedStatus(message + RUNS)


def note(unit: Unit, **options: Any) -> None:
    """Have noted other options as the last good ones, as another revision did."""
    changed = {name.replace("_", "-"): value for name, value in options.items()}
    unit.note({LAST_GOOD: json.dumps(json.loads(unit.noted[LAST_GOOD]) | changed)})


@pytest.mark.parametrize("leader", [True, False], ids=["leader", "follower"])
def test_a_new_pod_runs_the_last_good_configuration(leader: bool, unit: Unit) -> None:
    unit.configure(race_policy="restart", pod_selector="team")
    files, objects = unit.files, dict(unit.api.objects)

    unit.replace(config={"quit": "of", "race-policy": "none"}, leader=leader)

    assert unit.files.keys() == files.keys()
    assert unit.files["config.yaml"] == files["config.yaml"]
    assert unit.container.service_statuses[workload.SERVICE] is pebble.ServiceStatus.ACTIVE
    assert unit.api.objects == objects
    assert unit.run() == testing.BlockedStatus(
        'quit: "of": expected enabled, dry-run or disabled' + RUNS
    )


@pytest.mark.parametrize(
    ("noted", "runs"),
    [
        ({"start_mode": "turbo"}, {"start-mode": "auto"}),
        ({"quit_via": "exec", "fast": True}, {}),
        ({"sidecars": "a=80/x,a=80/y"}, {"sidecars": ""}),
        ({"quit": "turbo"}, {"quit": "disabled"}),
        ({"quit_grace": -1}, {"quit-grace": 0}),
    ],
    ids=[
        "an unknown value",
        "options that are gone",
        "rules that contradict each other",
        "an unknown word for quits",
        "an unknown number",
    ],
)
def test_a_refresh_that_no_longer_knows_what_is_set_runs_the_last_good_configuration(
    noted: dict[str, Any], runs: dict[str, str], unit: Unit
) -> None:
    unit.configure(race_policy="restart")
    note(unit, **noted)
    before = unit.settings

    unit.replace(unit.on.upgrade_charm(), config={"start-mode": "turbo"})

    assert isinstance(unit.state.unit_status, testing.BlockedStatus)
    assert unit.settings == before | runs


@pytest.mark.parametrize(
    "noted",
    [
        {"namespace_selectors": "="},
        {"pod_selector": "="},
        {"inject_selector": "="},
        {"inject_applications": "A"},
        {"inject_namespaces": "A"},
    ],
    ids=" ".join,
)
def test_a_unit_that_never_had_a_usable_configuration_says_that_nothing_runs(
    noted: dict[str, str], unit: Unit
) -> None:
    """Which pods to look after, the charm never guesses."""
    note(unit, **noted)

    status = unit.replace(config={"pod-selector": "="})

    assert status.message.endswith("; nothing runs: no quits and no admission")
    assert "config.yaml" not in unit.files
    assert unit.run() == status


def test_certificates_and_token_are_renewed_while_an_option_is_invalid(unit: Unit) -> None:
    before = set(unit.files)
    (unit.etc / "token").unlink()
    (unit.etc / "tls" / "tls.crt").unlink()

    unit.configure(log_level="loud")

    assert set(unit.files) == before


def test_a_row_of_juju_status_is_bounded_whatever_tenants_name(unit: Unit) -> None:
    unit.process.stuck = [{"namespace": "a" * 63, "name": f"{n}-{'b' * 251}"} for n in range(5)]
    assert unit.run().message.endswith("… and 2 more")
    assert len(unit.run().message) < 300

    unit.process.applications = [
        {**APPLICATION, "namespace": "a" * 63, "name": f"{n}{'b' * 62}"} for n in range(3)
    ]
    assert len(unit.run().message) == 401
    assert unit.run().message.endswith("…")


APPLICATION = {"live": False, "live-reason": "no injector selects it", "revision": "",
    "root-namespace": "", "meshed": None, "meshed-reason": ""}  # fmt: skip
PODS = [{"namespace": "team-a", "name": f"worker-{n}"} for n in range(6)]


held = partial(pods.held, since=datetime.fromisoformat(SINCE), requests=Requests(gpus=8))


TOTALS = {
    "stuck-total": 900, "lost-total": 700, "blocked-total": 600, "selected-total": 501,
    "unstarted-total": 500,
}  # fmt: skip
NONE = {"namespaces": []}
NO_NAMESPACE = "0 namespaces selected: no namespace has the labels "


OF_ANOTHER = {"start-mode": "turbo", "race": "wait", "quit": "later", "speed": 3}


def differ(revision: str) -> str:
    return f"image is of revision {revision}, charm of {istio_aux.revision()}: {REFRESH}"


def says(sentence: str, answer: dict[str, Any], said: str, **options: str) -> Any:
    """What the status says of an answer; a text that begins with `;` follows the usual one."""
    said = said if said and said[0] != ";" else WELL + said
    return pytest.param(answer, options, said, id=sentence)


@pytest.mark.parametrize(
    ("answer", "options", "said"),
    [
        says(
            "pods", {"stuck": PODS[:1], "lost": PODS[1:3], "blocked": PODS[3:]},
            "; stuck: team-a/worker-0; 2 lost their proxy; 3 blocked",
        ),
        says(
            "more pods than the workload lists", {"stuck": PODS[:4], "more": TOTALS},
            WELL.replace("2 namespaces", "501 namespaces")
            + "; stuck: team-a/worker-0, team-a/worker-1, team-a/worker-2 and 897 more"
            "; 700 lost their proxy; 600 blocked; 500 not started",
        ),
        says("pods outside the mesh", {"more": {"unmeshed-total": 612}}, "; 612 outside the mesh"),
        says(
            "a holder",
            {"blocked": PODS[:2], "held": [held("vault-agent"), held("vault-agent")]},
            "; 2 pods are kept by vault-agent since 2026-11-21 19:40Z: 16 GPUs",
        ),
        says(
            "more holders than fit", {"held": [held(f"sidecar-{number}") for number in range(5)]},
            "".join(
                f"; 1 pod is kept by sidecar-{number} since 2026-11-21 19:40Z: 8 GPUs"
                for number in range(3)
            )
            + "; and 2 more holders: list-stuck has them",
        ),
        # istio#43074: only a sidecar that Istio has not injected yet can be made native.
        says(
            "injectors that are called first",
            {"more": {"called-before-us": ["asm-sidecar-injector", "istio-a"]}},
            "; called after asm-sidecar-injector, istio-a, so pods are held, not native",
        ),
        says(
            "an injector that is called first, to no effect",
            {"more": {"called-before-us": ["asm-sidecar-injector"]}}, "; start: hold",
            start_mode="hold",
        ),
        says("that it is unknown who is called first", {"more": {"called-before-us": None}}, ""),
        says(
            "why pods are not native",
            {"more": {"capability": "unknown", "capability-why": "istio: 403"}},
            "; pods are held, not native: istio: 403",
        ),
        says(
            "nothing of native pods before that is known",
            {"more": {"capability": "unknown", "capability-why": ""}}, "",
        ),
        says("that quits are a dry run", {}, "; quit: dry-run", quit="dry-run"),
        says("that all starts are native", {}, "; start: native", start_mode="native"),
        says(
            "the labels that no namespace has", NONE,
            f"{NO_NAMESPACE}{OURS} or app.kubernetes.io/part-of=kubeflow-profile,"
            f"!io.datastrophic/istio-aux; {WELL.partition('; ')[2]}",
        ),
        says(
            "some of many labels that no namespace has", NONE,
            f"{NO_NAMESPACE}a or b=c or d and 2 more; {WELL.partition('; ')[2]}",
            namespace_selectors="a;b=c;d;e;f",
        ),
        says(
            "what to run if the image is of another revision", {"revision": "1a2b3c4d"},
            f"{differ('1a2b3c4d')}; {WELL}",
        ),
        says(
            "which keys such an image does not know",
            {"revision": "1a2b3c4d", "more": {"unknown-keys": ["inject-all", "speed"]}},
            f"{differ('1a2b3c4d')} (it does not know inject-all, speed); {WELL}",
        ),
        says(
            "nothing of what such an image says, and we do not know",
            {"revision": "1a2b3c4d", "more": OF_ANOTHER}, f"{differ('1a2b3c4d')}; {WELL}",
        ),
        says(
            "the version of an image without a revision",
            {"more": {"revision": "", "version": "0.0.9"}}, f"{differ('0.0.9')}; {WELL}",
        ),
        says(
            "that an injector is not live of which such an image says something new",
            {
                "injectors": [injector("sleeping", "it sleeps") | {"native": "half"}],
                "more": {"capability": "half", "capability-why": "one of two"},
            },
            WELL.replace(" live", ": it sleeps,") + "; pods are held, not native: one of two",
        ),
    ],
)  # fmt: skip
def test_the_status_says(
    answer: dict[str, Any], options: dict[str, Any], said: str, unit: Unit
) -> None:
    vars(unit.process).update(answer)

    assert unit.configure(**options) == testing.ActiveStatus(said)


def test_an_event_that_is_not_reconciled_keeps_the_status(unit: Unit) -> None:
    before = unit.state.unit_status
    (peers,) = unit.state.get_relations("peers")

    assert unit.run(unit.on.relation_departed(peers, remote_unit=1, departing_unit=1)) == before


def test_a_workload_that_does_not_run_is_told_with_where_to_look(
    unit: Unit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mocking._MockPebbleClient, "replan_services", lambda *_, **__: None)
    unit.change_container(service_statuses={workload.SERVICE: pebble.ServiceStatus.ERROR})
    unit.process.running = False

    assert unit.follow() == testing.WaitingStatus(
        "workload does not run: see kubectl logs -n kubeflow istio-aux-0 -c istio-aux"
        " (does not answer: connection refused)"
    )


def undecodable() -> httpx2.Response:
    """It says that it is compressed, and is not."""
    said = {"content-encoding": "gzip", "content-type": "application/json"}
    return httpx2.Response(200, headers=said, stream=httpx2.ByteStream(b"{}"))


ODD: dict[str, Callable[[], httpx2.Response]] = {
    "HTML": lambda: httpx2.Response(200, html="<html><title>Log in</title></html>"),
    "nothing": lambda: httpx2.Response(200),
    "half of it": lambda: httpx2.Response(200, content=b'{"kind": "List", "items": [{"metad'),
    "null": lambda: httpx2.Response(200, json={"items": None, "metadata": None, "status": None}),
    "302 without an address": lambda: httpx2.Response(302),
    "a redirect": lambda: httpx2.Response(307, headers={"location": "https://login.corp/"}),
    "undecodable": undecodable,
}


def leave_policy(unit: Unit) -> None:
    """An earlier revision of the charm has left a policy."""
    path = next(path for path in unit.api.objects if "/validatingadmissionpolicies/" in path)
    policy = unit.api.objects[path]
    old = {"name": f"{policy['metadata']['name']}-old"}
    unit.api.objects[f"{path}-old"] = {**policy, "metadata": policy["metadata"] | old}


# A request of each kind that an event makes, and what makes the event do it.
REQUESTS: dict[str, Callable[[Unit], Any]] = {
    "create tokenreviews": lambda _: None,
    "create serviceaccounts/token": lambda unit: (unit.etc / "token").unlink(),
    "list namespaces": lambda _: None,
    "list endpointslices": lambda unit: unit.api.objects.clear(),
    "list peerauthentications": lambda _: None,
    "get peerauthentications": lambda _: None,
    "patch peerauthentications": lambda unit: unit.api.objects.pop(PATH),
    "patch clusterroles": lambda _: None,
    "delete validatingadmissionpolicies": leave_policy,
}
# What an event leaves to the next one: objects that are not wanted any more.
BY_THE_NEXT_EVENT = {"list peerauthentications", "delete validatingadmissionpolicies"}


@pytest.mark.parametrize("request_", REQUESTS)
def test_an_odd_answer_is_waited_for_and_fails_no_hook(request_: str, unit: Unit) -> None:
    REQUESTS[request_](unit)
    asked = list[str]()

    def answer(odd: str) -> httpx2.Response:
        asked.append(odd)
        return ODD[odd]()

    for odd in ODD:
        unit.api.answers[request_] = partial(answer, odd)
        status = unit.run(config={})
        assert isinstance(status, testing.WaitingStatus | testing.ActiveStatus), odd
        assert unit.wakes or "not applied" in status.message or request_ in BY_THE_NEXT_EVENT, odd

    assert {*asked} == {*ODD}, "an event did not ask"
    unit.api.answers.clear()
    for _ in range(3):
        unit.run()
    assert isinstance(unit.state.unit_status, testing.ActiveStatus)


def test_the_proxy_of_the_model_is_not_asked_for_the_api_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Juju sets it in the hook's environment, and it may not know the cluster."""
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        server = {"server": "https://127.0.0.1:1"}  # Nobody listens there.
        kubeconfig(tmp_path, cluster=server, user={"token": "charm"}, context={})
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        proxy.setblocking(False)
        with cluster.connect() as client, pytest.raises(httpx2.ConnectError):
            client.get(Namespace, "default")
        with pytest.raises(BlockingIOError):
            proxy.accept()


_CHANGE = pebble.Change.from_dict(
    {"id": "3", "kind": "replan", "summary": "", "status": "Error", "ready": True,
     "spawn-time": "2026-11-21T08:00:00Z"}
)  # fmt: skip
# What a client of Pebble raises (ops.pebble.Client, http.client, socket).
KINDS: dict[str, Callable[[], Exception]] = {
    "it hangs": lambda: TimeoutError("timed out"),
    "it closes the connection": lambda: RemoteDisconnected("closed without response"),
    "half an answer": lambda: IncompleteRead(b"{"),
    "a reset": lambda: ConnectionResetError(104, "Connection reset by peer"),
    "no socket": lambda: pebble.ConnectionError("no socket"),
    "500": lambda: pebble.APIError({}, 500, "Internal Server Error", "it panics"),
    "no JSON": lambda: pebble.ProtocolError("expected JSON"),
    "a change that takes long": lambda: pebble.TimeoutError("timed out waiting for change 3"),
    "a change that failed": lambda: pebble.ChangeError("it does not start", _CHANGE),
}
METHODS = (
    "get_system_info", "get_plan", "get_services", "get_checks", "add_layer", "replan_services",
    "restart_services", "stop_services", "pull", "push",
)  # fmt: skip
EVENTS: dict[str, Callable[[Unit], Any]] = {
    "install": lambda unit: unit.run(unit.on.install()),
    "pebble-ready": lambda unit: unit.run(unit.on.pebble_ready(unit.container)),
    "config-changed": lambda unit: unit.configure(quit_grace=7),
    "update-status": lambda unit: unit.run(),
    "a related Loki": lambda unit: unit.relate(loki({0: URL})),
    "remove": lambda unit: unit.run(unit.on.remove()),
}


@contextmanager
def failing(at: int, error: Callable[[], Exception]) -> Iterator[list[str]]:
    """Let the request of this number fail; yields the names of all requests."""
    sent = list[str]()

    def instead(name: str, method: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            sent.append(name)
            if len(sent) == at:
                raise error()
            return method(*args, **kwargs)

        return call

    kind = mocking._MockPebbleClient
    with patch.multiple(kind, **{name: instead(name, getattr(kind, name)) for name in METHODS}):
        yield sent


@pytest.mark.parametrize("event", EVENTS)
def test_no_request_to_pebble_that_fails_fails_a_hook(event: str, unit: Unit) -> None:
    """The status says what is so, and the next event goes on. By day each request fails once."""
    before = unit.state
    with failing(0, Exception) as sent:
        EVENTS[event](unit)
    assert sent
    for number, name in enumerate(sent, 1):
        kinds = [*KINDS]
        for kind in kinds if NIGHTLY else [kinds[number % len(kinds)]]:
            unit.state = before
            with failing(number, KINDS[kind]):
                status = EVENTS[event](unit)
            assert status.name in {"waiting", "active", "maintenance"}, f"{name}, {kind}: {status}"
    unit.state = before
    unit.run()
    assert unit.run() == active()
