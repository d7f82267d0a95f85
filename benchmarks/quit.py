"""How fast proxies of finished pods are freed, and what watching costs; README.md says how.

A real etcd and API server, the workload as a process under the rights that it ships with, and a
lean stand-in for the kubelet. Nothing here is asserted: numbers stand beside targets.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lab
from lab.fixtures import await_account
from lab.workload import Workload
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace, Node

from benchmarks import driver as driving
from benchmarks import machine, report
from benchmarks.conversation import MeasurementError
from benchmarks.driver import Driver
from benchmarks.numbers import Flatness, Freed, Latency, Results, Sizes, Watched
from benchmarks.processes import Meter, Usage, usage

NAME = "istio-aux-bench"
"""Of application, model and node; of the namespace of the pods, too."""

SELECTOR = "bench.istio-aux.io/pods=yes"
"""Not the default one: other workloads of the cluster, if any, leave these pods alone."""

WHOLE = Sizes(
    start=1000, steady=1000, rate=50.0, again=1000,
    watched=(1000, 5000, 10000), events=1000, event_rate=200.0, idle=2.0, settle=16.0, limit=120.0,
)  # fmt: skip
QUICK = Sizes(
    start=20, steady=20, rate=50.0, again=20,
    watched=(40,), events=40, event_rate=200.0, idle=0.2, settle=0.2, limit=60.0,
)  # fmt: skip


def main(sizes: Sizes, results: Path | None) -> None:
    """Measure on a cluster of its own, print the table, and keep the files in ``results``.

    Raises:
        MeasurementError, TimeoutError, ChildProcessError: it could not be measured.
    """
    with lab.cluster("api") as cluster:
        measured = measure(cluster, sizes, alone=True)
    print(report.markdown(measured))
    if results:
        report.write(measured, results)


def measure(cluster: lab.Cluster, sizes: Sizes, *, alone: bool) -> Results:
    """All numbers. ``alone``: nobody else uses the cluster, so what only disturbs may be ended.

    Raises as `main` does.
    """
    with _played(cluster, alone=alone) as driver, tempfile.TemporaryDirectory() as folder:
        bench = _Bench(cluster, driver, sizes, Path(folder))
        return bench.run()


@contextmanager
def _played(cluster: lab.Cluster, *, alone: bool) -> Generator[Driver]:
    """The namespace of the pods and the node that plays them; both gone after the block."""
    key, _, value = SELECTOR.partition("=")
    with cluster.client() as client:
        client.create(Namespace(metadata=ObjectMeta(name=NAME, labels={key: value})))
        await_account(client, NAME)
        if alone:
            # It follows every pod and would see to it that a node without a lease loses them.
            cluster.process("kube-controller-manager").kill()
        try:
            with driving.running(cluster, NAME, NAME) as driver:
                yield driver
        finally:
            client.delete(Node, NAME)
            client.delete(Namespace, NAME)


class _Bench:
    """The scenes. A class because they share cluster, driver and workload."""

    def __init__(self, cluster: lab.Cluster, driver: Driver, sizes: Sizes, folder: Path) -> None:
        self._driver, self._sizes, self._cluster = driver, sizes, cluster
        self._workload = Workload(cluster, folder, name=NAME, model=NAME, selector=SELECTOR)
        self._workload.deploy()
        self._lab = {
            "kube-apiserver": cluster.process("kube-apiserver").pid,
            "etcd": cluster.process("etcd").pid,
            "kubelet stand-in": driver.pid,
        }

    def run(self) -> Results:
        """Measure everything, in the order in which the numbers are told."""
        on = machine.describe()
        freed = self._start_up()
        rows = [("after the first quits, at start-up", self._sizes.start, self._settled())]
        latency = self._steady()
        rows.append(("after those of the latency", self._sizes.steady, self._settled()))
        self._again()
        rows.append(("after as many again", self._sizes.again, self._settled()))
        self._workload.stop()
        return Results(
            sizes=self._sizes,
            machine=on,
            freed=freed,
            latency=latency,
            flatness=[Flatness(when, quits, used) for when, quits, used in rows],
            watched=[self._watching(size) for size in self._sizes.watched],
        )

    def _start_up(self) -> Freed:
        """Pods that finished while nobody looked, then the workload starts."""
        count = self._sizes.start
        _say(f"{count} finished pods, then the workload starts")
        self._driver.create("start", count, "finished", light=True)
        meter, began = Meter(self._lab), time.time()
        self._workload.start()
        meter.add("workload", self._workload.process.pid)
        reply = self._exits("start", count)
        self._await_metric("istio_aux_quits_total", 'outcome="exited"', count)
        seconds = time.time() - began
        return Freed(
            seconds=seconds,
            told=[at - began for at in sorted(reply["told"])],
            ended=[at - began for at in sorted(reply["ended"])],
            execs=reply["execs"],
            cpu=meter.read(),
        )

    def _steady(self) -> Latency:
        """Pods finish at a steady rate."""
        count, rate = self._sizes.steady, self._sizes.rate
        _say(f"{count} pods finish, {rate:g} a second")
        self._driver.create("steady", count, "running", light=True)
        self._await_watched(count)
        meter = Meter({"workload": self._workload.process.pid, **self._lab})
        times = self._driver.patch("steady", count, "finish", rate=rate)
        cpu = meter.read()
        told = self._exits("steady", count)["told"]
        return Latency(
            from_sent=[end - start for start, end in zip(times["sent"], told, strict=True)],
            from_stored=[end - start for start, end in zip(times["stored"], told, strict=True)],
            seconds=times["stored"][-1] - times["sent"][0],
            cpu=cpu,
        )

    def _again(self) -> None:
        """As many quits again, for what they leave behind."""
        count, rate = self._sizes.again, self._sizes.rate
        _say(f"{count} pods finish again, {rate:g} a second")
        self._driver.create("again", count, "running", light=True)
        self._await_watched(count)
        self._driver.patch("again", count, "finish", rate=rate)
        self._exits("again", count)

    def _settled(self) -> Usage:
        """What the workload uses once the quits are over and pooled connections are closed.

        aiohttp keeps an idle connection for 15 s.
        """
        self._await_watched(0)
        # Nothing tells when the client closes its idle connections: only time does.
        time.sleep(self._sizes.settle)
        return usage(self._workload.process.pid)

    def _watching(self, size: int) -> Watched:
        """A new process lists and watches ``size`` pods, whose events then decide nothing."""
        sizes = self._sizes
        more = size - max((known for known in sizes.watched if known < size), default=0)
        _say(f"{size} watched pods")
        self._driver.create(f"watched-{size}", more, "running")
        began = time.time()
        self._workload.start()
        pid = self._workload.process.pid
        self._workload.await_ready()
        self._await_watched(size)
        ready = time.time() - began
        lab.until(
            lambda: self._workload.get("/readyz")[1].strip() == "ok",
            timeout=sizes.limit,
            what="the lists that nobody waits for",
        )
        listed = usage(pid)
        # What is measured is that nothing happens for so long.
        idle = _during(pid, lambda: time.sleep(sizes.idle))
        events = _during(
            pid,
            lambda: self._driver.patch(
                f"watched-{size}", more, "touched", events=sizes.events, rate=sizes.event_rate
            ),
        )
        after = usage(pid)
        self._workload.stop()
        own = events["cpu"] - idle["cpu"] / idle["elapsed"] * events["elapsed"]
        return Watched(
            pods=size,
            ready=ready,
            listed=listed,
            after=after,
            idle=idle["cpu"] / idle["elapsed"],
            per_event=own / sizes.events,
        )

    def _exits(self, prefix: str, count: int) -> dict[str, Any]:
        """What the driver saw of these quits; raises ChildProcessError for a dead workload."""
        try:
            return self._driver.await_exits(prefix, count, self._sizes.limit)
        except MeasurementError:
            self._workload.process.check()
            raise

    def _await_watched(self, count: int) -> None:
        lab.until(
            lambda: self._workload.status().get("watched-pods") == count,
            timeout=self._sizes.limit,
            what=f"the workload to watch {count} pods",
        )

    def _await_metric(self, name: str, labels: str, value: int) -> None:
        def summed() -> bool:
            text = self._workload.get("/metrics")[1]
            series = re.findall(rf"^{name}{{[^}}]*{labels}[^}}]*}} (\S+)$", text, re.MULTILINE)
            return sum(map(float, series)) >= value

        lab.until(summed, timeout=self._sizes.limit, what=f"{name} to reach {value}", every=0.02)


def _during(pid: int, act: Any) -> Mapping[str, float]:
    meter = Meter({"cpu": pid})
    act()
    return meter.read()


def _say(what: str) -> None:
    print(f"benchmarks: {what}", flush=True)
