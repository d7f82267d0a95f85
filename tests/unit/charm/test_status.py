"""What `juju status` shows, in words a person can act on."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import httpx2
import pytest
from ops import testing

import config
from charm import IstioAuxCharm

from .apiserver import ApiServer
from .conftest import WELL, Files, Workload

CONTAINERS = "expected container names separated by commas, such as cloud-sql-proxy,vault-agent"

Context = testing.Context[IstioAuxCharm]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("failure-policy", "Abort", 'failure-policy: "Abort": expected Ignore or Fail'),
        (
            "log-level",
            "trace",
            'log-level: "trace": expected debug or info or warning or error',
        ),
        ("quit", "maybe", 'quit: "maybe": expected on or dry-run or off'),
        ("quit", "True", 'quit: "True": expected on or dry-run or off'),
        ("quit-grace", -1, "quit-grace: -1: expected seconds, 0 or more"),
        ("start-mode", "on", 'start-mode: "on": expected auto or native or hold or off'),
        ("admission", "cel", 'admission: "cel": expected auto or webhook or policy'),
        ("race-policy", "evict", 'race-policy: "evict": expected report or restart or off'),
        (
            "inject-applications",
            "a,kubeflow/A",
            f'inject-applications: "kubeflow/A": expected {config.EXPECTED_APPLICATIONS}',
        ),
        (
            "inject-namespaces",
            "kube-system",
            'inject-namespaces: "kube-system": expected namespaces that Istio does not ignore',
        ),
        ("dead-proxy", "bury", 'dead-proxy: "bury": expected report or delete'),
        (
            "ignore-containers",
            "a,,b",
            f'ignore-containers: "a,,b": {CONTAINERS}',
        ),
        (
            "ignore-containers",
            "Vault",
            f'ignore-containers: "Vault": {CONTAINERS}',
        ),
        (
            "namespace-selector",
            "a in b",
            f'namespace-selector: "a in b": expected {config.EXPECTED_SELECTOR}',
        ),
    ],
)
def test_a_bad_option_blocks_and_names_itself_its_value_and_what_is_allowed(
    option: str, value: str | int, message: str, ctx: Context, settled: testing.State
) -> None:
    bad = dataclasses.replace(settled, config={option: value})

    out = ctx.run(ctx.on.config_changed(), bad)

    assert out.unit_status == testing.BlockedStatus(message)


def test_the_last_good_configuration_keeps_running(
    ctx: Context, settled: testing.State, api: ApiServer, files: Files
) -> None:
    objects, contents = dict(api.objects), files()

    bad = dataclasses.replace(settled, config={"namespace-selector": "="})
    out = ctx.run(ctx.on.config_changed(), bad)

    assert api.objects == objects
    assert files() == contents
    assert out.get_container("istio-aux").plan == settled.get_container("istio-aux").plan


def test_certificates_and_token_are_renewed_whatever_the_options_say(
    ctx: Context, settled: testing.State, etc: Path, files: Files
) -> None:
    before = set(files())
    (etc / "token").unlink()
    (etc / "tls" / "tls.crt").unlink()

    bad = dataclasses.replace(settled, config={"log-level": "loud"})
    ctx.run(ctx.on.update_status(), bad)

    assert set(files()) == before


@pytest.mark.parametrize(
    "failure",
    [
        httpx2.Response(429, json={"kind": "Status", "message": "storage is (re)initializing"}),
        httpx2.Response(405, json={"kind": "Status", "message": "create not allowed"}),
        httpx2.Response(409, json={"kind": "Status", "message": "the object has been modified"}),
        httpx2.Response(503, text="no healthy upstream"),
        httpx2.ConnectError("connection refused"),
    ],
    ids=["429", "405", "409", "503 of a proxy", "connection refused"],
)
def test_what_passes_by_itself_is_waited_for(
    failure: httpx2.Response | httpx2.TransportError,
    ctx: Context,
    fresh: testing.State,
    api: ApiServer,
) -> None:
    api.failures = [failure]
    waiting = ctx.run(ctx.on.config_changed(), fresh)
    assert isinstance(waiting.unit_status, testing.WaitingStatus)
    assert waiting.unit_status.message.startswith("MutatingAdmissionPolicy: ")
    assert len(waiting.unit_status.message.splitlines()) == 1

    out = ctx.run(ctx.on.update_status(), waiting)

    assert isinstance(out.unit_status, testing.ActiveStatus)


def test_a_workload_that_does_not_answer_is_waited_for(
    ctx: Context, settled: testing.State, process: Workload
) -> None:
    process.running = False

    out = ctx.run(ctx.on.update_status(), settled)

    assert out.unit_status == testing.WaitingStatus(
        "workload: no answer at http://localhost:8080: connection refused"
    )


def test_a_workload_that_lacks_something_says_what(
    ctx: Context, settled: testing.State, process: Workload
) -> None:
    process.missing = ["the list of pods", "the list of namespaces"]

    out = ctx.run(ctx.on.update_status(), settled)

    assert out.unit_status == testing.WaitingStatus(
        "workload: the list of pods; the list of namespaces"
    )


def test_stuck_pods_are_named_and_the_rest_counted(
    ctx: Context, settled: testing.State, process: Workload
) -> None:
    process.namespaces = ["team-a"]
    process.stuck = [{"namespace": "team-a", "name": f"worker-{n}"} for n in range(5)]

    out = ctx.run(ctx.on.update_status(), settled)

    assert out.unit_status == testing.ActiveStatus(
        WELL.replace("2 namespaces", "1 namespace")
        + "; stuck: team-a/worker-0, team-a/worker-1, team-a/worker-2 and 2 more"
    )


@pytest.mark.parametrize("mode", ["dry-run", "off"])
def test_a_workload_that_does_not_act_is_said_not_to(
    mode: str, ctx: Context, settled: testing.State
) -> None:
    idle = dataclasses.replace(settled, config={"quit": mode})

    out = ctx.run(ctx.on.config_changed(), idle)

    assert out.unit_status == testing.ActiveStatus(f"{WELL}; quit: {mode}")


@pytest.mark.parametrize("mode", ["native", "hold", "off"])
def test_a_start_mode_that_was_chosen_is_said(
    mode: str, ctx: Context, settled: testing.State
) -> None:
    chosen = dataclasses.replace(settled, config={"start-mode": mode})

    out = ctx.run(ctx.on.config_changed(), chosen)

    assert out.unit_status == testing.ActiveStatus(f"{WELL}; start: {mode}")


def test_what_is_wrong_with_pods_is_counted_in_one_line(
    ctx: Context, settled: testing.State, process: Workload
) -> None:
    pods = [{"namespace": "team-a", "name": f"worker-{n}"} for n in range(6)]
    process.stuck, process.lost, process.blocked = pods[:1], pods[1:3], pods[3:]

    out = ctx.run(ctx.on.update_status(), settled)

    assert out.unit_status == testing.ActiveStatus(
        f"{WELL}; stuck: team-a/worker-0; 2 lost their proxy; 3 blocked"
    )


def test_a_workload_of_an_older_image_is_understood(
    ctx: Context, settled: testing.State, process: Workload
) -> None:
    process.unsaid = {"lost-pods", "blocked-pods", "called-before-us"}

    out = ctx.run(ctx.on.update_status(), settled)

    assert out.unit_status == testing.ActiveStatus(WELL)


def test_a_follower_waits_for_the_authority_of_its_leader(
    ctx: Context, fresh: testing.State, api: ApiServer
) -> None:
    out = ctx.run(ctx.on.config_changed(), dataclasses.replace(fresh, leader=False))

    assert out.unit_status == testing.WaitingStatus(
        "waiting for the leader's certificate authority"
    )
    assert not api.writes


def test_the_first_thing_to_mend_is_shown_when_several_are_wrong(
    ctx: Context, fresh: testing.State, api: ApiServer
) -> None:
    api.denied = {"list clusterroles"}
    bad = dataclasses.replace(fresh, config={"log-level": "loud"})

    out = ctx.run(ctx.on.config_changed(), bad)

    assert out.unit_status.message.startswith("log-level:")


def test_an_event_that_looked_at_nothing_leaves_the_status(
    ctx: Context, settled: testing.State
) -> None:
    (peers,) = settled.get_relations("peers")

    out = ctx.run(ctx.on.relation_departed(peers, remote_unit=1, departing_unit=1), settled)

    assert out.unit_status == settled.unit_status
