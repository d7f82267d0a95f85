"""Run one hook tool: ``python3 -I -S -m hooktools NAME ARGUMENT...``."""

from __future__ import annotations

import sys

from . import action, relation, secret, texts, unit
from .arguments import Call, Tool
from .context import Context, ToolError

# Plain answers, whatever --format says; the rest is JSON.
PLAIN = frozenset({"resource-get", "secret-add", "secret-ids"})


def not_emulated(context: Context, call: Call) -> None:
    """Fail: ops would turn a tool that is absent into FileNotFoundError."""
    raise ToolError("not emulated by the stand-in for Juju")


UNSUPPORTED = Tool(not_emulated, "--format --file -s", "--now")
TOOLS: dict[str, Tool] = {
    **action.TOOLS,
    **relation.TOOLS,
    **secret.TOOLS,
    **unit.TOOLS,
    "credential-get": UNSUPPORTED,
    "juju-reboot": UNSUPPORTED,
    "state-delete": UNSUPPORTED,
    "state-get": UNSUPPORTED,
    "state-set": UNSUPPORTED,
    "storage-add": UNSUPPORTED,
    "storage-get": UNSUPPORTED,
    "storage-list": UNSUPPORTED,
}


def main(name: str, arguments: list[str]) -> int:
    """Run the tool on the hook's working copy, append to the trace, return the exit status."""
    context = Context.from_environment()
    status, error = 0, ""
    try:
        context.check(name)
        tool = TOOLS[name]
        answer = tool.run(context, tool.parse(arguments))
        context.save()
        if answer is not None:
            print(answer if name in PLAIN else texts.dumps(answer))
    except ToolError as failure:
        status, error = 1, f"ERROR {failure}"
        print(error, file=sys.stderr)
    context.trace({"tool": name, "arguments": arguments, "status": status, "error": error})
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
