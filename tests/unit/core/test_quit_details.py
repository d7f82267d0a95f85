"""What a decision carries besides its kind: verdicts, ports, times; and recordings replayed."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import groupby

import pytest
from istio_aux.core import pod as pods
from istio_aux.core import quit as quitting
from istio_aux.core.policy import Policy
from istio_aux.core.wishes import IGNORE_CONTAINERS
from unit.core.pods import RECORDS, RUNNING, exited, job, recorded

FINISHED_AT = datetime(2026, 11, 21, 8, 16, 29, tzinfo=UTC)


def kind(pod: pods.Pod) -> type[quitting.Action]:
    return type(quitting.decide(pod, Policy(), None))


def test_every_container_has_a_role() -> None:
    """Roles go by name: the proxy and native sidecars, ignored ones, and the payload (T8)."""
    pod = job(
        {"istio-proxy": RUNNING, "main": exited(0), "dind": RUNNING},
        sidecars={"vault-agent": RUNNING},
        annotations={IGNORE_CONTAINERS: "dind,istio-proxy"},
    )
    verdicts = quitting.decide(pod, Policy(), None).containers
    assert {name: verdict.role for name, verdict in verdicts.items()} == {
        "istio-proxy": "sidecar",
        "main": "payload",
        "dind": "ignored",
        "vault-agent": "sidecar",
    }


def test_a_policy_can_ignore_containers_in_all_pods() -> None:
    """What the admin ignores holds up no pod."""
    pod = job({"main": exited(0), "dind": RUNNING, "istio-proxy": RUNNING})
    policy = Policy(ignore_containers=frozenset({"dind"}))
    assert isinstance(quitting.decide(pod, policy, None), quitting.Quit)


def test_a_grace_period_keeps_the_proxy_until_it_ends() -> None:
    """The wait names its end, counted from the last payload container's exit."""
    early = exited(0, at="2026-11-21T08:16:20Z")
    pod = job({"early": early, "main": exited(0), "istio-proxy": RUNNING})
    policy = Policy(grace=5)
    decision = quitting.decide(pod, policy, FINISHED_AT + timedelta(seconds=4.9))
    assert isinstance(decision, quitting.Wait)
    assert decision.until == FINISHED_AT + timedelta(seconds=5)
    assert isinstance(quitting.decide(pod, policy, decision.until), quitting.Quit)


def test_without_a_clock_the_grace_period_is_over() -> None:
    """`explain` of a file cannot know the time of the file."""
    pod = job({"main": exited(0), "istio-proxy": RUNNING})
    assert isinstance(quitting.decide(pod, Policy(grace=5), None), quitting.Quit)


@pytest.mark.parametrize(
    ("annotation", "environment", "port"),
    [
        pytest.param(None, None, 15020, id="nothing is configured"),
        pytest.param("15520", None, 15520, id="the annotation"),
        pytest.param(None, '{"statusPort":15521}\n', 15521, id="the ProxyConfig"),
        pytest.param("15520", '{"statusPort":15521}', 15520, id="the annotation wins"),
        pytest.param("0", None, 0, id="the status server is off"),
        pytest.param("high", None, 15020, id="an annotation that is no number"),
        pytest.param("99999", None, 15020, id="an annotation that is no port"),
        pytest.param("1" * 5000, None, 15020, id="a very long annotation"),
        pytest.param(None, '{"statusPort":"x"}', 15020, id="a ProxyConfig of the wrong type"),
        pytest.param(None, "{}", 15020, id="a ProxyConfig without a port"),
    ],
)
def test_the_status_port_is_the_one_of_this_pod(
    annotation: str | None, environment: str | None, port: int
) -> None:
    """A custom status port is found in both places where Istio keeps it (T21)."""
    pod = job(
        {"main": exited(0), "istio-proxy": RUNNING},
        annotations={"status.sidecar.istio.io/port": annotation} if annotation else {},
        details={"istio-proxy": {"env": [{"name": "PROXY_CONFIG", "value": environment}]}},
    )
    decision = quitting.decide(pod, Policy(), None)
    assert isinstance(decision, quitting.Quit)
    assert decision.status_port == port


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ("pod-classic-before-quit.json", quitting.Quit),
        ("pod-classic-after-quit.json", quitting.Ignore),
        ("pod-hold.json", quitting.Quit),
        ("pod-native.json", quitting.Ignore),
    ],
)
def test_a_recorded_pod_is_decided(record: str, expected: type[quitting.Action]) -> None:
    """Real pods of Istio 1.28, with all their fields."""
    assert kind(recorded(record)) is expected


def test_a_recorded_job_gets_exactly_one_stretch_of_quit() -> None:
    """Replayed event by event: wait, quit, and never again once the proxy has ended (T22, T29)."""
    events = (RECORDS / "watch-classic-job.jsonstream").read_text().splitlines()
    decisions = [kind(pods.convert(json.loads(event)["object"])) for event in events]
    assert [action for action, _ in groupby(decisions)] == [
        quitting.Wait,
        quitting.Quit,
        quitting.Ignore,
    ]
    assert decisions.count(quitting.Quit) == 1


def test_the_window_after_a_quit_is_quiet() -> None:
    """While every container is terminated and the phase is still Running, nothing is done (T22)."""
    events = (RECORDS / "watch-classic-job.jsonstream").read_text().splitlines()
    seen = [pods.convert(json.loads(event)["object"]) for event in events]
    window = [
        pod
        for pod in seen
        if pod.status.phase == "Running"
        and (status := pod.container_status("istio-proxy"))
        and status.state
        and status.state.terminated
    ]
    assert window
    assert {kind(pod) for pod in window} == {quitting.Ignore}
