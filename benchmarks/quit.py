"""How fast proxies of finished pods are freed, and what watching costs; README.md says how.

A real etcd and API server, a lean stand-in for the kubelet, and one program after another that
quits: a controller on controller-runtime, then the workload as it ships.
Nothing here is asserted: numbers stand beside goals.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lab
from lab import creation
from lab.fixtures import make_namespace
from lab.workload import Workload
from lightkube.resources.core_v1 import Namespace, Node

from benchmarks import driver as driving, machine, tables
from benchmarks.driver import Driver, MeasurementError
from benchmarks.processes import Meter, Usage, usage
from benchmarks.programs import GoProgram, IstioAux, Unit
from benchmarks.tables import BEFORE, MIB, OURS, Measured, Row, percentile

NAME = "istio-aux-bench"
"""Of the node, and of the namespace of the pods."""

SELECTOR = "bench.istio-aux.io/pods=yes"
"""Not the default one: other workloads of the cluster, if any, leave these pods alone."""

SERVER = "kube-apiserver"


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much of everything.

    Attributes:
        start: pods that are finished when the workload starts.
        steady: pods that finish one after another, ``rate`` a second; then as many again.
        rate: see there.
        paced: pods that finish ``pace`` a second: so few that none waits for another one.
        pace: see there.
        watched: numbers of running pods for which watching is measured, ascending.
        events: changes of these pods, ``event_rate`` a second.
        event_rate: see there.
        idle: seconds for which a workload is watched that has nothing to do.
        exit_delay: seconds from a quit to the proxy's end in the API.
        settle: seconds after the last quit before memory and descriptors are counted.
        limit: seconds after which something counts as broken.
    """

    start: int
    steady: int
    rate: float
    paced: int
    pace: float
    watched: tuple[int, ...]
    events: int
    event_rate: float
    idle: float
    exit_delay: float
    settle: float
    limit: float


WHOLE = Sizes(
    start=1000, steady=1000, rate=50.0, paced=50, pace=5.0, watched=(1000, 10000),
    events=1000, event_rate=200.0, idle=2.0, settle=16.0, limit=120.0,
    exit_delay=1.0,  # A real kubelet takes 0.8 to 1.1.
)  # fmt: skip
QUICK = Sizes(
    start=5, steady=5, rate=50.0, paced=5, pace=25.0, watched=(10,),
    events=10, event_rate=200.0, idle=0.2, settle=0.2, limit=60.0, exit_delay=0.05,
)  # fmt: skip


def rows(sizes: Sizes) -> Iterator[tuple[str, list[Row]]]:
    """The tables by title."""
    freed = f"{sizes.start} finished pods at start-up freed"
    yield (
        f"{freed}, since the start of the process",
        [
            Row("first", "first quit arrived at the node, s"),
            Row("freed", f"{freed}, s", most=10),
            Row("start-cpu", "CPU a quit at start-up, ms", 1e3, 2, beside=1),
            Row("start-server", "API server's CPU a quit, ms", 1e3),
            Row("execs", "commands sent", digits=0),
        ],
    )
    for key, pods, rate in (
        ("steady", sizes.steady, sizes.rate),
        ("paced", sizes.paced, sizes.pace),
    ):
        quit_, judged = f"quit at {rate:g}/s", key == "steady"
        half, most, cpu = (50, 250, 1) if judged else (None, None, None)
        yield (
            f"{pods} pods finish, {rate:g} a second",
            [
                Row(f"{key}-p50", f"status sent to {quit_}, p50 ms", 1e3, most=half),
                Row(f"{key}-p99", f"status sent to {quit_}, p99 ms", 1e3, most=most),
                Row(f"{key}-stored", f"status stored to {quit_}, p50 ms", 1e3),
                Row(f"{key}-cpu", f"CPU a {quit_}, ms", 1e3, 2, beside=cpu),
                Row(f"{key}-server", "API server's CPU a quit, ms", 1e3),
            ],
        )
    for pods in sizes.watched:
        most, late = 80 if pods == sizes.watched[-1] else None, f"{sizes.steady:,} quits"
        yield (
            f"{pods:,} pods to which nothing happens that matters",
            [
                Row(f"ready-{pods}", "process start to all known, s"),
                Row(f"rss-{pods}", "resident then, MiB", 1 / MIB),
                Row(f"most-{pods}", f"most memory watching {pods:,}, MiB", 1 / MIB, most=most),
                Row(f"event-{pods}", "CPU of an event, µs", 1e6, 0),
                Row(f"idle-{pods}", "CPU when nothing happens, %", 100),
                Row(f"late-{pods}", f"resident after {late}, MiB", 1 / MIB, most=most),
            ],
        )
    yield (
        f"What {sizes.steady:,} more quits leave behind",
        [
            Row("gained", "memory gained, MiB", 1 / MIB, most=1),
            Row("opened", "descriptors gained", digits=0, most=2),
        ],
    )


def main(sizes: Sizes, results: Path | None, before: Path | None) -> None:
    """Measure on a cluster of its own, print the tables, and keep ``quit.md`` in ``results``.

    ``before``: a checkout whose workload is measured as well.

    Raises:
        MeasurementError, TimeoutError, ChildProcessError: it could not be measured.
    """
    on = machine.describe(go=True)
    with lab.cluster("api") as cluster:
        measured = measure(cluster, sizes, alone=True, before=before)
    text = tables.markdown("Quit benchmark", on, rows(sizes), measured)
    print(text)
    if results:
        tables.write(results, "quit", text)


def measure(
    cluster: lab.Cluster, sizes: Sizes, *, alone: bool, before: Path | None = None
) -> list[Measured]:
    """All numbers. ``alone``: no other test uses the cluster, so what disturbs may be ended.

    Raises as `main` does.
    """
    with (
        _played(cluster, sizes.exit_delay, alone=alone) as driver,
        tempfile.TemporaryDirectory() as folder,
    ):
        ours, *others = (
            IstioAux(_deployed(cluster, Path(folder) / place), name, checkout)
            for name, place, checkout in ((OURS, "ours", None), (BEFORE, "before", before))
            if checkout or name is OURS
        )
        yardstick = GoProgram(cluster, SELECTOR)
        return _Bench(cluster, driver, sizes).run([yardstick, *others, ours])


def _deployed(cluster: lab.Cluster, folder: Path) -> Workload:
    app = f"bench-{folder.name}"
    workload = Workload(cluster, folder, name=app, model=app, selector=SELECTOR)
    workload.deploy()
    return workload


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

    def __init__(self, cluster: lab.Cluster, driver: Driver, sizes: Sizes) -> None:
        self._driver, self._sizes, self._cluster = driver, sizes, cluster
        self._server = cluster.process(SERVER).pid

    def run(self, units: Sequence[Unit]) -> list[Measured]:
        """Measure everything."""
        measured = [Measured(unit.name) for unit in units]
        for number, unit in enumerate(units):
            self._quits(unit, number, measured[number].numbers)
        for size in self._sizes.watched:
            made = size - max((known for known in self._sizes.watched if known < size), default=0)
            self._driver.create(f"watched-{size}", made, "running")
            for number, unit in enumerate(units):
                self._watch(unit, size, made, number, measured[number].numbers)
        return measured

    def _quits(self, unit: Unit, number: int, numbers: dict[str, float]) -> None:
        """Quits at start-up, at a steady rate, one at a time, and what they leave behind."""
        sizes = self._sizes
        numbers |= self._start_up(unit, f"start-{number}")
        self._settled(unit)
        numbers |= self._steady(unit, f"steady-{number}", sizes.steady, sizes.rate)
        # Those before have warmed the process up: pools, caches, the allocator's arenas.
        first = self._settled(unit)
        self._steady(unit, f"again-{number}", sizes.steady, sizes.rate)
        last = self._settled(unit)
        numbers["gained"] = last.rss - first.rss
        numbers["opened"] = last.descriptors - first.descriptors
        numbers |= self._steady(unit, f"paced-{number}", sizes.paced, sizes.pace)
        unit.stop()
        self._clear()

    def _start_up(self, unit: Unit, prefix: str) -> dict[str, float]:
        """Pods are finished, then the program starts."""
        count = self._sizes.start
        _say(f"{unit.name}: {count} finished pods, then it starts")
        self._driver.create(prefix, count, "finished", light=True)
        meter, began, before = Meter({SERVER: self._server}), time.time(), self._driver.execs
        unit.start()
        meter.add("own", unit.process.pid)
        reply = self._exits(unit, prefix, count)
        cpu = meter.read()
        return {
            "first": min(reply["told"]) - began,
            "freed": max(reply["ended"]) - began,
            "execs": reply["execs"] - before,
            "start-cpu": cpu["own"] / count,
            "start-server": cpu[SERVER] / count,
        }

    def _steady(
        self, unit: Unit, prefix: str, count: int, rate: float, running: int = 0
    ) -> dict[str, float]:
        """Pods finish at a steady rate, beside others that run on."""
        _say(f"{unit.name}: {count} pods finish, {rate:g} a second")
        self._driver.create(prefix, count, "running", light=True)
        unit.await_pods(count + running, self._sizes.limit)
        meter = Meter({"own": unit.process.pid, SERVER: self._server})
        times = self._driver.patch(prefix, count, "finish", rate=rate)
        told = self._exits(unit, prefix, count)["told"]
        cpu, key = meter.read(), prefix.partition("-")[0]
        sent, stored = (
            [end - start for start, end in zip(times[when], told, strict=True)]
            for when in ("sent", "stored")
        )
        return {
            f"{key}-p50": percentile(sent, 50),
            f"{key}-p99": percentile(sent, 99),
            f"{key}-stored": percentile(stored, 50),
            f"{key}-cpu": cpu["own"] / count,
            f"{key}-server": cpu[SERVER] / count,
        }

    def _settled(self, unit: Unit, running: int = 0) -> Usage:
        """What the program uses once the quits are over and pooled connections are closed.

        aiohttp keeps an idle connection for 15 s.
        """
        unit.await_pods(running, self._sizes.limit)
        # Nothing tells when the client closes its idle connections: only time does.
        time.sleep(self._sizes.settle)
        return usage(unit.process.pid)

    def _watch(
        self, unit: Unit, size: int, made: int, number: int, numbers: dict[str, float]
    ) -> None:
        """A new process watches ``size`` pods, whose events decide nothing; then others finish."""
        sizes = self._sizes
        _say(f"{unit.name}: {size} watched pods")
        began = time.time()
        unit.start()
        unit.await_pods(size, sizes.limit)
        numbers[f"ready-{size}"], pid = time.time() - began, unit.process.pid
        numbers[f"rss-{size}"] = usage(pid).rss
        # What is measured is that nothing happens for so long.
        idle = _during(pid, lambda: time.sleep(sizes.idle))
        events = _during(
            pid,
            lambda: self._driver.patch(
                f"watched-{size}", made, "touched", events=sizes.events, rate=sizes.event_rate
            ),
        )
        share = numbers[f"idle-{size}"] = idle["cpu"] / idle["elapsed"]
        numbers[f"event-{size}"] = (events["cpu"] - share * events["elapsed"]) / sizes.events
        numbers[f"most-{size}"] = usage(pid).peak
        if size == sizes.watched[-1]:
            self._steady(unit, f"late-{number}", sizes.steady, sizes.rate, size)
            numbers[f"late-{size}"] = self._settled(unit, size).rss
        unit.stop()

    def _exits(self, unit: Unit, prefix: str, count: int) -> dict[str, Any]:
        """What the driver saw of these quits; raises ChildProcessError for a dead program."""
        try:
            return self._driver.await_exits(prefix, count, self._sizes.limit)
        except MeasurementError:
            unit.process.check()
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


def _during(pid: int, act: Callable[[], Any]) -> Mapping[str, float]:
    meter = Meter({"cpu": pid})
    act()
    return meter.read()


def _say(what: str) -> None:
    print(f"benchmarks: {what}", flush=True)
