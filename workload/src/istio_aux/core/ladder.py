"""The ways to make the agent of a classic sidecar exit with 0, and the order to try them in.

Only what to send may live here, neither the sending nor when. None of the ways needs a shell in the
image (istio.io#5073), and all of them end the proxy with 0 (observed with Istio 1.28 and 1.30).
"""

from __future__ import annotations

from enum import StrEnum

_ALLOWED = frozenset({15000, 15004, 15020, 15021})
"""Ports that ``pilot-agent request --debug-port`` takes (istio pilot/pkg/request/command.go)."""


class Rung(StrEnum):
    """One way to make a proxy exit."""

    EXEC = "exec"
    """The agent's own client, inside the container, to the agent's status server."""
    PORT_FORWARD = "port-forward"
    """HTTP ``POST /quitquitquit`` to the status port, from inside the pod's network."""
    ENVOY = "exec-envoy"
    """The same client to Envoy's admin port; Envoy leaves, and the agent follows."""


def rungs(status_port: int) -> tuple[Rung, ...]:
    """Say which ways can work for an agent whose status server listens on TCP port ``status_port``.

    They come in the order to try them, at least one. 0 means that the status server is off, which
    leaves Envoy's admin; a port outside of the client's list can only be reached by port-forward.
    """
    if status_port == 0:
        return (Rung.ENVOY,)
    if status_port in _ALLOWED:
        return (Rung.EXEC, Rung.PORT_FORWARD, Rung.ENVOY)
    return (Rung.PORT_FORWARD, Rung.ENVOY)


def command(rung: Rung, status_port: int) -> tuple[str, ...]:
    """The command to run in the proxy's container (istio pilot-agent app/request.go).

    Without ``--debug-port`` the client talks to Envoy's admin (istio#11659).

    Raises:
        ValueError: ``rung`` runs no command.
    """
    match rung:
        case Rung.EXEC:
            return (
                "pilot-agent",
                "request",
                f"--debug-port={status_port}",
                "POST",
                "quitquitquit",
            )
        case Rung.ENVOY:
            return ("pilot-agent", "request", "POST", "quitquitquit")
        case Rung.PORT_FORWARD:
            raise ValueError(f"rung {rung}: it runs no command")
