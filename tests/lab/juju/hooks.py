"""Put the emulated hook tools where a dispatch finds them on its PATH."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from .hooktools import TOOLS

PROGRAM = Path(__file__).with_name("hooktools.py")
_WRAPPER = """\
#!/bin/sh
exec {python} -I -S -c '
import sys
sys.path.insert(0, "{library}")
from hooktools import main
sys.exit(main(sys.argv[1], sys.argv[2:]))
' "${{0##*/}}" "$@"
"""
# Most calls are juju-log; a shell script halves the time of a hook.
_JUJU_LOG = """\
#!/bin/sh
printf '%s\\n' "$2: $4" >>"$JUJU_CONTEXT_ID/log"
"""


def install(folder: Path, python: Path) -> Path:
    """Install the tools into `folder` and return their `bin`, the first entry of PATH.

    Args:
        folder: a new folder; the tools' own program is copied into it.
        python: the interpreter the tools run with.
    """
    library = folder / "lib"
    library.mkdir(parents=True, exist_ok=True)
    shutil.copy(PROGRAM, library)
    # A hook sees the folder read-only, so the tools could not keep their bytecode themselves.
    subprocess.run([python, "-m", "compileall", "-q", str(library)], check=True)
    tools = folder / "bin"
    tools.mkdir(exist_ok=True)
    for name in TOOLS:
        _script(tools / name, _WRAPPER.format(python=python, library=library))
    _script(tools / "juju-log", _JUJU_LOG)
    return tools


def _script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
