"""The ways to make an agent exit, and the commands that need no shell."""

from __future__ import annotations

import pytest
from istio_aux.model.policy import QuitVia, Rung
from istio_aux.quit.rules import command, rungs

FIRST, NO_EXEC = (Rung.EXEC, Rung.PORT_FORWARD, Rung.ENVOY), (Rung.PORT_FORWARD, Rung.ENVOY)


@pytest.mark.parametrize(
    ("ports", "ways"),
    [
        ([15000, 15004, 15020, 15021], FIRST),
        ([1, 15019, 15022, 15520, 65535], NO_EXEC),
        ([0], (Rung.ENVOY,)),
    ],
    ids=["pilot-agent may use it", "pilot-agent refuses it", "the status server is off"],
)
def test_the_port_decides_which_ways_there_are(ports: list[int], ways: tuple[Rung, ...]) -> None:
    """pilot-agent's client refuses any port that is not on its list (T21)."""
    assert {rungs(port) for port in ports} == {ways}


@pytest.mark.parametrize(
    ("via", "port", "ways"),
    [
        (QuitVia.EXEC, 15020, (Rung.EXEC, Rung.ENVOY)),
        (QuitVia.EXEC, 15520, (Rung.ENVOY,)),
        (QuitVia.EXEC, 0, (Rung.ENVOY,)),
        (QuitVia.PORT_FORWARD, 15020, (Rung.PORT_FORWARD,)),
        (QuitVia.PORT_FORWARD, 15520, (Rung.PORT_FORWARD,)),
        (QuitVia.PORT_FORWARD, 0, ()),
    ],
)
def test_ways_that_the_account_has_no_right_to_are_left_out(
    via: QuitVia, port: int, ways: tuple[Rung, ...]
) -> None:
    assert rungs(port, via) == ways


@pytest.mark.parametrize("port", [15000, 15004, 15020, 15021])
def test_the_agents_port_is_named(port: int) -> None:
    """Without it the command would talk to Envoy; and it is a program, not a shell (T14, T15)."""
    flag = f"--debug-port={port}"
    assert command(Rung.EXEC, port) == ("pilot-agent", "request", flag, "POST", "quitquitquit")


def test_envoy_is_asked_without_a_port() -> None:
    """The client goes to Envoy's admin by itself, whatever the status port (T14)."""
    assert command(Rung.ENVOY, 15520) == ("pilot-agent", "request", "POST", "quitquitquit")


def test_a_port_forward_runs_no_command() -> None:
    """Asking for one is a mistake of the caller, and says so."""
    with pytest.raises(ValueError, match="port-forward: it runs no command"):
        command(Rung.PORT_FORWARD, 15020)
