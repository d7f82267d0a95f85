"""The programs that quit proxies, each a process of a lab cluster; one of them runs at a time."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Protocol

import httpx2
import lab
import lab.tools
from lab import ports
from lab.juju import image
from lab.workload import Workload

from benchmarks.numbers import CONTROLLER, FLOOR
from probe import connect

SOURCE = lab.tools.BENCHMARKS / "quitter"
"""Where the programs that stand beside istio-aux are built from."""


def installed(argv: list[str], checkout: Path | None) -> list[str]:
    """The command line of `istio-aux`, run from another checkout with its own dependencies."""
    if not checkout:
        return argv
    python = Path(sys.executable).resolve()
    place = image.environment(checkout.resolve() / "workload", python)
    return [str(place / "bin/istio-aux"), *argv[1:]]


class Quitter(Protocol):
    """A program that quits the proxies of finished pods in selected namespaces."""

    name: str

    @property
    def process(self) -> lab.Process:
        """The running process."""
        ...

    def start(self) -> None:
        """Start it, without waiting."""
        ...

    def stop(self) -> None:
        """End it."""
        ...

    def await_pods(self, count: int, limit: float) -> None:
        """Return when it knows the pods, of which ``count`` run.

        Raises:
            TimeoutError: it does not, within ``limit`` seconds; ChildProcessError: it ended.
        """
        ...


class IstioAux:
    """`istio-aux serve` under the rights that it ships with."""

    def __init__(self, workload: Workload, name: str, checkout: Path | None = None) -> None:
        """Prepare. ``checkout``: run the workload that is there, with its own dependencies."""
        self.name, self.kubeconfig = name, workload.kubeconfig
        self._workload = workload
        self._argv = installed(workload.argv, checkout)

    @property
    def process(self) -> lab.Process:
        """The running process."""
        return self._workload.process

    def start(self) -> None:
        """Start it, without waiting."""
        self._workload.start(self._argv)

    def stop(self) -> None:
        """End it."""
        self._workload.stop()

    def await_pods(self, count: int, limit: float) -> None:
        """Return when it watches so many pods, and misses no list."""
        self._workload.await_ready(limit)
        lab.until(
            lambda: self._workload.status().get("watched-pods") == count,
            timeout=limit,
            what=f"{self.name} to watch {count} pods ({self.process.log})",
        )
        lab.until(
            lambda: self._workload.get("/readyz")[1].strip() == "ok",
            timeout=limit,
            what=f"{self.name} to have every list ({self.process.log})",
        )


class GoProgram:
    """`bench-quitter`: a controller on controller-runtime, or the leanest client."""

    def __init__(
        self, cluster: lab.Cluster, selector: str, kubeconfig: Path | None = None, *, floor: int = 0
    ) -> None:
        """Build it, if need be. ``floor``: the leanest client, with so many quits at once.

        Without a ``kubeconfig`` it is an administrator.
        """
        self.name = FLOOR if floor else CONTROLLER
        self._cluster, self._address = cluster, f"{cluster.host}:{ports.reserve()}"
        mode = ["-floor", str(floor)] if floor else []
        program = lab.tools.path("bench-quitter")
        self._argv = [program, *mode, kubeconfig or cluster.kubeconfig, self._address, selector]
        self._process: lab.Process | None = None

    @property
    def process(self) -> lab.Process:
        """The running process."""
        assert self._process, f"{self.name} was never started"
        return self._process

    def start(self) -> None:
        """Start it, without waiting."""
        self._process = self._cluster.spawn("bench-quitter", self._argv)

    def stop(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait(30)

    def await_pods(self, count: int, limit: float) -> None:
        """Return when its caches have all pods and namespaces."""

        def synced() -> bool:
            self.process.check()
            with connect() as client:
                return client.get(f"http://{self._address}/readyz", timeout=5).status_code == 200

        what = f"{self.name} to know {count} pods ({self.process.log})"
        lab.until(synced, timeout=limit, what=what, ignoring=(httpx2.HTTPError,))
