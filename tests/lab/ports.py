"""Reserves TCP ports for one harness until it ends."""

from __future__ import annotations

import random
import socket
from typing import TYPE_CHECKING

from lab.waiting import PATIENCE, until

if TYPE_CHECKING:
    from lab import Process

RANGE = range(20_000, 30_000)
"""Below the ports of Services (30000) and those that Linux gives to connections (32768)."""


def reserve() -> int:
    """A port that no process listens on, and that no other harness gets. Raises OSError.

    A port that is found free and released is soon taken. So it stays bound by a socket that never
    listens: it refuses connections, and servers in Python and Go listen beside it (SO_REUSEADDR).
    """
    for port in random.sample(RANGE, len(RANGE)):
        taken = socket.socket()
        try:
            taken.bind(("", port))
        except OSError:
            taken.close()
            continue
        # Set earlier, it would let this socket bind a port that another harness has reserved.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.detach()  # Only the end of this process closes it.
        return port
    raise OSError(f"no TCP port is free from {RANGE.start} to {RANGE.stop - 1}")


def await_listener(process: Process, host: str, port: int, *, timeout: float = PATIENCE) -> None:
    """Return when a process takes connections. Raises ChildProcessError: it ended; TimeoutError."""

    def listens() -> bool:
        process.check()
        with socket.create_connection((host, port)):
            return True

    what = f"{process.name} to listen ({process.log})"
    until(listens, what=what, timeout=timeout, ignoring=(ConnectionError,))
