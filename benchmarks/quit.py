"""How fast proxies of finished pods are freed, and what watching costs; README.md says how.

A real etcd and API server, a lean stand-in for the kubelet, and one program after another that
quits: a controller on controller-runtime, the leanest client, then the workload as it ships.
Nothing here is asserted: numbers stand beside targets.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lab
from istio_aux.model.policy import QuitLimits
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
    Quits,
    Results,
    Sizes,
    Watched,
)
from benchmarks.processes import Meter, Usage, usage
from benchmarks.quitters import SOURCE, GoProgram, IstioAux, Quitter

NAME = "istio-aux-bench"
"""Of the node, and of the namespace of the pods."""

SELECTOR = "bench.istio-aux.io/pods=yes"
"""Not the default one: other workloads of the cluster, if any, leave these pods alone."""

WHOLE = Sizes(
    start=1000, steady=1000, rate=50.0, paced=50, pace=5.0, again=1000, late=1000,
    watched=(1000, 10000), events=1000, event_rate=200.0, idle=2.0, settle=16.0, limit=120.0,
    exit_delay=1.0,  # A real kubelet takes 0.8 to 1.1.
)  # fmt: skip
QUICK = Sizes(
    start=5, steady=5, rate=50.0, paced=5, pace=25.0, again=5, late=5,
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
        ours, *others = (
            IstioAux(_deployed(cluster, Path(folder) / place), name, checkout)
            for name, place, checkout in ((OURS, "ours", None), (BEFORE, "before", before))
            if checkout or name is OURS
        )
        # It has our rights, and as many quits at once as ours.
        floor = GoProgram(cluster, SELECTOR, ours.kubeconfig, floor=QuitLimits().at_once)
        yardstick = GoProgram(cluster, SELECTOR)
        return _Bench(cluster, driver, sizes, floor, [yardstick, *others, ours]).run(on)


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

    def __init__(
        self,
        cluster: lab.Cluster,
        driver: Driver,
        sizes: Sizes,
        floor: Quitter,
        quitters: Sequence[Quitter],
    ) -> None:
        self._driver, self._sizes, self._cluster = driver, sizes, cluster
        self._floor, self._quitters = floor, quitters
        self._lab = {
            "kube-apiserver": cluster.process("kube-apiserver").pid,
            "etcd": cluster.process("etcd").pid,
            "kubelet stand-in": driver.pid,
        }

    def run(self, on: dict[str, str]) -> Results:
        """Measure everything."""
        first, *others = self._quitters
        order = (first, self._floor, *others)
        quits = [self._quits(quitter, number) for number, quitter in enumerate(order)]
        floor, _ = quits.pop(1)
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
            floor=floor,
            programs=[
                Measured(
                    name=done.name, freed=done.freed, latency=done.latency, paced=done.paced,
                    flatness=rows, watched=watched[number], late=late[number],
                )
                for number, (done, rows) in enumerate(quits)
            ],
        )  # fmt: skip

    def _quits(self, quitter: Quitter, number: int) -> tuple[Quits, list[Flatness]]:
        """Quits at start-up, at a steady rate, one at a time, and what they leave behind.

        What the floor leaves behind is of no interest.
        """
        sizes, rows = self._sizes, list[Flatness]()
        freed = self._start_up(quitter, number)
        if quitter is not self._floor:
            rows.append(self._settled("after the first quits, at start-up", sizes.start, quitter))
        latency = self._steady(quitter, f"steady-{number}", sizes.steady, sizes.rate)
        if quitter is not self._floor:
            rows.append(self._settled("after those of the latency", sizes.steady, quitter))
            self._steady(quitter, f"again-{number}", sizes.again, sizes.rate)
            rows.append(self._settled("after as many again", sizes.again, quitter))
        paced = self._steady(quitter, f"paced-{number}", sizes.paced, sizes.pace)
        quitter.stop()
        self._clear()
        return Quits(name=quitter.name, freed=freed, latency=latency, paced=paced), rows

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

    def _steady(
        self, quitter: Quitter, prefix: str, count: int, rate: float, running: int = 0
    ) -> Latency:
        """Pods finish at a steady rate, beside others that run on."""
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

    def _settled(self, when: str, quits: int, quitter: Quitter, running: int = 0) -> Flatness:
        """What the program uses once the quits are over and pooled connections are closed.

        aiohttp keeps an idle connection for 15 s.
        """
        quitter.await_pods(running, self._sizes.limit)
        # Nothing tells when the client closes its idle connections: only time does.
        time.sleep(self._sizes.settle)
        return Flatness(when, quits, usage(quitter.process.pid))

    def _late(self, quitter: Quitter, number: int, running: int) -> Usage:
        """What the program uses after quits while it watches many pods."""
        sizes = self._sizes
        self._steady(quitter, f"late-{number}", sizes.late, sizes.rate, running)
        return self._settled("late", sizes.late, quitter, running).used

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
