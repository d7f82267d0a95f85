"""The programs that quit proxies, each unit of them a process of a lab cluster."""

from __future__ import annotations

import re
import signal
import sys
from abc import ABC, abstractmethod
from pathlib import Path

import httpx2
import lab
import lab.tools
from lab import processes
from lab.juju import container
from lab.workload import Workload

from benchmarks.tables import CONTROLLER
from probe import connect

SOURCE = lab.tools.BENCHMARKS / "quitter"
"""Where the programs that stand beside istio-aux are built from."""
LEASES = "default"
"""Namespace of their Lease."""


def installed(argv: list[str], checkout: Path | None) -> list[str]:
    """The command line of `istio-aux`, run from another checkout with its own dependencies."""
    if not checkout:
        return argv
    python = Path(sys.executable).resolve()
    place = container.environment(checkout.resolve() / "workload", python)
    return [str(place / "bin/istio-aux"), *argv[1:]]


class Unit(ABC):
    """One process of a program.

    Attributes:
        name: of the program.
        process: the running one.
        answers: the URLs that can be read, by path.
    """

    name: str
    process: lab.Process
    answers: dict[str, str]

    @abstractmethod
    def start(self) -> None:
        """Start it, without waiting."""

    @property
    @abstractmethod
    def ready(self) -> bool:
        """Whether it has complete lists."""

    @abstractmethod
    def knows(self, pods: int) -> bool:
        """Whether it knows that so many pods run."""

    @property
    @abstractmethod
    def leads(self) -> bool:
        """Whether it acts."""

    def stop(self) -> None:
        """End it politely, so that its Lease is free."""
        if self.process.running:
            self.process.kill(signal.SIGTERM)
            self.process.wait(30)

    def await_pods(self, count: int, limit: float) -> None:
        """Return when it has complete lists, in which ``count`` pods run.

        Raises:
            TimeoutError: it does not, within ``limit`` seconds; ChildProcessError: it ended.
        """

        def complete() -> bool:
            self.process.check()
            return self.knows(count) and self.ready

        what = f"{self.name} to know {count} pods ({self.process.log})"
        lab.until(complete, timeout=limit, what=what)

    def get(self, path: str) -> str | None:
        """The answer; None when there is none, or it is no success."""
        try:
            with connect() as client:
                answer = client.get(self.answers[path], timeout=10)
        except httpx2.HTTPError:
            return None
        return answer.text if answer.status_code == 200 else None

    def metric(self, series: str) -> float:
        """The value of a series; -1: it is not there."""
        text = self.get("/metrics") or ""
        found = re.search(rf"^{re.escape(series)} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else -1


class IstioAux(Unit):
    """`istio-aux serve` under the rights that it ships with."""

    def __init__(self, workload: Workload, name: str, checkout: Path | None = None) -> None:
        """A workload that is deployed. ``checkout``: run the one that is there."""
        self.name = name
        self._workload, self._checkout = workload, checkout
        where = f"http://{workload.cluster.host}:{workload.status_port}"
        self.answers = {path: where + path for path in ("/readyz", "/metrics")}

    def start(self) -> None:
        """Start it, without waiting."""
        self._workload.start(installed(self._workload.argv, self._checkout))
        self.process = self._workload.process

    @property
    def ready(self) -> bool:
        """Whether it has complete lists."""
        return (self.get("/readyz") or "").strip() == "ok"

    def knows(self, pods: int) -> bool:
        """Whether it watches so many pods."""
        return self._workload.status().get("watched-pods") == pods

    @property
    def leads(self) -> bool:
        """Whether it acts."""
        return bool(self._workload.status().get("leader"))

    @property
    def unmeshed(self) -> int:
        """How many pods it knows that lack their sidecar; -1: it does not answer."""
        return self._workload.status().get("unmeshed-total", -1)


class GoProgram(Unit):
    """`bench-quitter`: a controller on controller-runtime, as an administrator."""

    def __init__(self, cluster: lab.Cluster, selector: str) -> None:
        """Build it, if need be."""
        self.name, self._cluster = CONTROLLER, cluster
        probes, metrics = (f"{cluster.host}:{processes.reserve_port()}" for _ in range(2))
        self.answers = {
            "/readyz": f"http://{probes}/readyz",
            "/metrics": f"http://{metrics}/metrics",
        }
        program = lab.tools.path("bench-quitter")
        self._argv = [program, cluster.kubeconfig, probes, metrics, selector, LEASES]

    def start(self) -> None:
        """Start it, without waiting."""
        self.process = self._cluster.spawn(f"bench-quitter-{processes.reserve_port()}", self._argv)

    @property
    def ready(self) -> bool:
        """Whether it has complete lists."""
        return self.get("/readyz") is not None

    def knows(self, pods: int) -> bool:  # noqa: ARG002
        """True: it tells no number, only whether its lists are complete."""
        return True

    @property
    def leads(self) -> bool:
        """Whether it acts."""
        return self.metric('leader_election_master_status{name="bench-quitter"}') == 1
