"""The emulated hook tools: where a dispatch finds them on its PATH, and who answers them.

As Juju's own they ask the agent. `answering` is that: a process of Python for each of 20 calls
would take half of a hook's CPU.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

from . import hooktools

PROGRAM = Path(__file__).with_name("hooktools.py")
# What these are given is not in their arguments, but in files that only the hook sees.
_BY_THEMSELVES = ("relation-set", "secret-add", "secret-set")
_WRAPPER = """\
#!/bin/sh
exec {python} -I -S -c '
import sys
sys.path.insert(0, "{library}")
from hooktools import main
sys.exit(main(sys.argv[1], sys.argv[2:]))
' "${{0##*/}}" "$@"
"""
# A hook runs one tool at a time.
_ASK = """\
#!/bin/sh
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


def install(folder: Path, python: Path) -> Path:
    """Install the tools into a new folder, run by `python`; return the first entry of PATH."""
    library = folder / "lib"
    library.mkdir(parents=True, exist_ok=True)
    shutil.copy(PROGRAM, library)
    # A hook sees the folder read-only, so the tools could not keep their bytecode themselves.
    subprocess.run([python, "-m", "compileall", "-q", str(library)], check=True)
    tools = folder / "bin"
    tools.mkdir(exist_ok=True)
    for name in hooktools.TOOLS:
        alone = name in _BY_THEMSELVES
        _script(tools / name, _WRAPPER.format(python=python, library=library) if alone else _ASK)
    _script(tools / "juju-log", _JUJU_LOG)
    return tools


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
                status, said = _call(hook, unit, *words)
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


def _call(hook: Path, unit: str, name: str, *arguments: str) -> tuple[int, str]:
    """Run a tool; an error of its own fails the hook that called it."""
    try:
        return hooktools.call(str(hook), unit, name, arguments)
    # As in Juju: a tool that fails ends with a status, and the agent goes on.
    except Exception as error:
        return 2, f"ERROR {name}: {error!r}"


def _script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
