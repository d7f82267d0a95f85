"""Tools about the unit and its application: configuration, leadership, status, ports, network."""

from __future__ import annotations

from .arguments import Call, Tool
from .context import Context, ToolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STATUSES = frozenset({"active", "blocked", "maintenance", "waiting"})


def is_leader(context: Context, call: Call) -> bool:
    """Say whether the unit is the leader."""
    return context.is_leader


def config_get(context: Context, call: Call) -> Any:
    """Return one option or all that have a value; defaults were filled in by the agent."""
    config = context.application["config"]
    return config.get(call.rest[0]) if call.rest else config


def status_set(context: Context, call: Call) -> None:
    """Set the unit's status, or the application's when the unit leads."""
    status, *message = call.rest
    if status not in STATUSES:
        raise ToolError(f'invalid status "{status}", expected one of {sorted(STATUSES)}')
    record = {"status": status, "message": " ".join(message)}
    if call.value("--application") == "True":
        if not context.is_leader:
            raise ToolError("this unit is not the leader")
        context.application["status"] = record
    else:
        context.own["status"] = record


def status_get(context: Context, call: Call) -> dict[str, Any]:
    """Return the status with its (always empty) data."""
    if call.value("--application") != "true":
        return {**context.own["status"], "status-data": {}}
    if not context.is_leader:
        raise ToolError("finding application status: this unit is not the leader")
    return {"application-status": {**context.application["status"], "status-data": {}, "units": {}}}


def application_version_set(context: Context, call: Call) -> None:
    """Set the workload's version."""
    context.application["version"] = call.only()


def open_port(context: Context, call: Call) -> None:
    """Open a port; the agent maps open ports onto the application's Service."""
    context.own["ports"] = sorted({*context.own["ports"], call.only()})


def close_port(context: Context, call: Call) -> None:
    """Close a port; one that is not open stays closed."""
    context.own["ports"] = sorted({*context.own["ports"]} - {call.only()})


def opened_ports(context: Context, call: Call) -> list[str]:
    """List the open ports."""
    return context.own["ports"]


def goal_state(context: Context, call: Call) -> dict[str, Any]:
    """List the application's units; those on their way out are "dying"."""
    units = {
        name: {"status": unit["life"], "since": "2026-01-01T00:00:00Z"}
        for name, unit in context.state["units"].items()
        if unit["application"] == context.app
    }
    return {"units": units, "relations": {}}


def network_get(context: Context, call: Call) -> dict[str, Any]:
    """Return the unit's one address, whatever the binding."""
    if relation := call.value("-r"):
        context.relation(relation)
    address = context.own["address"]
    bind = {"hostname": "", "value": address, "cidr": f"{address}/32"}
    return {
        "bind-addresses": [{"interface-name": "eth0", "addresses": [bind]}],
        "ingress-addresses": [address],
        "egress-subnets": [f"{address}/32"],
    }


def resource_get(context: Context, call: Call) -> str:
    """Return the path of a resource that the deployment was given."""
    name = call.only()
    if (path := context.application["resources"].get(name)) is None:
        raise ToolError(f'could not download resource: resource "{name}" not found')
    return path


TOOLS = {
    "is-leader": Tool(is_leader, "--format"),
    "config-get": Tool(config_get, "--format"),
    "status-set": Tool(status_set, "--application"),
    "status-get": Tool(status_get, "--application --format", "--include-data"),
    "application-version-set": Tool(application_version_set),
    "open-port": Tool(open_port, "--endpoints"),
    "close-port": Tool(close_port, "--endpoints"),
    "opened-ports": Tool(opened_ports, "--format", "--endpoints"),
    "goal-state": Tool(goal_state, "--format"),
    "network-get": Tool(network_get, "-r --format"),
    "resource-get": Tool(resource_get),
}
