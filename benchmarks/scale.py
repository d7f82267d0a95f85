"""What tens of thousands of pods cost, beside a lean controller in Go; README.md says how.

A real etcd and API server, the stand-in for a kubelet, Istio, and one program after
another. A scene that fails is named in the results, which keep what the others measured.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import lab
from lab.workload import Workload
from lightkube.resources.core_v1 import Namespace

from benchmarks import machine, tables
from benchmarks.crowd import KEY, Crowd, crowded, named, say
from benchmarks.driver import Driver, MeasurementError, Where
from benchmarks.flood import flooding
from benchmarks.processes import Meter, cpu, usage
from benchmarks.programs import GoProgram, IstioAux, Unit, installed
from benchmarks.scale_rows import WHOLE, Sizes, rows
from benchmarks.tables import BEFORE, CONTROLLER, MIB, OURS, Measured, percentile
from probe import connect

REVIEW = Path(__file__).parent / "data/review-6k.json"
"""What an API server (Kubernetes 1.36) sent of a pod as the training-operator makes it."""


def sized(count: int) -> Sizes:
    """`WHOLE` for another number of pods, with as many of each kind in proportion."""
    kinds = ("namespaces", "jobs", "unmeshed", "others", "large")
    part = count / WHOLE.pods
    return replace(WHOLE, **{kind: max(2, round(getattr(WHOLE, kind) * part)) for kind in kinds})


def main(sizes: Sizes, results: Path | None, before: Path | None = None) -> list[Measured]:
    """Measure on a cluster of its own, print the tables, and keep ``scale.md`` in ``results``.

    ``before``: a checkout whose workload is measured as well. Raises MeasurementError,
    TimeoutError, ChildProcessError: the cluster could not be made.
    """
    on = machine.describe(go=True)
    with crowded(sizes) as crowd:
        server = usage(crowd.cluster.process("kube-apiserver").pid).rss
        programs = [
            _measure(crowd, name, before)
            for name in (CONTROLLER, BEFORE, OURS)
            if before or name is not BEFORE
        ]
    made = (
        f"{sizes.pods:,} pods in {sizes.namespaces + 1:,} namespaces: {sizes.jobs:,} with a proxy,"
        f" {sizes.unmeshed:,} without the sidecar that they should have. They were stored in"
        f" {crowd.made:.0f} s. Then the API server had {server / MIB:,.0f} MiB resident."
    )
    text = tables.markdown("Scale benchmark", on, rows(sizes), programs, made)
    print(text)
    if results:
        tables.write(results, "scale", text)
    return programs


def _measure(crowd: Crowd, name: str, before: Path | None) -> Measured:
    """All scenes of one program, which ends with them."""
    checkout = before if name is BEFORE else None
    workload, count = None, crowd.sizes.units
    units: Sequence[Unit]
    if name is CONTROLLER:
        units = [GoProgram(crowd.cluster, f"{KEY}=yes") for _ in range(count)]
    else:
        workload = crowd.deploy(checkout)
        others = [workload.replica(f"{workload.name}-{number}") for number in range(1, count)]
        units = [IstioAux(one, name, checkout) for one in (workload, *others)]
    scenes = Scenes(crowd, name, units, workload, checkout)
    try:
        return scenes.play()
    finally:
        for unit in units:
            with suppress(Exception):
                unit.stop()


class Scenes:
    """What is measured of one program."""

    def __init__(
        self, crowd: Crowd, name: str, units: Sequence[Unit], workload: Workload | None,
        checkout: Path | None,
    ) -> None:  # fmt: skip
        self._crowd, self._name, self._units = crowd, name, units
        self._workload, self._checkout = workload, checkout
        self._driver, self._sizes = crowd.driver, crowd.sizes
        self._unit = units[0]
        self.measured = Measured(name)
        self.numbers = self.measured.numbers

    def play(self) -> Measured:
        """All of them, each in its own time."""
        for scene, limit in (
            (self.start, 400), (self.events, 300), (self.quits, 400),
            (self.reviews, 300), (self.relabel, 240), (self.relist, 400),
            (self.remains, 180), (self.commands, 400), (self.leaders, 500),
        ):  # fmt: skip
            what = scene.__name__
            say(f"{self._name}: {what}")
            try:
                with within(limit, what):
                    scene()
            except (MeasurementError, TimeoutError, OSError, ValueError) as error:
                self.measured.failed[what] = str(error)
                say(f"{self._name}: {what}: not measured: {error}")
        return self.measured

    def start(self) -> None:
        """A process starts, and pods have finished before."""
        sizes, finished, unit = self._sizes, self._crowd.prefix(), self._unit
        self._driver.create(finished, sizes.finished, "finished", pod="job", where=self._crowd.mesh)
        began = time.time()
        unit.start()
        self._until(lambda: unit.ready, "to be ready")
        self.numbers["ready"] = time.time() - began
        if isinstance(unit, IstioAux):
            self._until(lambda: unit.unmeshed >= sizes.unmeshed, "to judge all pods")
            self.numbers["judged"] = time.time() - began
        self.numbers["first-quit"] = min(self._exits(finished, sizes.finished)) - began
        self._settle()
        used = usage(self._pid)
        self.numbers["start-cpu"], self.numbers["rss"] = used.cpu, used.rss

    def events(self) -> None:
        """Changes that decide nothing, of pods without a proxy and of those with one."""
        sizes, crowd = self._sizes, self._crowd
        meter = Meter({"cpu": self._pid})
        time.sleep(sizes.seconds)  # What is measured is that nothing happens for so long.
        spent = meter.read()
        idle = self.numbers["idle"] = spent["cpu"] / spent["elapsed"]
        others = sizes.others - sizes.others // 2
        for kind, count, where in (
            ("other", others, crowd.plain), ("job", sizes.jobs, crowd.mesh),
        ):  # fmt: skip
            for rate in sizes.rates:
                events, meter = round(rate * sizes.seconds), Meter({"cpu": self._pid})
                times = self._driver.patch(
                    kind, count, "touched", events=events, rate=rate, where=where
                )
                self._settle()
                spent = meter.read()
                own = spent["cpu"] - idle * spent["elapsed"]
                self.numbers[f"event-{kind}-{rate}"] = own / events
                self.numbers[f"taken-{kind}-{rate}"] = events / (
                    max(times["stored"]) - min(times["sent"])
                )

    def quits(self) -> None:
        """Pods finish at a steady rate, in some rounds."""
        rounds = sorted(self._quit() for _ in range(self._sizes.rounds))
        self.numbers["quit-p99"], self.numbers["quit-p50"], self.numbers["quit-cpu"] = rounds[0]
        self.numbers["quit-p99-median"] = rounds[len(rounds) // 2][0]

    def _quit(self) -> tuple[float, float, float]:
        """One round: p99, p50, and the CPU of a quit."""
        sizes, prefix = self._sizes, self._crowd.prefix()
        self._driver.create(prefix, sizes.quits, "running", pod="job", where=self._crowd.mesh)
        self._settle()
        self._crowd.cluster.collect_garbage()
        meter = Meter({"cpu": self._pid})
        times = self._driver.patch(
            prefix, sizes.quits, "finish", rate=sizes.rate, where=self._crowd.mesh
        )
        told = self._exits(prefix, sizes.quits)
        spent = meter.read()["cpu"] / sizes.quits
        took = [end - start for start, end in zip(times["sent"], told, strict=True)]
        return percentile(took, 99), percentile(took, 50), spent

    def reviews(self) -> None:
        """Reviews when nothing happens, and while events come."""
        seconds = self._sizes.seconds
        with self._reviewed("idle"):
            time.sleep(seconds)  # What is measured is that nothing else happens for so long.
        with self._reviewed("events"), self._eventful(self._sizes.rates[-1], seconds):
            pass

    def relabel(self) -> None:
        """A large namespace is selected, and no longer."""
        sizes, unit, name = self._sizes, self._unit, named(self._crowd.large.first)
        if not isinstance(unit, IstioAux):
            return

        def label(value: str | None) -> None:
            with self._crowd.cluster.client() as client:
                labels = {KEY: value and "yes", "istio-injection": value}
                client.patch(Namespace, name, {"metadata": {"labels": labels}})

        with self._reviewed("relabel"):
            meter, began = Meter({"cpu": self._pid}), time.monotonic()
            label("enabled")
            most = sizes.unmeshed + sizes.large
            self._until(lambda: unit.unmeshed >= most, "to judge the namespace")
            self.numbers["relabel"] = time.monotonic() - began
            self.numbers["relabel-cpu"] = meter.read()["cpu"]
        label(None)
        self._until(lambda: 0 <= unit.unmeshed < most, "to judge the namespace again")
        self._settle()

    def relist(self) -> None:
        """The API server has forgotten what was seen last, as after its restart."""
        unit, prefix = self._unit, self._crowd.prefix()
        self._driver.create(prefix, 1, "running", pod="job", where=self._crowd.mesh)
        self._settle()
        meter = Meter({"cpu": self._pid})
        server = self._crowd.cluster.process("kube-apiserver")
        server.kill()
        server.wait(30)
        self._compact()
        server.start()
        self._crowd.cluster.await_api()
        ready, began = time.time(), time.monotonic()
        # controller-runtime ends a process that could not renew its Lease; a kubelet restarts it.
        if ended := not unit.process.running:
            unit.start()
            meter = Meter({})
            meter.add("cpu", self._pid)
        self.numbers["ended"] = float(ended)
        with self._reviewed("relist"):
            self._driver.patch(prefix, 1, "finish", where=self._crowd.mesh)
            told = self._exits(prefix, 1)
            self.numbers["relist-quit"] = told[0] - ready
            self._until(lambda: unit.ready, "to be ready again")
        self._settle()
        self.numbers["relist"] = time.monotonic() - began
        self.numbers["relist-cpu"] = meter.read()["cpu"]

    def _compact(self) -> None:
        """Make etcd forget what changed, as it does every five minutes."""
        etcd, key = f"{self._crowd.cluster.etcd}/v3/kv", "YmVuY2g="
        with connect() as client:
            # The version that was seen last must not be the newest.
            put = client.post(f"{etcd}/put", json={"key": key}).raise_for_status().json()
            revision = {"revision": put["header"]["revision"]}
            client.post(f"{etcd}/compaction", json=revision).raise_for_status()

    def remains(self) -> None:
        """What is resident after all of this."""
        self._settle()
        used = usage(self._pid)
        self.numbers["rss-end"], self.numbers["peak"] = used.rss, used.peak

    def commands(self) -> None:
        """The commands that read the whole cluster, or one pod."""
        if not self._workload:
            return
        access = ("--kubeconfig", str(self._crowd.cluster.kubeconfig))
        for command, more in (
            ("audit", ("-A",)), ("explain", ("-n", named(0), "pod/job-000000")),
        ):  # fmt: skip
            argv = [*installed([self._workload.argv[0]], self._checkout), command, *access, *more]
            began = time.monotonic()
            with tempfile.TemporaryFile() as output:
                process = subprocess.Popen(argv, stdout=output, stderr=output)
                _, status, used = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
                if process.returncode:
                    output.seek(0)
                    said = output.read()[-300:].decode()
                    raise MeasurementError(f"{command}: exit status {process.returncode}: {said}")
            self.numbers[f"{command}-seconds"] = time.monotonic() - began
            self.numbers[f"{command}-cpu"] = used.ru_utime + used.ru_stime
            self.numbers[f"{command}-peak"] = used.ru_maxrss * 1024

    def leaders(self) -> None:
        """The leader is killed, then the next one is ended politely."""
        for unit in self._units[1:]:
            unit.start()
        for unit in self._units[1:]:
            self._until(lambda unit=unit: unit.ready, "to have another unit ready")
        self._settle(self._units[1].process.pid)
        self.numbers["rss-follower"] = usage(self._units[1].process.pid).rss
        for key, number in (("kill", signal.SIGKILL), ("term", signal.SIGTERM)):
            alive = [unit for unit in self._units if unit.process.running]
            if len(alive) < 2:
                return
            leader = lab.until(
                lambda alive=alive: next((unit for unit in alive if unit.leads), None),
                timeout=self._sizes.limit, what=f"a unit of {self._name} to lead",
            )  # fmt: skip
            prefix = self._crowd.prefix()
            self._driver.create(prefix, 1, "running", pod="job", where=self._crowd.mesh)
            time.sleep(1)  # Nothing tells when the watches of all units have the pod: time does.
            began = time.time()
            leader.process.kill(number)
            self._driver.patch(prefix, 1, "finish", where=self._crowd.mesh)
            told = self._driver.await_exits(prefix, 1, self._sizes.limit, where=self._crowd.mesh)[
                "told"
            ]
            self.numbers[key] = told[0] - began
            leader.process.wait(30)

    @property
    def _pid(self) -> int:
        return self._unit.process.pid

    def _until(self, check: Callable[[], Any], what: str) -> None:
        def checked() -> Any:
            self._unit.process.check()
            return check()

        what = f"{self._name} {what} ({self._unit.process.log})"
        lab.until(checked, timeout=self._sizes.limit, what=what)

    def _settle(self, pid: int = 0) -> None:
        """Return when the process does nothing more: less than 5 % of a core for half a second."""
        pid = pid or self._pid

        def still() -> bool:
            before = cpu(pid)
            time.sleep(0.5)
            return cpu(pid) - before < 0.025

        lab.until(still, timeout=self._sizes.limit, what=f"{self._name} to settle")

    def _exits(self, prefix: str, count: int) -> list[float]:
        """When each of these proxies was told to exit."""
        try:
            found = self._driver.await_exits(
                prefix, count, self._sizes.limit, where=self._crowd.mesh
            )
        except MeasurementError:
            self._unit.process.check()
            raise
        return found["told"]

    @contextmanager
    def _eventful(self, rate: int, seconds: float) -> Generator[None]:
        """Events of all kinds of pods at this rate in the background; they end with the block."""
        half = round(rate * seconds / 2)
        jobs, others = self._sizes.jobs, self._sizes.others - self._sizes.others // 2

        def one(driver: Driver, kind: str, count: int, where: Where) -> threading.Thread:
            def run() -> None:
                with suppress(MeasurementError):
                    driver.patch(kind, count, "touched", events=half, rate=rate / 2, where=where)

            thread = threading.Thread(target=run)
            thread.start()
            return thread

        with self._driver.twin() as second, self._driver.twin() as third:
            threads = [
                one(second, "job", jobs, self._crowd.mesh),
                one(third, "other", others, self._crowd.plain),
            ]
            yield  # After an error the programs are ended, and so are the threads.
            for thread in threads:
                thread.join()

    @contextmanager
    def _reviewed(self, when: str) -> Generator[None]:
        """Reviews come during the block, 100 a second."""
        if not (workload := self._workload):
            yield
            return
        port, review = workload.webhook_port, REVIEW.read_bytes()
        with flooding(workload.cluster.host, port, 16, review, 100) as took:
            yield
        for much, percent in (("p99", 99), ("most", 100)):
            self.numbers[f"review-{when}-{much}"] = percentile(took, percent)


@contextmanager
def within(seconds: int, what: str) -> Generator[None]:
    """Raise TimeoutError in the block when it takes longer, whatever it waits for."""

    def late(*_: object) -> None:
        raise TimeoutError(f"{what}: took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
