"""DEMO_KEEP: the demo runs in a child process, which keeps the cluster running."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable

import lab
import lab.tools

# Tells the caller the exit status, and returns when this process is told to end.
Stay = Callable[[int], None]


def in_child(play: Callable[[Stay], None]) -> int:
    """Run `play` in a session of its own and return the exit status that it tells.

    The child lives on until it gets a signal. One that ends without a status failed: 2. It is
    forked before any thread exists.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.setsid()
        play(lambda status: _stay(status, writing))
        os._exit(0)
    os.close(writing)
    try:
        status = os.read(reading, 1)
    except KeyboardInterrupt:
        os.kill(child, signal.SIGINT)
        raise
    return status[0] if status else 2


def _stay(status: int, writing: int) -> None:
    told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: told.set())
    sys.stdout.flush()
    os.write(writing, bytes([status]))
    os.close(writing)
    # The terminal belongs to the caller again.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    told.wait()


def instructions(cluster: lab.Cluster) -> str:
    """How to look at what was left running, and how to end it."""
    return f"""
The cluster stays. Look at it:
    export KUBECONFIG={cluster.kubeconfig}
    alias kubectl={lab.tools.path("kubectl")}
    kubectl get pods --all-namespaces
    kubectl logs --namespace with mnist-worker-0 --container istio-proxy
Logs of its components: {cluster.logs}
End it: make lab-down
"""
