"""The answers of the scripted kubelet's proxy, against what Istio's agent does."""

from __future__ import annotations

import pytest
from lab.kubelet import agent


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
