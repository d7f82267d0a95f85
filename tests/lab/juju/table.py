"""Prints the model as `juju status` does."""

from __future__ import annotations

from collections.abc import Sequence

from .store import State

# Worst first: an application without a status of its own shows its worst unit's (Juju's
# status.DeriveStatus).
_SEVERITY = ("error", "blocked", "maintenance", "waiting", "active", "unknown")


def render(state: State, version: str) -> str:
    """Return the status of a model; the controller is named for what it is."""
    model = [
        ("Model", "Controller", "Cloud/Region", "Version"),
        (state["model"]["name"], "stand-in", "lab", version),
    ]
    applications = [("App", "Version", "Status", "Scale", "Charm", "Address", "Message")]
    units = [("Unit", "Workload", "Agent", "Address", "Ports", "Message")]
    for name, app in sorted(state["applications"].items()):
        if not app["local"]:
            continue
        own = {key: unit for key, unit in state["units"].items() if unit["application"] == name}
        status = application_status(app, list(own.values()))
        scale = str(len(own))
        applications.append(
            (name, app["version"], status["status"], scale, app["charm"], "", status["message"])
        )
        for key, unit in sorted(own.items()):
            shown = f"{key}*" if app["leader"] == key else key
            agent, ports = unit["agent"]["status"], ",".join(unit["ports"])
            status = unit_status(unit)
            units.append(
                (shown, status["status"], agent, unit["address"], ports, status["message"])
            )
    return "\n\n".join(map(_columns, (model, applications, units))) + "\n"


def unit_status(unit: State) -> State:
    """Return what Juju shows as the workload's status: a failed hook hides the charm's own."""
    return unit["agent"] if unit["agent"]["status"] == "error" else unit["status"]


def application_status(app: State, units: Sequence[State]) -> State:
    """Return the application's own status, or its worst unit's while it has none."""
    if app["status"]["status"] != "unknown" or not units:
        return app["status"]
    return min(map(unit_status, units), key=lambda status: _SEVERITY.index(status["status"]))


def _columns(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)
