"""Keeps ops from importing its tracing while no relation takes traces. Import it before ops.

Importing `ops_tracing`, with pydantic and the SDK of OpenTelemetry, takes a third of the CPU of all
imports. Without it, ops is as it is without its extra `tracing`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Final

# The relation is served by ops.
ENDPOINT: Final = "charm-tracing"


def is_related() -> bool:
    """Tell whether Juju lists such a relation, also while it ends; true if Juju does not answer."""
    command = ["relation-ids", ENDPOINT, "--format=json"]
    try:
        return bool(json.loads(subprocess.check_output(command)))  # noqa: S603
    except (OSError, subprocess.SubprocessError, ValueError):
        return True


if not is_related():
    sys.modules["ops_tracing"] = None  # pyright: ignore[reportArgumentType]  documented: ImportError
