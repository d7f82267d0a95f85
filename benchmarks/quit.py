"""How fast proxies of finished pods are freed, and what watching costs; README.md says how.

A real etcd and API server, a lean stand-in for the kubelet, and one program after another that
quits: a controller on controller-runtime, then the workload as it ships. Nothing here is asserted:
numbers stand beside targets.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lab
from lab import creation, toolchain
from lab.fixtures import make_namespace
from lab.workload import Workload
from lightkube.resources.core_v1 import Namespace, Node

from benchmarks import driver as driving
from benchmarks import machine, report
from benchmarks.conversation import MeasurementError
from benchmarks.driver import Driver
from benchmarks.numbers import (
    BEFORE,
    OURS,
    PROGRAM,
    Flatness,
    Freed,
    Latency,
    Measured,
    Results,
    Sizes,
    Watched,
)
from benchmarks.processes import Meter, Usage, usage
from benchmarks.quitters import SOURCE, Controller, IstioAux, Quitter

NAME = "istio-aux-bench"
"""Of the node, and of the namespace of the pods."""

SELECTOR = "bench.istio-aux.io/pods=yes"
"""Not the default one: other workloads of the cluster, if any, leave these pods alone."""

WHOLE = Sizes(
    start=1000, steady=1000, rate=50.0, again=1000, late=1000,
    watched=(1000, 5000, 10000), events=1000, event_rate=200.0, idle=2.0, settle=16.0, limit=120.0,
    exit_delay=1.0,  # A real kubelet takes 0.8 to 1.1.
)  # fmt: skip
QUICK = Sizes(
    start=5, steady=5, rate=50.0, again=5, late=5,
    watched=(10,), events=10, event_rate=200.0, idle=0.2, settle=0.2, limit=60.0,
    exit_delay=0.05,
)  # fmt: skip


def main(sizes: Sizes, results: Path | None, before: Path | None) -> None:
    """Measure on a cluster of its own, print the table, and keep the files in ``results``.

    ``before``: a checkout whose workload is measured as well.

    Raises:
        MeasurementError, TimeoutError, ChildProcessError: it could not be measured.
    """
    with lab.cluster("api") as cluster:
        measured = measure(cluster, sizes, alone=True, before=before)
    print(report.markdown(measured))
    if results:
        report.write(measured, results)


def measure(
    cluster: lab.Cluster, sizes: Sizes, *, alone: bool, before: Path | None = None
) -> Results:
    """All numbers. ``alone``: nobody else uses the cluster, so what only disturbs may be ended.

    Raises as `main` does.
    """
    on = {
        **machine.describe(),
        "Go": toolchain.version(SOURCE).removeprefix("go"),
        "controller-runtime": machine.pinned(SOURCE, "sigs.k8s.io/controller-runtime"),
    }
    with (
        _played(cluster, sizes.exit_delay, alone=alone) as driver,
        tempfile.TemporaryDirectory() as folder,
    ):
        quitters: list[Quitter] = [Controller(cluster, SELECTOR)]
        for name, checkout in ((BEFORE, before), (OURS, None)):
            if checkout or name is OURS:
                place = Path(folder) / name.replace(" ", "-")
                app = f"bench-{place.name}"
                workload = Workload(cluster, place, name=app, model=app, selector=SELECTOR)
                quitters.append(IstioAux(workload, name, checkout))
        return _Bench(cluster, driver, sizes, quitters).run(on)


@contextmanager
def _played(cluster: lab.Cluster, exit_delay: float, *, alone: bool) -> Generator[Driver]:
    """The namespace of the pods and the node that plays them; both gone after the block."""
    key, _, value = SELECTOR.partition("=")
    with cluster.client() as client:
        make_namespace(client, NAME, {key: value})
        if alone:
            # It follows every pod and would see to it that a node without a lease loses them.
            cluster.process("kube-controller-manager").kill()
        try:
            with driving.running(cluster, NAME, NAME, exit_delay) as driver:
                yield driver
        finally:
            client.delete(Node, NAME)
            client.delete(Namespace, NAME)


class _Bench:
    """The scenes, each played for every program before the next one."""

    def __init__(
        self, cluster: lab.Cluster, driver: Driver, sizes: Sizes, quitters: Sequence[Quitter]
    ) -> None:
        self._driver, self._sizes, self._cluster = driver, sizes, cluster
        self._quitters = quitters
        self._lab = {
            "kube-apiserver": cluster.process("kube-apiserver").pid,
            "etcd": cluster.process("etcd").pid,
            "kubelet stand-in": driver.pid,
        }

    def run(self, on: dict[str, str]) -> Results:
        """Measure everything."""
        quits = [self._quits(quitter, number) for number, quitter in enumerate(self._quitters)]
        watched: list[list[Watched]] = [[] for _ in self._quitters]
        late: list[Usage] = []
        for size in self._sizes.watched:
            made = size - max((known for known in self._sizes.watched if known < size), default=0)
            self._driver.create(f"watched-{size}", made, "running")
            for number, quitter in enumerate(self._quitters):
                with self._watching(quitter, size, made) as found:
                    watched[number].append(found)
                    if size == self._sizes.watched[-1]:
                        late.append(self._late(quitter, number, size))
        return Results(
            sizes=self._sizes,
            machine=on,
            programs=[
                Measured(
                    name=quitter.name, freed=freed, latency=latency, flatness=rows,
                    watched=watched[number], late=late[number],
                )
                for number, (quitter, (freed, latency, rows)) in enumerate(
                    zip(self._quitters, quits, strict=True)
                )
            ],
        )  # fmt: skip

    def _quits(self, quitter: Quitter, number: int) -> tuple[Freed, Latency, list[Flatness]]:
        """Quits at start-up, at a steady rate, and again for what they leave behind."""
        sizes = self._sizes
        freed = self._start_up(quitter, number)
        rows = [("after the first quits, at start-up", sizes.start, self._settled(quitter))]
        latency = self._steady(quitter, f"steady-{number}", sizes.steady)
        rows.append(("after those of the latency", sizes.steady, self._settled(quitter)))
        self._steady(quitter, f"again-{number}", sizes.again)
        rows.append(("after as many again", sizes.again, self._settled(quitter)))
        quitter.stop()
        self._clear()
        return freed, latency, [Flatness(when, quits, used) for when, quits, used in rows]

    def _start_up(self, quitter: Quitter, number: int) -> Freed:
        """Pods that finished while nobody looked, then the program starts."""
        count, prefix = self._sizes.start, f"start-{number}"
        _say(f"{quitter.name}: {count} finished pods, then it starts")
        self._driver.create(prefix, count, "finished", light=True)
        meter, began, before = Meter(self._lab), time.time(), self._driver.execs
        quitter.start()
        meter.add(PROGRAM, quitter.process.pid)
        reply = self._exits(quitter, prefix, count)
        cpu = meter.read()
        ended = sorted(at - began for at in reply["ended"])
        return Freed(
            seconds=ended[-1],
            told=sorted(at - began for at in reply["told"]),
            ended=ended,
            execs=reply["execs"] - before,
            cpu=cpu,
        )

    def _steady(self, quitter: Quitter, prefix: str, count: int, running: int = 0) -> Latency:
        """Pods finish at a steady rate, beside others that run on."""
        rate = self._sizes.rate
        _say(f"{quitter.name}: {count} pods finish, {rate:g} a second")
        self._driver.create(prefix, count, "running", light=True)
        quitter.await_pods(count + running, self._sizes.limit)
        meter = Meter({PROGRAM: quitter.process.pid, **self._lab})
        times = self._driver.patch(prefix, count, "finish", rate=rate)
        cpu = meter.read()
        told = self._exits(quitter, prefix, count)["told"]
        return Latency(
            from_sent=[end - start for start, end in zip(times["sent"], told, strict=True)],
            from_stored=[end - start for start, end in zip(times["stored"], told, strict=True)],
            seconds=times["stored"][-1] - times["sent"][0],
            cpu=cpu,
        )

    def _settled(self, quitter: Quitter, running: int = 0) -> Usage:
        """What the program uses once the quits are over and pooled connections are closed.

        aiohttp keeps an idle connection for 15 s.
        """
        quitter.await_pods(running, self._sizes.limit)
        # Nothing tells when the client closes its idle connections: only time does.
        time.sleep(self._sizes.settle)
        return usage(quitter.process.pid)

    def _late(self, quitter: Quitter, number: int, running: int) -> Usage:
        """What the program uses after quits while it watches many pods."""
        self._steady(quitter, f"late-{number}", self._sizes.late, running)
        return self._settled(quitter, running)

    @contextmanager
    def _watching(self, quitter: Quitter, size: int, made: int) -> Generator[Watched]:
        """A new process watches ``size`` pods, whose events decide nothing; it ends after it."""
        sizes = self._sizes
        _say(f"{quitter.name}: {size} watched pods")
        began = time.time()
        quitter.start()
        quitter.await_pods(size, sizes.limit)
        ready, pid = time.time() - began, quitter.process.pid
        listed = usage(pid)
        # What is measured is that nothing happens for so long.
        idle = _during(pid, lambda: time.sleep(sizes.idle))
        events = _during(
            pid,
            lambda: self._driver.patch(
                f"watched-{size}", made, "touched", events=sizes.events, rate=sizes.event_rate
            ),
        )
        own = events["cpu"] - idle["cpu"] / idle["elapsed"] * events["elapsed"]
        yield Watched(
            pods=size,
            ready=ready,
            listed=listed,
            after=usage(pid),
            idle=idle["cpu"] / idle["elapsed"],
            per_event=own / sizes.events,
        )
        quitter.stop()

    def _exits(self, quitter: Quitter, prefix: str, count: int) -> dict[str, Any]:
        """What the driver saw of these quits; raises ChildProcessError for a dead program."""
        try:
            return self._driver.await_exits(prefix, count, self._sizes.limit)
        except MeasurementError:
            quitter.process.check()
            raise

    def _clear(self) -> None:
        """Delete the pods, so that the next program finds what this one found."""
        pods = f"/api/v1/namespaces/{NAME}/pods"
        now = b'{"gracePeriodSeconds": 0}'
        # The API server ends a request after 60 s; the next one deletes the rest.
        lab.until(
            lambda: creation.send(self._cluster, "DELETE", pods, now)[0] == 200,
            timeout=self._sizes.limit,
            what="the pods to be deleted",
        )


def _during(pid: int, act: Any) -> Mapping[str, float]:
    meter = Meter({"cpu": pid})
    act()
    return meter.read()


def _say(what: str) -> None:
    print(f"benchmarks: {what}", flush=True)
