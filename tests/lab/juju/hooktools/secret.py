"""Tools about secrets: revisions, labels, tracking, grants."""

from __future__ import annotations

import os

from .arguments import Call, Tool
from .context import Context, ToolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FLAGS = "--label --description --expire --rotate --owner"
ROTATIONS = frozenset({"never", "hourly", "daily", "weekly", "monthly", "quarterly", "yearly"})


def bare(identifier: str) -> str:
    """Turn ``secret:ID``, ``secret://MODEL/ID`` or ``ID`` into ``ID``."""
    return identifier.removeprefix("secret:").rpartition("/")[2]


def owns(context: Context, secret: dict[str, Any]) -> bool:
    """Say whether the unit may change the secret: its own, or its application's as leader."""
    owner = secret["owner"]
    return owner == context.unit or (owner == context.app and context.is_leader)


def find(context: Context, identifier: str | None, label: str | None) -> str:
    """Return the bare id that an id or a label names, as the asking unit knows it."""
    secrets: dict[str, Any] = context.state["secrets"]
    if identifier is not None and bare(identifier) in secrets:
        return bare(identifier)
    for name, secret in secrets.items():
        labelled = secret["label"] == label and secret["owner"] in (context.unit, context.app)
        if (
            identifier is None
            and label
            and (labelled or secret["consumer-labels"].get(context.unit) == label)
        ):
            return name
    raise ToolError(f'secret "{identifier or label}" not found')


def owned(context: Context, identifier: str | None, label: str | None = None) -> dict[str, Any]:
    """Return a secret that the unit may change; to anybody else it does not exist."""
    name = find(context, identifier, label)
    secret = context.state["secrets"][name]
    if not owns(context, secret):
        raise ToolError(f'secret "{identifier or label}" not found')
    return secret


def content(arguments: tuple[str, ...]) -> dict[str, str]:
    """Read ``K#file=PATH`` at once: ops deletes the file when the tool returns."""
    pairs = (argument.partition("#file=") for argument in arguments)
    return {key: _read(path) for key, _, path in pairs}


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - pathlib takes long to import
        return file.read()


def describe(secret: dict[str, Any], call: Call) -> None:
    """Take over the metadata that the call gives."""
    for key in ("label", "description", "expire", "rotate"):
        if (value := call.value(f"--{key}")) is not None:
            secret[key] = value
    if secret["rotate"] not in ROTATIONS:
        raise ToolError(f'rotate policy "{secret["rotate"]}" not valid')


def secret_add(context: Context, call: Call) -> str:
    """Make a secret with its first revision; the application's own need the leader."""
    owner = context.unit if call.value("--owner") == "unit" else context.app
    if owner == context.app and not context.is_leader:
        raise ToolError("this unit is not the leader")
    label = call.value("--label")
    known = context.state["secrets"].values()
    if label and any(s["label"] == label and s["owner"] == owner for s in known):
        raise ToolError(f'secret with label "{label}" already exists')
    secret = {
        "owner": owner,
        "label": "",
        "description": "",
        "expire": "",
        "rotate": "never",
        "revisions": {"1": content(call.rest)},
        "latest": 1,
        "tracked": {},
        "consumer-labels": {},
        "grants": [],
    }
    describe(secret, call)
    name = os.urandom(10).hex()
    context.state["secrets"][name] = secret
    return f"secret:{name}"


def secret_get(context: Context, call: Call) -> dict[str, str]:
    """Return the tracked revision; peek shows the latest once, refresh moves on to it."""
    identifier, label = (call.rest[0] if call.rest else None), call.value("--label")
    secret = context.state["secrets"][find(context, identifier, label)]
    readers = {secret["owner"], *(grant["to"] for grant in secret["grants"])}
    if not readers & {context.app, context.unit}:
        raise ToolError("permission denied")
    if identifier and label:
        secret["consumer-labels"][context.unit] = label
    latest = secret["latest"]
    if "--refresh" in call.switches:
        secret["tracked"][context.unit] = latest
    tracked = secret["tracked"].setdefault(context.unit, latest)
    return secret["revisions"][str(latest if "--peek" in call.switches else tracked)]


def secret_info_get(context: Context, call: Call) -> dict[str, Any]:
    """Return the metadata of a secret that the unit may change."""
    identifier, label = (call.rest[0] if call.rest else None), call.value("--label")
    secret = owned(context, identifier, label)
    info = {"revision": secret["latest"], "label": secret["label"], "rotation": secret["rotate"]}
    info["owner"] = "application" if secret["owner"] == context.app else "unit"
    info["description"] = secret["description"]
    if secret["expire"]:
        info["expiry"] = secret["expire"]
    return {find(context, identifier, label): info}


def secret_set(context: Context, call: Call) -> None:
    """Change metadata; with content, add a revision."""
    identifier, *pairs = call.rest
    secret = owned(context, identifier)
    describe(secret, call)
    if pairs:
        secret["latest"] += 1
        secret["revisions"][str(secret["latest"])] = content(tuple(pairs))


def secret_remove(context: Context, call: Call) -> None:
    """Remove one revision, or the secret with all of them.

    Juju looks only when it commits the hook: what is not there, or is not the unit's to remove,
    fails the hook after the charm has ended (ops Secret.remove_revision, juju#19036).
    """
    identifier, revision = call.only(), call.value("--revision")
    try:
        secret = owned(context, identifier)
    except ToolError as error:
        context.state["refused"] = f"removing secrets: {error}"
        return
    if revision and secret["revisions"].pop(revision, None) is None:
        name = bare(identifier)
        context.state["refused"] = (
            f'removing secrets: secret revision "{name}/{revision}" not found'
        )
    elif revision is None or not secret["revisions"]:
        del context.state["secrets"][bare(identifier)]


def secret_grant(context: Context, call: Call) -> None:
    """Let the remote application of a relation, or one of its units, read the secret."""
    secret = owned(context, call.only())
    relation = context.relation(call.value("--relation", "-r"))
    remotes = [name for name in relation["endpoints"] if name != context.app]
    reader = call.value("--unit") or (remotes or [context.app])[0]
    secret["grants"].append({"to": reader, "relation": relation["id"]})


def secret_revoke(context: Context, call: Call) -> None:
    """Withdraw the grants that the flags select."""
    secret = owned(context, call.only())
    relation, reader = call.value("--relation", "-r"), call.value("--app", "--unit")
    secret["grants"] = [
        grant
        for grant in secret["grants"]
        if (relation and str(grant["relation"]) != relation) or (reader and grant["to"] != reader)
    ]


def secret_ids(context: Context, call: Call) -> str:
    """List the secrets that the unit may change, one a line: the format `smart` of a list."""
    secrets = context.state["secrets"].items()
    return "\n".join(name for name, secret in secrets if owns(context, secret))


TOOLS = {
    "secret-add": Tool(secret_add, FLAGS),
    "secret-get": Tool(secret_get, "--format --label", "--refresh --peek"),
    "secret-info-get": Tool(secret_info_get, "--format --label"),
    "secret-set": Tool(secret_set, FLAGS),
    "secret-remove": Tool(secret_remove, "--revision"),
    "secret-grant": Tool(secret_grant, "--relation -r --unit"),
    "secret-revoke": Tool(secret_revoke, "--relation -r --app --unit"),
    "secret-ids": Tool(secret_ids),
}
