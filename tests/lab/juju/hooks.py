"""The emulated hook tools: where a dispatch finds them on its PATH, and who answers them.

As Juju's own they ask the agent. `answering` is that: a process of Python for each of 20 calls
would take half of a hook's CPU.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from . import hooktools

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
    for name, text in {**dict.fromkeys(hooktools.TOOLS, _ASK), "juju-log": _JUJU_LOG}.items():
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
                status, said = hooktools.call(hook, unit, *words)
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
