"""What other webhooks refuse is applied last and stops nothing else.

Istio's validator of its own kinds has `failurePolicy: Fail` once istiod has been up: while istiod
is away, the API server refuses every write of a PeerAuthentication.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import httpx2
import pytest
from charms.istio_aux.v0.sidecar import Mesh
from ops import testing

from charm import IstioAuxCharm

from .apiserver import ApiServer
from .conftest import WELL, Files, Workload
from .test_injection_labels import OURS, labels, naming
from .test_reconcile import STANDING
from .test_sidecar_relation import TENSORBOARD, related, state_of

Context = testing.Context[IstioAuxCharm]

# As recorded with Istio 1.28.10 on Kubernetes 1.36.3.
AWAY = (
    'Internal error occurred: failed calling webhook "validation.istio.io": failed to call webhook:'
    ' Post "https://istiod.istio-system.svc:443/validate?timeout=10s": no endpoints available for'
    ' service "istiod"'
)
WRITE = "patch peerauthentications"
PATH = "/apis/security.istio.io/v1/namespaces/kubeflow/peerauthentications/istio-aux"


def refusal(code: int, reason: str, message: str) -> httpx2.Response:
    body = {"kind": "Status", "code": code, "reason": reason, "message": message}
    return httpx2.Response(code, json=body)


@pytest.fixture
def away(api: ApiServer, settled: testing.State) -> testing.State:
    """Istiod is away, and the PeerAuthentication is not there."""
    del api.objects[PATH]
    api.answers[WRITE] = refusal(500, "InternalError", AWAY)
    return settled


@pytest.fixture
def restarted(settled: testing.State, etc: Path) -> testing.State:
    """The unit after its container restarted: no file and no plan is left."""
    for path in etc.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    container = dataclasses.replace(
        settled.get_container("istio-aux"),
        layers={},
        service_statuses={},
        check_infos=frozenset(),
    )
    return dataclasses.replace(settled, containers={container})


def test_a_unit_that_restarts_while_istiod_is_away_starts_its_workload(
    ctx: Context, away: testing.State, restarted: testing.State, files: Files
) -> None:
    out = ctx.run(ctx.on.pebble_ready(restarted.get_container("istio-aux")), restarted)

    assert "config.yaml" in files()
    assert "istio-aux" in out.get_container("istio-aux").plan.services


def test_every_other_object_is_there_although_istiod_is_away(
    ctx: Context, fresh: testing.State, api: ApiServer
) -> None:
    api.answers[WRITE] = refusal(500, "InternalError", AWAY)

    ctx.run(ctx.on.config_changed(), fresh)

    expected = {*STANDING, "MutatingWebhookConfiguration"} - {"PeerAuthentication"}
    assert api.kinds() == sorted(expected)


def test_options_reach_the_workload_although_istiod_is_away(
    ctx: Context, away: testing.State, api: ApiServer, files: Files
) -> None:
    changed = dataclasses.replace(away, config={"quit": "dry-run", "failure-policy": "Fail"})

    ctx.run(ctx.on.config_changed(), changed)

    assert "quit: dry-run" in files()["config.yaml"]
    verbs = [rule["resources"] for rule in api.one("ClusterRole")["rules"]]
    assert ["pods/exec", "pods/portforward"] not in verbs
    assert api.one("MutatingWebhookConfiguration")["webhooks"][0]["failurePolicy"] == "Fail"


def test_a_kind_of_istios_that_the_api_server_just_got_to_know_hides_nothing(
    ctx: Context, settled: testing.State, api: ApiServer, process: Workload
) -> None:
    """For a second or so after a CRD is made, its objects cannot be listed."""
    starting = refusal(429, "TooManyRequests", "storage is (re)initializing")
    api.answers["list peerauthentications"] = starting
    process.stuck = [{"namespace": "team-a", "name": "train"}]

    out = ctx.run(ctx.on.update_status(), settled)

    assert out.unit_status == testing.ActiveStatus(f"{WELL}; stuck: team-a/train")


def test_the_status_says_what_is_true_and_what_is_not_applied(
    ctx: Context, away: testing.State, process: Workload
) -> None:
    process.stuck = [{"namespace": "team-a", "name": "train"}]

    out = ctx.run(ctx.on.update_status(), away)

    assert out.unit_status == testing.ActiveStatus(
        f"{WELL}; stuck: team-a/train; not applied: PeerAuthentication istio-aux: {AWAY}"
    )


@pytest.mark.parametrize(
    "broken", [WRITE, "patch clusterroles", "list mutatingadmissionpolicies", "get serviceaccounts"]
)
def test_the_relation_is_answered_whatever_could_not_be_done(
    broken: str, ctx: Context, settled: testing.State, api: ApiServer, process: Workload
) -> None:
    process.applications = [state_of("tensorboard")]
    before = ctx.run(ctx.on.update_status(), related(settled, TENSORBOARD))
    assert told(before).live

    gone = {"live": False, "live-reason": "Service istio-system/istiod has no ready endpoint"}
    process.applications = [state_of("tensorboard", **gone)]
    del api.objects[PATH]
    api.broken = {broken}
    out = ctx.run(ctx.on.update_status(), before)

    assert (told(out).live, told(out).reason) == (False, gone["live-reason"])


def test_the_relation_is_answered_while_trust_is_withdrawn(
    ctx: Context, settled: testing.State, api: ApiServer, process: Workload
) -> None:
    process.applications = [state_of("tensorboard")]
    before = ctx.run(ctx.on.update_status(), related(settled, TENSORBOARD))

    process.applications = [state_of("tensorboard", live=False)]
    api.denied = {"get serviceaccounts"}
    out = ctx.run(ctx.on.update_status(), before)

    assert not told(out).live


def told(state: testing.State) -> Mesh:
    """What the relation of `TENSORBOARD` is told."""
    mesh = Mesh.from_databag(state.get_relation(TENSORBOARD.id).local_app_data)
    assert mesh
    return mesh


@pytest.mark.parametrize("broken", ["patch clusterroles", "list mutatingadmissionpolicies"])
def test_a_unit_that_restarts_starts_its_workload_whatever_the_leader_cannot_apply(
    broken: str, ctx: Context, restarted: testing.State, api: ApiServer, files: Files
) -> None:
    api.broken = {broken}

    out = ctx.run(ctx.on.pebble_ready(restarted.get_container("istio-aux")), restarted)

    assert "config.yaml" in files()
    assert isinstance(out.unit_status, testing.WaitingStatus)
    assert "etcd is slow" in out.unit_status.message


def test_what_istiod_refused_is_applied_once_it_is_back(
    ctx: Context, away: testing.State, api: ApiServer
) -> None:
    waiting = ctx.run(ctx.on.update_status(), away)
    assert PATH not in api.objects

    api.answers = {}
    out = ctx.run(ctx.on.update_status(), waiting)

    assert PATH in api.objects
    assert out.unit_status == testing.ActiveStatus(WELL)


def test_what_is_as_it_should_be_is_not_applied_again(
    ctx: Context, settled: testing.State, api: ApiServer
) -> None:
    api.calls.clear()

    ctx.run(ctx.on.update_status(), settled)

    assert f"GET {PATH}" in api.calls
    assert f"PATCH {PATH}" not in api.calls


@pytest.mark.parametrize(
    "changed",
    [{"spec": {"mtls": {"mode": "STRICT"}}}, {"metadata": {"name": "istio-aux", "uid": "uid-1"}}],
    ids=["another spec", "no labels"],
)
def test_what_somebody_changed_is_applied_again(
    changed: dict[str, Any], ctx: Context, settled: testing.State, api: ApiServer
) -> None:
    wanted = api.objects[PATH]
    api.objects[PATH] = {**wanted, **changed}

    ctx.run(ctx.on.update_status(), settled)

    assert api.objects[PATH]["spec"] == wanted["spec"]
    assert api.objects[PATH]["metadata"]["labels"] == wanted["metadata"]["labels"]


@pytest.mark.parametrize(
    "answer",
    [
        refusal(400, "BadRequest", 'admission webhook "validation.istio.io" denied the request'),
        refusal(403, "Forbidden", 'admission webhook "policy.example" denied the request'),
        refusal(422, "Invalid", "spec.portLevelMtls: unknown field"),
        httpx2.ReadTimeout("timed out"),
    ],
    ids=str,
)
def test_no_refusal_of_it_stops_the_charm(
    answer: httpx2.Response | httpx2.TransportError,
    ctx: Context,
    away: testing.State,
    api: ApiServer,
) -> None:
    api.answers[WRITE] = answer

    out = ctx.run(ctx.on.update_status(), away)

    assert isinstance(out.unit_status, testing.ActiveStatus)
    assert "not applied: PeerAuthentication istio-aux: " in out.unit_status.message


def test_a_hung_istiod_costs_an_event_three_seconds_at_most(
    ctx: Context, away: testing.State, api: ApiServer
) -> None:
    ctx.run(ctx.on.update_status(), away)

    assert api.patience[f"PATCH {PATH}"] == 3.0


@pytest.mark.parametrize("code", [400, 429, 500, 503])
def test_a_namespace_that_a_webhook_refuses_stops_neither_the_others_nor_the_status(
    code: int, ctx: Context, settled: testing.State, api: ApiServer
) -> None:
    for name in ("team-a", "team-b", "team-c"):
        api.add_namespace(name)
    before = ctx.run(ctx.on.config_changed(), naming(settled, "team-b"))
    failed = 'failed calling webhook "rules.example"'
    api.answers["patch namespaces team-a"] = refusal(code, "InternalError", failed)
    api.answers["patch namespaces team-b"] = refusal(code, "InternalError", failed)

    out = ctx.run(ctx.on.config_changed(), naming(before, "team-a,team-c"))

    assert labels(api, "team-c") == OURS
    assert out.unit_status == testing.ActiveStatus(
        f"{WELL}; inject-namespaces: team-b: label not removed: {failed}, team-a: {failed}"
    )
