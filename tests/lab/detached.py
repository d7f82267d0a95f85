"""What keeps a cluster running: a child process, which outlives its parent (`up`, playground)."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from lab import Cluster, tools

# Lets the caller go, and returns when this process is told to end.
Stay = Callable[[], None]


def in_child(play: Callable[[Stay], None]) -> int:
    """Run `play` in a session of its own; return 0 once it stays, 2 if it ends before.

    The child lives on until it gets a signal. It is forked before any thread exists.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.setsid()
        play(lambda: _stay(writing))
        os._exit(0)
    os.close(writing)
    try:
        stays = os.read(reading, 1)
    except KeyboardInterrupt:
        os.kill(child, signal.SIGINT)
        raise
    return 0 if stays else 2


def _stay(writing: int) -> None:
    told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: told.set())
    sys.stdout.flush()
    os.write(writing, b"1")
    os.close(writing)
    # The terminal belongs to the caller again.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    told.wait()


def instructions(cluster: Cluster, *more: str, program: Path | None = None) -> str:
    """What to paste, what to try then (`more`), and how to end a cluster that stays."""
    # On PATH, as an alias has no completion; last, as beside the program is a Python.
    last = f":{program.parent}" if program else ""
    lines = (
        f"{cluster.name} (level {cluster.level}) stays. Paste:\n",
        f"export KUBECONFIG={cluster.kubeconfig}",
        f'export PATH={tools.path("kubectl").parent}:"$PATH"{last}',
        "\nThen try:\n\nkubectl get pods --all-namespaces",
        *more,
        f"\nLogs of its components: {cluster.logs}",
        f"End it: make lab-down, or python -m lab down {cluster.name}",
    )
    return "\n".join(lines)
