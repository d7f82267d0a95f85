"""What keeps a cluster running: a child process, which outlives its parent (`up`, playground)."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable

from lab import tools
from lab.clusters import Cluster

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


def instructions(cluster: Cluster, *more: str) -> str:
    """How to look at a cluster that stays, by `more` commands as well, and how to end it."""
    lines = (
        f"{cluster.name} (level {cluster.level}) stays. Look at it:",
        f"    export KUBECONFIG={cluster.kubeconfig}",
        f"    alias kubectl={tools.path('kubectl')}",
        "    kubectl get pods --all-namespaces",
        *(f"    {command}" for command in more),
        f"Logs of its components: {cluster.logs}",
        f"End it: make lab-down, or python -m lab down {cluster.name}",
    )
    return "\n".join(lines)
