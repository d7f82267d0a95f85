"""What the lab cannot do on this machine, or was not asked well for."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TAIL = 20
"""Lines."""


class ToolError(Exception):
    """No bug of the lab; the message says in one line what is the matter."""


def run(
    argv: Sequence[str | Path], failure: type[Exception] = ChildProcessError, **options: Any
) -> str:
    """What a command prints. Raises ``failure`` with the end of what it said."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-TAIL:])
        command = " ".join(map(str, argv))
        raise failure(f"{command}: exit status {done.returncode}: {said or 'no output'}")
    return done.stdout
