"""The ways to make an agent exit, and the commands that need no shell."""

from __future__ import annotations

import pytest
from istio_aux.core.quit import Rung, command, rungs


@pytest.mark.parametrize("port", [15000, 15004, 15020, 15021])
def test_where_the_agents_client_may_go_it_is_asked_first(port: int) -> None:
    """Then the same by port-forward, and in the end Envoy's admin."""
    assert rungs(port) == (Rung.EXEC, Rung.PORT_FORWARD, Rung.ENVOY)


@pytest.mark.parametrize("port", [1, 15019, 15022, 15520, 65535])
def test_another_port_is_only_reached_by_port_forward(port: int) -> None:
    """pilot-agent refuses any port that is not on its list (T21)."""
    assert rungs(port) == (Rung.PORT_FORWARD, Rung.ENVOY)


def test_without_a_status_server_only_envoy_can_be_asked() -> None:
    """Port 0 turns the server off (T21)."""
    assert rungs(0) == (Rung.ENVOY,)


def test_the_agents_port_is_named() -> None:
    """Without it the command would talk to Envoy; and it is a program, not a shell (T14, T15)."""
    assert command(Rung.EXEC, 15020) == (
        "pilot-agent",
        "request",
        "--debug-port=15020",
        "POST",
        "quitquitquit",
    )


@pytest.mark.parametrize("port", [15000, 15004, 15021])
def test_a_port_that_the_client_may_use_is_the_one_it_gets(port: int) -> None:
    """Not the default, which may belong to somebody else (T15, T21)."""
    assert f"--debug-port={port}" in command(Rung.EXEC, port)


def test_envoy_is_asked_without_a_port() -> None:
    """The client goes to Envoy's admin by itself, whatever the status port (T14)."""
    assert command(Rung.ENVOY, 15520) == ("pilot-agent", "request", "POST", "quitquitquit")


def test_a_port_forward_runs_no_command() -> None:
    """Asking for one is a mistake of the caller, and says so."""
    with pytest.raises(ValueError, match="port-forward: it runs no command"):
        command(Rung.PORT_FORWARD, 15020)
