"""Units of the programs that run in a large cluster: several processes, of which one leads."""

from __future__ import annotations

import re
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import httpx2
import lab
import lab.tools
from lab import ports
from lab.workload import Workload

from benchmarks.quitters import installed
from probe import connect


class Unit(ABC):
    """One process of a program.

    Attributes:
        process: the running one.
        answers: the URLs that are measured, by path.
    """

    process: lab.Process
    answers: dict[str, str]

    @abstractmethod
    def start(self) -> None:
        """Start it, without waiting."""

    @property
    @abstractmethod
    def ready(self) -> bool:
        """Whether it has complete lists."""

    @property
    @abstractmethod
    def leads(self) -> bool:
        """Whether it acts."""

    @property
    @abstractmethod
    def unmeshed(self) -> int:
        """How many pods it knows that lack their sidecar; -1: it does not answer."""

    def end(self, number: signal.Signals) -> None:
        """Send a signal, without waiting."""
        self.process.kill(number)

    def stop(self) -> None:
        """End it politely, so that its Lease is free."""
        if self.process.running:
            self.end(signal.SIGTERM)
            self.process.wait(30)

    def get(self, path: str) -> str:
        """The answer; empty when there is none, or it is no success."""
        try:
            with connect() as client:
                answer = client.get(self.answers[path], timeout=10)
        except httpx2.HTTPError:
            return ""
        return answer.text if answer.status_code == 200 else ""

    def seconds(self, path: str) -> float:
        """How long it takes to answer, on a new connection."""
        began = time.monotonic()
        with connect() as client:
            client.get(self.answers[path], timeout=60)
        return time.monotonic() - began

    def metric(self, series: str) -> float:
        """The value of a series; -1: it is not there."""
        found = re.search(rf"^{re.escape(series)} (\S+)$", self.get("/metrics"), re.MULTILINE)
        return float(found[1]) if found else -1


class OurUnit(Unit):
    """`istio-aux serve`."""

    def __init__(self, workload: Workload, checkout: Path | None) -> None:
        """A workload that is deployed. ``checkout``: run the one that is there."""
        self._workload, self._checkout = workload, checkout
        where = f"http://{workload.cluster.host}:{workload.status_port}"
        self.answers = {path: where + path for path in ("/readyz", "/metrics", "/status")}

    def start(self) -> None:
        """Start it, without waiting."""
        self._workload.start(installed(self._workload.argv, self._checkout))
        self.process = self._workload.process

    @property
    def ready(self) -> bool:
        """Whether it has complete lists."""
        return self.get("/readyz").strip() == "ok"

    @property
    def leads(self) -> bool:
        """Whether it acts."""
        return bool(self._workload.status().get("leader"))

    @property
    def unmeshed(self) -> int:
        """How many pods it knows that lack their sidecar."""
        return self._workload.status().get("unmeshed-total", -1)


class YardstickUnit(Unit):
    """`bench-quitter` with a cache that keeps little, as an administrator."""

    def __init__(self, cluster: lab.Cluster, selector: str, lease: str) -> None:
        """``lease``: the namespace of its Lease."""
        self._cluster = cluster
        probes, metrics = (f"{cluster.host}:{ports.reserve()}" for _ in range(2))
        self.answers = {
            "/readyz": f"http://{probes}/readyz",
            "/metrics": f"http://{metrics}/metrics",
        }
        program = lab.tools.path("bench-quitter")
        large = ["-lease", lease, "-metrics", metrics]
        self._argv = [program, *large, cluster.kubeconfig, probes, selector]

    def start(self) -> None:
        """Start it, without waiting."""
        self.process = self._cluster.spawn(f"bench-quitter-{ports.reserve()}", self._argv)

    @property
    def ready(self) -> bool:
        """Whether it has complete lists."""
        return bool(self.get("/readyz"))

    @property
    def leads(self) -> bool:
        """Whether it acts."""
        return self.metric('leader_election_master_status{name="bench-quitter"}') == 1

    @property
    def unmeshed(self) -> int:
        """How many pods it knows that lack their sidecar."""
        return int(self.metric("bench_unmeshed_pods"))


def ours(workload: Workload, count: int, checkout: Path | None) -> list[Unit]:
    """So many units of a workload, which is deployed."""
    others = [workload.replica(f"{workload.name}-{number}") for number in range(1, count)]
    return [OurUnit(one, checkout) for one in (workload, *others)]


def yardsticks(cluster: lab.Cluster, count: int, selector: str, lease: str) -> Sequence[Unit]:
    """So many units of the yardstick."""
    return [YardstickUnit(cluster, selector, lease) for _ in range(count)]
