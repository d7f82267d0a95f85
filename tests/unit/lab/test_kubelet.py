"""The answers of the scripted kubelet's proxy, against what Istio's agent does."""

from __future__ import annotations

import pytest
from lab.kubelet import agent


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
