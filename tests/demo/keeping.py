"""DEMO_KEEP: the demo runs in a child process, which stays and holds the cluster afterwards."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable

import lab
import lab.tools

Report = Callable[[int], None]


def in_child(play: Callable[[Report], None]) -> int:
    """Run `play` in a session of its own and return the exit status that it reports.

    The child lives on after its report, for as long as `play` wants. One that ends without a
    report failed: 2. It is forked before any thread exists.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.setsid()

        def report(status: int) -> None:
            sys.stdout.flush()
            os.write(writing, bytes([status]))
            os.close(writing)
            # The terminal belongs to the caller again.
            nowhere = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(nowhere, descriptor)

        play(report)
        os._exit(0)
    os.close(writing)
    try:
        status = os.read(reading, 1)
    except KeyboardInterrupt:
        os.kill(child, signal.SIGINT)
        raise
    return status[0] if status else 2


def until_told(signals: Iterable[signal.Signals] = (signal.SIGTERM, signal.SIGINT)) -> None:
    """Sleep until this process gets one of the signals."""
    signals = set(signals)
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    signal.sigwait(signals)


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
