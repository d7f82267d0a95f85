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


def spec(policy: str, *containers: str, native: bool = False) -> Object:
    init = [{"name": "istio-proxy", "restartPolicy": "Always"}] if native else []
    return {
        "restartPolicy": policy,
        "containers": [{"name": name} for name in containers],
        "initContainers": init,
    }


@pytest.mark.parametrize(
    ("policy", "main", "proxy", "phase"),
    [
        ("Never", RUNNING, RUNNING, "Running"),
        ("Never", ended(0), RUNNING, "Running"),
        ("Never", ended(0), ended(0), "Succeeded"),
        ("Never", ended(3), ended(0), "Failed"),
        ("Never", ended(0), ended(137), "Failed"),
        ("Never", NEVER_STARTED, RUNNING, "Pending"),
        ("OnFailure", ended(0), ended(0), "Succeeded"),
        ("OnFailure", ended(3), ended(0), "Running"),
        ("OnFailure", ended(3).again(Waiting("CrashLoopBackOff")), ended(0), "Running"),
        ("OnFailure", ended(0), ended(137), "Running"),
        ("Always", ended(0), ended(0), "Running"),
    ],
)
def test_the_phase_follows_all_regular_containers(
    policy: str, main: Container, proxy: Container, phase: str
):
    states = {"main": main, "istio-proxy": proxy}

    assert rules.phase(spec(policy, "main", "istio-proxy"), states) == phase


@pytest.mark.parametrize(
    ("proxy", "phase"), [(RUNNING, "Running"), (ended(0), "Succeeded"), (ended(137), "Succeeded")]
)
def test_the_exit_code_of_a_native_sidecar_does_not_count(proxy: Container, phase: str):
    states = {"main": ended(0), "istio-proxy": proxy}

    assert rules.phase(spec("Never", "main", native=True), states) == phase


@pytest.mark.parametrize(
    ("rule", "exit_code", "again"),
    [
        ({"operator": "In", "values": [42]}, 42, True),
        ({"operator": "In", "values": [42]}, 1, False),
        ({"operator": "NotIn", "values": [42]}, 1, True),
    ],
)
def test_a_rule_of_the_container_beats_its_policy(rule: Object, exit_code: int, again: bool):
    rules_of = [{"action": "Restart", "exitCodes": rule}]
    container = {"name": "main", "restartPolicy": "Never", "restartPolicyRules": rules_of}

    assert rules.should_restart(container, spec("Always", "main"), exit_code) is again


def spec_with_rule(action: str) -> Object:
    """A pod that never restarts, but for a container `main` whose exit code 42 has a rule."""
    rule = {"action": action, "exitCodes": {"operator": "In", "values": [42]}}
    main = {"name": "main", "restartPolicy": "Never", "restartPolicyRules": [rule]}
    return {"restartPolicy": "Never", "containers": [main, {"name": "upload"}]}


@pytest.mark.parametrize(
    ("states", "unfinished"),
    [
        ({"main": RUNNING, "upload": ended(1)}, ["main"]),
        ({"main": ended(1), "upload": ended(0)}, []),
        ({"main": ended(1)}, ["upload"]),
        ({"main": ended(42), "upload": ended(0)}, ["main"]),
        ({"main": NEVER_STARTED, "upload": ended(0)}, ["main"]),
        ({"main": ended(42).again(Waiting("CrashLoopBackOff")), "upload": ended(0)}, ["main"]),
    ],
)
def test_what_may_still_run_is_unfinished(states: dict[str, Container], unfinished: list[str]):
    assert rules.unfinished(spec_with_rule("Restart"), states) == unfinished


def test_a_rule_that_restarts_all_leaves_nothing_finished():
    """T12: also the container that has done its work."""
    states = {"main": ended(42), "upload": ended(0)}

    assert rules.unfinished(spec_with_rule("RestartAllContainers"), states) == ["main", "upload"]


@pytest.mark.parametrize(
    ("command", "exit_code", "quits"),
    [
        ("pilot-agent request --debug-port=15020 POST quitquitquit", 0, True),
        ("pilot-agent request --debug-port 15020 POST /quitquitquit", 0, True),
        ("pilot-agent request POST quitquitquit", 0, True),
        ("pilot-agent request --debug-port=15021 POST quitquitquit", 0, False),
        ("pilot-agent request --debug-port=15020 GET quitquitquit", 255, False),
        ("pilot-agent request --debug-port=15520 POST quitquitquit", 255, False),
        ("pilot-agent request --debug-port=15020 GET stats", 0, False),
        ("pilot-agent request", 255, False),
        ("sh -c true", None, False),
    ],
)
def test_pilot_agent_answers_as_istios_does(command: str, exit_code: int | None, quits: bool):
    answer = agent.run(command.split(), 15020)

    assert (answer.exit_code, answer.quits) == (exit_code, quits)


def test_an_agent_without_a_status_server_is_quit_through_envoy():
    """As observed with port 0: Envoy's admin ends the proxy, the agent's port does not answer."""
    agents = ["pilot-agent", "request", "--debug-port=15020", "POST", "quitquitquit"]
    envoys = ["pilot-agent", "request", "POST", "quitquitquit"]

    assert agent.run(agents, 0).quits is False
    assert agent.run(envoys, 0) == agent.Answer(stdout="OK", quits=True)
    assert agent.respond(b"POST /quitquitquit HTTP/1.1\r\n\r\n", 0, 0) is None


@pytest.mark.parametrize(
    ("request_line", "port", "status", "quits"),
    [
        (b"POST /quitquitquit HTTP/1.1", 15020, b"200", True),
        (b"GET /quitquitquit HTTP/1.1", 15020, b"405", False),
        (b"POST /elsewhere HTTP/1.1", 15020, b"404", False),
    ],
)
def test_the_status_port_wants_a_post(request_line: bytes, port: int, status: bytes, quits: bool):
    answer = agent.respond(request_line + b"\r\n\r\n", port, 15020)

    assert answer is not None
    assert answer[0].split(b" ")[1] == status
    assert answer[1] is quits
