"""Tools about relations: which there are, who is in them, and their databags."""

from __future__ import annotations

import sys

from . import texts
from .arguments import Call, Tool
from .context import Context, ToolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def remote_application(context: Context, relation: dict[str, Any]) -> str:
    """Return the other application; in a peer relation that is our own."""
    others = [name for name in relation["endpoints"] if name != context.app]
    return others[0] if others else context.app


def relation_ids(context: Context, call: Call) -> list[str]:
    """List the relations of an endpoint, also the one that is being broken."""
    name = call.only()
    return [
        f"{name}:{number}"
        for number, relation in sorted(context.state["relations"].items())
        if relation["endpoints"].get(context.app) == name
    ]


def relation_list(context: Context, call: Call) -> Any:
    """List the remote units that are in the relation's scope, or name the application."""
    relation = context.relation(call.value("-r"))
    remote = remote_application(context, relation)
    if "--app" in call.switches:
        return remote
    return [unit for unit in relation["units"].get(remote, []) if unit != context.unit]


def relation_get(context: Context, call: Call) -> dict[str, str]:
    """Return a databag; that of the own application is for the leader alone."""
    relation = context.relation(call.value("-r"))
    key, entity = call.rest
    if entity == context.app and not context.is_leader and len(relation["endpoints"]) > 1:
        raise ToolError("permission denied")
    if entity.partition("/")[0] not in relation["endpoints"]:
        raise ToolError(f'"{entity}" is not in the relation: permission denied')
    databag = relation["data"].get(entity, {})
    return databag if key == "-" else databag.get(key, "")


def relation_set(context: Context, call: Call) -> None:
    """Change keys of the own databag from JSON on stdin; an empty value deletes."""
    relation = context.relation(call.value("-r"))
    owner = context.app if "--app" in call.switches else context.unit
    if owner == context.app and not context.is_leader:
        raise ToolError("cannot write relation settings: permission denied")
    databag = relation["data"].setdefault(owner, {})
    for key, value in texts.loads(sys.stdin.read()).items():
        if not isinstance(value, str):
            raise ToolError(f"{key}: {value!r}: expected a string")
        if value:
            databag[key] = value
        else:
            databag.pop(key, None)


def relation_model_get(context: Context, call: Call) -> dict[str, str]:
    """Return the remote model, which is this one unless the relation says otherwise."""
    relation = context.relation(call.value("-r"))
    return {"uuid": relation.get("remote-model", context.state["model"]["uuid"])}


TOOLS = {
    "relation-ids": Tool(relation_ids, "--format"),
    "relation-list": Tool(relation_list, "-r --format", "--app"),
    "relation-get": Tool(relation_get, "-r --format", "--app"),
    "relation-set": Tool(relation_set, "-r --file", "--app"),
    "relation-model-get": Tool(relation_model_get, "-r --format"),
}
