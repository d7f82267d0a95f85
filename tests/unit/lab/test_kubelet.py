"""The scripted kubelet's rules and its proxy's answers, against what Kubernetes and Istio do."""

from __future__ import annotations

import pytest
from lab.kubelet import agent, rules
from lab.kubelet.api import Object
from lab.kubelet.containers import Container, Running, Terminated, Waiting

RUNNING = Container(Running("2026-01-01T00:00:00Z"))
NEVER_STARTED = Container(Waiting("ContainerCreating"))


def ended(code: int) -> Container:
    times = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z")
    return Container(Terminated(code, "Completed" if code == 0 else "Error", *times))


@pytest.mark.parametrize(
    ("policy", "main", "proxy", "phase"),
    [
        ("Never", ended(0), RUNNING, "Running"),
        ("Never", ended(0), ended(0), "Succeeded"),
        ("Never", ended(0), ended(137), "Failed"),
        ("Never", NEVER_STARTED, RUNNING, "Pending"),
        ("OnFailure", ended(3).again(Waiting("CrashLoopBackOff")), ended(0), "Running"),
        ("Always", ended(0), ended(0), "Running"),
        ("native", ended(0), RUNNING, "Running"),
        # Its exit code does not count.
        ("native", ended(0), ended(137), "Succeeded"),
    ],
)
def test_the_phase_follows_all_regular_containers_and_native_sidecars_that_run(
    policy: str, main: Container, proxy: Container, phase: str
):
    sidecar = {"name": "istio-proxy"}
    native = policy == "native"
    spec = {
        "restartPolicy": "Never" if native else policy,
        "containers": [{"name": "main"}, *([] if native else [sidecar])],
        "initContainers": [{**sidecar, "restartPolicy": "Always"}] if native else [],
    }

    assert rules.phase(spec, {"main": main, "istio-proxy": proxy}) == phase


def spec_with_rule(action: str, operator: str = "In") -> Object:
    """A pod that never restarts, but for a container `main` with a rule for exit code 42."""
    rule = {"action": action, "exitCodes": {"operator": operator, "values": [42]}}
    main = {"name": "main", "restartPolicy": "Never", "restartPolicyRules": [rule]}
    return {"restartPolicy": "Never", "containers": [main, {"name": "upload"}]}


@pytest.mark.parametrize(
    ("spec", "states", "unfinished"),
    [
        (spec_with_rule("Restart"), {"main": RUNNING, "upload": ended(1)}, ["main"]),
        (spec_with_rule("Restart"), {"main": ended(1)}, ["upload"]),
        (spec_with_rule("Restart"), {"main": ended(42), "upload": ended(0)}, ["main"]),
        (spec_with_rule("Restart", "NotIn"), {"main": ended(42), "upload": ended(0)}, []),
        (
            # Also what has done its work.
            spec_with_rule("RestartAllContainers"),
            {"main": ended(42), "upload": ended(0)},
            ["main", "upload"],
        ),
    ],
)
def test_what_runs_or_runs_again_is_unfinished(
    spec: Object, states: dict[str, Container], unfinished: list[str]
):
    """T12"""
    assert rules.unfinished(spec, states) == unfinished


@pytest.mark.parametrize(
    ("command", "port", "exit_code", "quits"),
    [
        ("pilot-agent request --debug-port=15020 POST quitquitquit", 15020, 0, True),
        ("pilot-agent request POST quitquitquit", 15020, 0, True),
        ("pilot-agent request --debug-port=15021 POST quitquitquit", 15020, 0, False),
        ("pilot-agent request --debug-port=15020 GET quitquitquit", 15020, 255, False),
        ("pilot-agent request --debug-port=15520 POST quitquitquit", 15020, 255, False),
        ("pilot-agent request --debug-port=15020 GET stats", 15020, 0, False),
        ("sh -c true", 15020, None, False),
        # Without a status server, as observed with port 0: Envoy's admin ends the proxy.
        ("pilot-agent request --debug-port=15020 POST quitquitquit", 0, 255, False),
        ("pilot-agent request POST quitquitquit", 0, 0, True),
    ],
)
def test_pilot_agent_answers_as_istios_does(
    *, command: str, port: int, exit_code: int | None, quits: bool
):
    answer = agent.run(command.split(), port)

    assert (answer.exit_code, answer.quits) == (exit_code, quits)
