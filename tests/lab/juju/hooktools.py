"""Hook tools of Juju 3.6, emulated: where a dispatch finds them on its PATH, and who answers them.

The charm calls these tools through ops 3.9, which chooses their arguments. As Juju's own they ask
the agent. `answering` is that, and `call` runs a tool with its arguments: a process of Python for
each of 20 calls would take half of a hook's CPU.

A hook's folder holds ``state.json`` (its working copy of the model's state), ``context.json`` (the
event), ``tools`` (one line a call), ``log`` (juju-log), and what a tool was given in a file or on
its stdin (``given-KEY``, ``given``). The agent promotes the copy when the hook succeeds.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

Flags = dict[str, str]


class ToolError(Exception):
    """A failure that the tool reports as ``ERROR ...`` on stderr with exit status 1."""


class Hook:
    """The state as one unit sees it during one hook."""

    def __init__(self, folder: Path, unit: str) -> None:
        self.folder, self.unit, self.app = folder, unit, unit.partition("/")[0]
        self.state: dict[str, Any] = json.loads((folder / "state.json").read_text())
        self.event: dict[str, Any] = json.loads((folder / "context.json").read_text())
        self.application = self.state["applications"][self.app]
        self.own = self.state["units"][unit]
        self.is_leader = unit in (self.application["leader"], self.application["deposed"])

    def relation(self, reference: str | None) -> dict[str, Any]:
        """The relation that ``NAME:3`` or ``3`` names, or the event's. Raises ToolError."""
        reference = reference or self.event.get("relation", "")
        relation = self.state["relations"].get(str(reference).rpartition(":")[2])
        if relation is None or self.app not in relation["endpoints"]:
            raise ToolError(f'invalid value "{reference}" for option -r: relation not found')
        return relation

    def databags(self, reference: str | None) -> dict[str, Any]:
        """A relation with its data, which Juju refuses of one that is gone (operator#1306)."""
        relation = self.relation(reference)
        if relation["gone"]:
            raise ToolError("permission denied (unauthorized access)")
        return relation

    def save(self) -> None:
        """Write the working copy back; the agent merges or drops it."""
        draft = self.folder / "state.json.new"
        draft.write_text(json.dumps(self.state))
        draft.rename(self.folder / "state.json")

    def given(self, name: str = "given") -> str:
        return (self.folder / name).read_text()

    def trace(self, tool: str) -> None:
        with (self.folder / "tools").open("a") as file:
            print(tool, file=file)


# What it does, its flags with a value, its switches.
Tool = tuple[Callable[[Hook, Flags, Sequence[str]], Any], str, str]


def is_leader(hook: Hook, flags: Flags, rest: Sequence[str]) -> bool:
    return hook.is_leader


def config_get(hook: Hook, flags: Flags, rest: Sequence[str]) -> Any:
    """Return the options that have a value; defaults were filled in by the agent."""
    return hook.application["config"]


def status_set(hook: Hook, flags: Flags, rest: Sequence[str]) -> None:
    record = {"status": rest[0], "message": " ".join(rest[1:])}
    if flags.get("--application") != "True":
        hook.own["status"] = record
    elif hook.is_leader:
        hook.application["status"] = record
    else:
        raise ToolError("this unit is not the leader")


def application_version_set(hook: Hook, flags: Flags, rest: Sequence[str]) -> None:
    """Accept the workload's version, which nothing here shows."""


def open_port(hook: Hook, flags: Flags, rest: Sequence[str]) -> None:
    """Open a port; the agent maps open ports onto the application's Service."""
    hook.own["ports"] = sorted({*hook.own["ports"], *rest})


def opened_ports(hook: Hook, flags: Flags, rest: Sequence[str]) -> list[str]:
    return hook.own["ports"]


def goal_state(hook: Hook, flags: Flags, rest: Sequence[str]) -> dict[str, Any]:
    """List the application's units; those on their way out are "dying"."""
    units = {
        name: {"status": unit["life"], "since": "2026-01-01T00:00:00Z"}
        for name, unit in hook.state["units"].items()
        if unit["application"] == hook.app
    }
    return {"units": units, "relations": {}}


def remote_application(hook: Hook, relation: dict[str, Any]) -> str:
    """Return the other application; in a peer relation that is our own."""
    others = [name for name in relation["endpoints"] if name != hook.app]
    return others[0] if others else hook.app


def relation_ids(hook: Hook, flags: Flags, rest: Sequence[str]) -> list[str]:
    """List the relations of an endpoint, also the one that is being broken."""
    (name,) = rest
    return [
        f"{name}:{number}"
        for number, relation in sorted(hook.state["relations"].items())
        if relation["endpoints"].get(hook.app) == name
    ]


def relation_list(hook: Hook, flags: Flags, rest: Sequence[str]) -> Any:
    """List the remote units that are in the relation's scope, or name the application."""
    relation = hook.relation(flags.get("-r"))
    remote = remote_application(hook, relation)
    if "--app" in flags:
        # Sometimes Juju does not know it when the relation ends (operator#1306).
        return hook.databags(flags.get("-r")) and remote
    return [unit for unit in relation["units"].get(remote, []) if unit != hook.unit]


def relation_get(hook: Hook, flags: Flags, rest: Sequence[str]) -> dict[str, str]:
    """Return a databag; that of the own application is for the leader alone."""
    relation = hook.databags(flags.get("-r"))
    _, entity = rest
    if entity == hook.app and not hook.is_leader and len(relation["endpoints"]) > 1:
        raise ToolError("permission denied")
    if entity.partition("/")[0] not in relation["endpoints"]:
        raise ToolError(f'"{entity}" is not in the relation: permission denied')
    return relation["data"].get(entity, {})


def relation_set(hook: Hook, flags: Flags, rest: Sequence[str]) -> None:
    """Change keys of the own databag from JSON on stdin; an empty value deletes."""
    relation = hook.databags(flags.get("-r"))
    owner = hook.app if "--app" in flags else hook.unit
    if owner == hook.app and not hook.is_leader:
        raise ToolError("cannot write relation settings: permission denied")
    databag = relation["data"].get(owner, {}) | json.loads(hook.given())
    relation["data"][owner] = {key: value for key, value in databag.items() if value}


def relation_model_get(hook: Hook, flags: Flags, rest: Sequence[str]) -> dict[str, str]:
    """Return the remote model, which is this one unless the relation says otherwise."""
    return {"uuid": hook.databags(flags.get("-r")).get("remote-model", hook.state["model"]["uuid"])}


def secret_add(hook: Hook, flags: Flags, rest: Sequence[str]) -> str:
    """Make a secret; the application's own need the leader."""
    owner = hook.unit if flags.get("--owner") == "unit" else hook.app
    if owner == hook.app and not hook.is_leader:
        raise ToolError("this unit is not the leader")
    label = flags.get("--label", "")
    known = hook.state["secrets"].values()
    if any(secret["label"] == label and secret["owner"] == owner for secret in known):
        raise ToolError(f'secret with label "{label}" already exists')
    name = os.urandom(10).hex()
    hook.state["secrets"][name] = {"owner": owner, "label": label, "content": _content(hook, rest)}
    return f"secret:{name}"


def secret_set(hook: Hook, flags: Flags, rest: Sequence[str]) -> None:
    """Give a secret other content, which its readers get by ``--refresh``; it has one revision."""
    name, *pairs = rest
    secret = hook.state["secrets"].get(name.removeprefix("secret:"), {"owner": ""})
    if secret["owner"] not in {hook.unit, hook.app if hook.is_leader else hook.unit}:
        raise ToolError(f'secret "{name}" not found')
    secret["content"] = _content(hook, pairs)


def _content(hook: Hook, pairs: Sequence[str]) -> dict[str, str]:
    """Read what ``KEY#file=PATH`` names."""
    keys = [each.partition("#file=")[0] for each in pairs]
    return {key: hook.given(f"given-{key}") for key in keys}


def secret_get(hook: Hook, flags: Flags, rest: Sequence[str]) -> dict[str, str]:
    """Return the content of a secret, which units of its application read by its id.

    By the label only its owner finds it: the unit, or the leader.
    """
    owners = {hook.unit, hook.app} if rest or hook.is_leader else {hook.unit}
    for name, secret in hook.state["secrets"].items():
        wanted = f"secret:{name}" in rest or (not rest and secret["label"] == flags["--label"])
        if wanted and secret["owner"] in owners:
            if secret["content"] is None:
                # The record is there, and its label taken (juju#20710, juju#22310).
                raise ToolError(f'secret "{name}-1" not found')
            return secret["content"]
    raise ToolError(f'secret "{"".join(rest) or flags["--label"]}" not found')


def _action(hook: Hook) -> dict[str, Any]:
    """Return the record of the running action; outside one Juju's tools fail, too."""
    if "action" not in hook.event:
        raise ToolError("not running an action")
    return hook.own.setdefault("action", {"results": {}, "failed": None})


def action_get(hook: Hook, flags: Flags, rest: Sequence[str]) -> Any:
    """Return the parameters; the agent filled defaults in."""
    _action(hook)
    return hook.event["action"]


def action_set(hook: Hook, flags: Flags, rest: Sequence[str]) -> None:
    _action(hook)["results"].update(argument.split("=", 1) for argument in rest)


def action_log(hook: Hook, flags: Flags, rest: Sequence[str]) -> None:
    """Accept a progress message, which nothing here shows."""
    _action(hook)


def action_fail(hook: Hook, flags: Flags, rest: Sequence[str]) -> None:
    _action(hook)["failed"] = " ".join(rest)


TOOLS: dict[str, Tool] = {
    "action-fail": (action_fail, "", ""),
    "action-get": (action_get, "--format", ""),
    "action-log": (action_log, "", ""),
    "action-set": (action_set, "", ""),
    "application-version-set": (application_version_set, "", ""),
    "config-get": (config_get, "--format", ""),
    "goal-state": (goal_state, "--format", ""),
    "is-leader": (is_leader, "--format", ""),
    "open-port": (open_port, "", ""),
    "opened-ports": (opened_ports, "--format", ""),
    "relation-get": (relation_get, "-r --format", "--app"),
    "relation-ids": (relation_ids, "--format", ""),
    "relation-list": (relation_list, "-r --format", "--app"),
    "relation-model-get": (relation_model_get, "-r --format", ""),
    "relation-set": (relation_set, "-r --file", "--app"),
    "secret-add": (secret_add, "--label --owner", ""),
    "secret-get": (secret_get, "--format --label", "--refresh"),
    "secret-set": (secret_set, "--owner", ""),
    "status-set": (status_set, "--application", ""),
}


def parse(arguments: Sequence[str], valued: str, switches: str) -> tuple[Flags, list[str]]:
    """Flags and what remains, as Juju's gnuflag does, up to a bare ``--``. Raises ToolError."""
    flags: Flags = {}
    rest: list[str] = []
    queue = list(arguments)
    while queue:
        argument = queue.pop(0)
        flag, equals, value = argument.partition("=")
        if argument == "--":
            return flags, rest + queue
        if argument == "-" or not argument.startswith("-"):
            rest.append(argument)
        elif flag in valued.split() and (equals or queue):
            flags[flag] = value if equals else queue.pop(0)
        elif argument in switches.split():
            flags[flag] = ""
        else:
            raise ToolError(f"flag provided but not defined: {argument}")
    return flags, rest


def call(folder: Path, unit: str, name: str, *arguments: str) -> tuple[int, str]:
    """Run a tool on a hook's copy, and trace it; returns the exit status and what to print."""
    hook = Hook(folder, unit)
    hook.trace(name)
    run, valued, switches = TOOLS[name]
    try:
        answer = run(hook, *parse(arguments, valued, switches))
    except ToolError as error:
        return 1, f"ERROR {error}"
    # As in Juju: a tool that fails ends with a status, and the agent goes on.
    except Exception as error:
        return 2, f"ERROR {name}: {error!r}"
    hook.save()
    if answer is None:
        return 0, ""
    return 0, answer if name == "secret-add" else json.dumps(answer)


# A hook runs one tool at a time. What is not in the arguments is put where the agent sees it, too.
_ASK = """\
#!/bin/sh
for each; do
    case ${0##*/}:$each in
        relation-set:-) cat >"$JUJU_CONTEXT_ID/given" ;;
        *"#file="*) cp "${each#*#file=}" "$JUJU_CONTEXT_ID/given-${each%%#*}" ;;
    esac
done
printf '%s\\0' "${0##*/}" "$@" >"$JUJU_CONTEXT_ID/ask"
{ read -r status; IFS= read -r answer; } <"$JUJU_CONTEXT_ID/answer"
[ "$status" = 0 ] || exec >&2
[ -z "$answer" ] || printf '%s\\n' "$answer"
exit "$status"
"""
_JUJU_LOG = """\
#!/bin/sh
printf '%s\\n' "$2: $4" >>"$JUJU_CONTEXT_ID/log"
"""


def install(folder: Path) -> None:
    """Install the tools into a folder."""
    for name, text in {**dict.fromkeys(TOOLS, _ASK), "juju-log": _JUJU_LOG}.items():
        script = folder / name
        script.write_text(text)
        script.chmod(0o755)


@contextlib.contextmanager
def answering(hook: Path, unit: str) -> Iterator[None]:
    """Answer the tools of a unit's hook, whose folder is `hook`, for the length of the block."""
    ask, answer = hook / "ask", hook / "answer"
    for pipe in (ask, answer):
        os.mkfifo(pipe)
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            if words := ask.read_bytes().decode().split("\0")[:-1]:
                status, said = call(hook, unit, *words)
                # The hook may have been killed meanwhile.
                with contextlib.suppress(BrokenPipeError):
                    answer.write_text(f"{status}\n{said}\n")

    thread = threading.Thread(target=serve, name=f"hook tools of {unit}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        while thread.is_alive():
            # Nobody asks any more, nor listens: to open a pipe wakes who waits at its other end.
            for pipe in (ask, answer):
                os.close(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))
            thread.join(0.01)
