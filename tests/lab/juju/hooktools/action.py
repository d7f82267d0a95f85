"""Tools about the action that is running; outside one they fail, as Juju's do."""

from __future__ import annotations

from .arguments import Call, Tool
from .context import Context, ToolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def running(context: Context) -> dict[str, Any]:
    """Return the record of the running action."""
    if "action" not in context.event:
        raise ToolError("not running an action")
    return context.own.setdefault("action", {"results": {}, "log": [], "failed": None})


def action_get(context: Context, call: Call) -> Any:
    """Return the parameters, or one of them; the agent validated them and filled defaults in."""
    running(context)
    parameters = context.event["action"]
    return parameters.get(call.rest[0]) if call.rest else parameters


def action_set(context: Context, call: Call) -> None:
    """Record results; ``a.b=v`` nests."""
    for argument in call.rest:
        path, _, value = argument.partition("=")
        *parents, key = path.split(".")
        place = running(context)["results"]
        for parent in parents:
            place = place.setdefault(parent, {})
        place[key] = value


def action_log(context: Context, call: Call) -> None:
    """Record a progress message."""
    running(context)["log"].append(" ".join(call.rest))


def action_fail(context: Context, call: Call) -> None:
    """Mark the action as failed."""
    running(context)["failed"] = " ".join(call.rest) or "action failed without reason given"


TOOLS = {
    "action-get": Tool(action_get, "--format"),
    "action-set": Tool(action_set),
    "action-log": Tool(action_log),
    "action-fail": Tool(action_fail),
}
