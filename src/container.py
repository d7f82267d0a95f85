"""The workload's container, as Pebble answers about it: every way in which that fails is one kind.

ops wraps only what fails while a request is sent (ops.pebble.Client._request_raw). A Pebble that
hangs or closes the connection while it answers raises errors of `http.client` and of sockets.
"""

from __future__ import annotations

from http.client import HTTPException
from typing import Final

import ops

from cluster import ReconcileError

CONTAINER: Final = "istio-aux"
# `ops.pebble.Error` has those of a change that failed, and of an answer that cannot be read, too.
PEBBLE_FAILS: Final = (ops.pebble.Error, OSError, HTTPException)


def answers(container: ops.Container) -> bool:
    """Tell whether Pebble answers; it may hang or close the connection later in the same event."""
    try:
        return container.can_connect()
    except PEBBLE_FAILS:
        return False


def read(container: ops.Container, path: str) -> str:
    """Return the content of a file, empty if there is none.

    Raises:
        PEBBLE_FAILS: it cannot be read.
    """
    try:
        with container.pull(path) as file:
            return file.read()
    except ops.pebble.PathError as error:
        if error.kind == "not-found":
            return ""
        raise


def trouble(error: Exception) -> ReconcileError:
    """Return an error of `PEBBLE_FAILS` in one line, as of a container that restarts."""
    lines = str(error).splitlines() or [type(error).__name__]
    # For a service that ends at once, Pebble indents its last output (pebble servstate handlers).
    if said := [line.strip() for line in lines if line.startswith("    ")]:
        return ReconcileError(f"workload does not start: {said[-1]}")
    # The first line of a change that failed only says that it did.
    why = next((line for line in lines if line.startswith("- ")), lines[0])
    return ReconcileError(f"container {CONTAINER}: {why.removeprefix('- ')}")
