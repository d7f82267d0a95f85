"""What tens of thousands of pods cost, beside a lean controller in Go; README.md says how.

A real etcd and API server, the stand-in for a kubelet, Istio's stand-in, and one program after
another. A scene that fails is named in the results, which keep what the others measured.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import lab
import lab.istio
from lab import creation, toolchain
from lab.workload import Workload
from lightkube.resources.core_v1 import Namespace

from benchmarks import machine, reviews, scale_numbers, units
from benchmarks.admission_numbers import SMALL
from benchmarks.conversation import Conversation, MeasurementError, started
from benchmarks.crowd import KEY, NAME, Crowd, crowded, say
from benchmarks.driver import Driver, Where
from benchmarks.numbers import BEFORE, CONTROLLER, OURS, percentile
from benchmarks.processes import Meter, cpu, usage
from benchmarks.quitters import SOURCE, installed
from benchmarks.scale_numbers import Measured, Results, Sizes
from benchmarks.units import Unit
from probe import connect

LEASES = "default"
"""Namespace of the yardstick's Lease."""
ROUNDS = 10  # Of creations, in each form of admission.

WHOLE = Sizes(
    namespaces=1000, jobs=10_000, unmeshed=2_000, others=33_000, large=5_000,
    finished=20, rates=(100, 500), seconds=5.0, quits=300, rate=50.0, looks=20, units=3,
    exit_delay=1.0, limit=300.0,
)  # fmt: skip
QUICK = Sizes(
    namespaces=10, jobs=40, unmeshed=10, others=40, large=20,
    finished=3, rates=(20, 50), seconds=0.5, quits=5, rate=50.0, looks=3, units=3,
    exit_delay=0.05, limit=60.0,
)  # fmt: skip


def sized(count: int) -> Sizes:
    """`WHOLE` for another number of pods, with as many of each kind in proportion."""
    part = count / WHOLE.pods
    numbers = {
        name: max(2, round(getattr(WHOLE, name) * part))
        for name in ("namespaces", "jobs", "unmeshed", "others", "large")
    }
    return Sizes(**{**{f: getattr(WHOLE, f) for f in WHOLE.__struct_fields__}, **numbers})


def main(sizes: Sizes, results: Path | None, before: Path | None = None) -> Results:
    """Measure on a cluster of its own, print the tables, and keep the files in ``results``.

    ``before``: a checkout whose workload is measured as well. Raises MeasurementError,
    TimeoutError, ChildProcessError: the cluster could not be made.
    """
    began = time.monotonic()
    on = {
        **machine.describe(),
        "Go": toolchain.version(SOURCE).removeprefix("go"),
        "controller-runtime": machine.pinned(SOURCE, "sigs.k8s.io/controller-runtime"),
    }
    with crowded(sizes) as crowd:
        etcd = sum(f.stat().st_size for f in crowd.cluster.state.glob("**/member/snap/db"))
        server = usage(crowd.cluster.process("kube-apiserver").pid).rss
        programs = [
            _measure(crowd, name, before)
            for name in (CONTROLLER, BEFORE, OURS)
            if before or name is not BEFORE
        ]
    measured = Results(
        sizes=sizes, machine=on, made=crowd.made, etcd=etcd, server=server, programs=programs,
        seconds=time.monotonic() - began,
    )  # fmt: skip
    print(scale_numbers.markdown(measured))
    if results:
        scale_numbers.write(measured, results)
    return measured


def _measure(crowd: Crowd, name: str, before: Path | None) -> Measured:
    """All scenes of one program, which ends with them."""
    checkout = before if name is BEFORE else None
    workload = None if name is CONTROLLER else crowd.deploy(checkout)
    if workload:
        all_units = units.ours(workload, crowd.sizes.units, checkout)
    else:
        all_units = units.yardsticks(crowd.cluster, crowd.sizes.units, f"{KEY}=yes", LEASES)
    scenes = Scenes(crowd, name, all_units, workload, checkout)
    try:
        return scenes.play()
    finally:
        for unit in all_units:
            with suppress(Exception):
                unit.stop()


class Scenes:
    """What is measured of one program."""

    def __init__(
        self, crowd: Crowd, name: str, all_units: Sequence[Unit], workload: Workload | None,
        checkout: Path | None,
    ) -> None:  # fmt: skip
        self._crowd, self._name, self._units = crowd, name, all_units
        self._workload, self._checkout = workload, checkout
        self._driver, self._sizes = crowd.driver, crowd.sizes
        self._unit = all_units[0]
        self.numbers: dict[str, float] = {}
        self._failed: dict[str, str] = {}

    def play(self) -> Measured:
        """All of them, each in its own time."""
        with self._generator() as generator:
            self._load = generator
            for scene, limit in (
                (self.start, 400), (self.events, 300), (self.answers, 180), (self.quits, 240),
                (self.admission, 300), (self.relabel, 240), (self.relist, 400),
                (self.remains, 180), (self.commands, 400), (self.leaders, 500),
            ):  # fmt: skip
                what = scene.__name__
                known = set(self.numbers)
                try:
                    with within(limit, what):
                        scene()
                except (MeasurementError, TimeoutError, OSError, ValueError) as error:
                    self._failed[what] = str(error)
                    say(f"{self._name}: {what}: not measured: {error}")
                new = {key: round(n, 6) for key, n in self.numbers.items() if key not in known}
                say(f"{self._name}: {what}: {new}")
        return Measured(name=self._name, numbers=self.numbers, failed=self._failed)

    def start(self) -> None:
        """A process starts, and pods have finished before."""
        sizes, finished = self._sizes, self._crowd.prefix()
        mesh = self._crowd.mesh
        self._driver.create(finished, sizes.finished, "finished", pod="job", where=mesh)
        began = time.time()
        self._unit.start()
        self._until(lambda: self._unit.ready, "to be ready")
        self.numbers["ready"] = time.time() - began
        self._until(lambda: self._unit.unmeshed >= sizes.unmeshed, "to judge all pods")
        self.numbers["judged"] = time.time() - began
        told = self._exits(finished, sizes.finished)
        self.numbers["first-quit"] = min(told) - began
        self.numbers["last-quit"] = max(told) - began
        self._settle()
        used = usage(self._pid)
        self.numbers["start-cpu"], self.numbers["rss"] = used.cpu, used.rss

    def events(self) -> None:
        """Changes that decide nothing, of pods that concern nobody and of those with a proxy."""
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
                self.numbers[f"achieved-{kind}-{rate}"] = events / (
                    max(times["stored"]) - min(times["sent"])
                )

    def answers(self) -> None:
        """What it answers while events come."""
        with self._eventful(self._sizes.rates[-1], self._sizes.seconds):
            for path in self._unit.answers:
                took = [self._unit.seconds(path) for _ in range(self._sizes.looks)]
                self.numbers[f"{path}-p50"] = percentile(took, 50)
                self.numbers[f"{path}-most"] = max(took)

    def quits(self) -> None:
        """Pods finish at a steady rate."""
        sizes, prefix = self._sizes, self._crowd.prefix()
        self._driver.create(prefix, sizes.quits, "running", pod="job", where=self._crowd.mesh)
        self._settle()
        meter = Meter({"cpu": self._pid})
        times = self._driver.patch(
            prefix, sizes.quits, "finish", rate=sizes.rate, where=self._crowd.mesh
        )
        told = self._exits(prefix, sizes.quits)
        self.numbers["quit-cpu"] = meter.read()["cpu"] / sizes.quits
        took = [end - start for start, end in zip(times["sent"], told, strict=True)]
        self.numbers["quit-p50"], self.numbers["quit-p99"] = (percentile(took, p) for p in (50, 99))

    def admission(self) -> None:
        """Reviews and creations, when nothing happens and while events come."""
        if not (workload := self._workload):
            return
        crowd, sizes = self._crowd, self._sizes
        with self._reviewed("idle", sizes.seconds):
            pass
        with (
            self._reviewed("events", sizes.seconds),
            self._eventful(sizes.rates[-1], sizes.seconds),
        ):
            pass
        workload.publish()
        workload.await_admission(f"{NAME}-{crowd.form('webhook').first:05}")
        events = round(sizes.seconds * 100 / ROUNDS)
        took: dict[str, list[float]] = {"neither": [], "webhook": []}
        collected = self._collected()
        try:
            with self._driver.twin() as twin, self._eventful(sizes.rates[0], 4 * sizes.seconds):
                # In turns: a garbage collection of the API server delays all forms alike.
                for form in (*took,) * ROUNDS:
                    took[form] += twin.admit(
                        crowd.prefix(), events, "unmeshed", rate=100, where=crowd.form(form)
                    )
            for form, times in took.items():
                self._spread(f"creation-{form}", times)
            self.numbers["creation-gc"] = self._collected() - collected
        finally:
            workload.withdraw()

    def _collected(self) -> float:
        """Seconds of CPU that the API server's garbage collections have taken."""
        _, text = creation.send(self._crowd.cluster, "GET", "/metrics")
        found = re.search(rb"^go_cpu_classes_gc_total_cpu_seconds_total (\S+)$", text, re.MULTILINE)
        if not found:
            raise MeasurementError("the API server's /metrics: no CPU of garbage collections")
        return float(found[1])

    def relabel(self) -> None:
        """A large namespace is selected, and no longer."""
        sizes, unit = self._sizes, self._unit
        name = f"{NAME}-{self._crowd.large.first:05}"

        def label(value: str | None) -> None:
            with self._crowd.cluster.client() as client:
                labels = {KEY: value and "yes", "istio-injection": value}
                client.patch(Namespace, name, {"metadata": {"labels": labels}})

        with self._reviewed("relabel", sizes.seconds):
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
        sizes, unit, prefix = self._sizes, self._unit, self._crowd.prefix()
        self._driver.create(prefix, 1, "running", pod="job", where=self._crowd.mesh)
        self._settle()
        meter = Meter({"cpu": self._pid})
        expired = unit.metric('istio_aux_watch_restarts_total{reason="expired"}')
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
        with self._reviewed("relist", 2 * sizes.seconds):
            self._driver.patch(prefix, 1, "finish", where=self._crowd.mesh)
            told = self._exits(prefix, 1)
            self.numbers["relist-quit"] = told[0] - ready
            if expired >= 0:
                metric = 'istio_aux_watch_restarts_total{reason="expired"}'
                with suppress(TimeoutError):
                    lab.until(lambda: unit.metric(metric) > expired, timeout=10, what="a 410")
                self.numbers["expired"] = unit.metric(metric) - expired
            self._until(lambda: unit.ready and unit.unmeshed >= sizes.unmeshed, "to be ready again")
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
            ("audit", ("-A",)), ("explain", ("-n", f"{NAME}-00000", "pod/job-000000")),
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
            leader.end(number)
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
    def _reviewed(self, when: str, seconds: float) -> Generator[None]:
        """Reviews come during the block, 100 a second, for at least so many seconds."""
        if not (workload := self._workload):
            yield
            return
        body = self._crowd.cluster.state / "review.json"
        body.write_text(reviews.bodies()[SMALL])
        replies: list[dict[str, Any]] = []

        def run() -> None:
            with suppress(MeasurementError):
                replies.append(
                    self._load.order(
                        address=f"{workload.cluster.host}:{workload.webhook_port}",
                        name=f"{workload.name}.{workload.model}.svc",
                        certificate=str(workload.config.with_name("tls.crt")),
                        pid=self._pid, body=str(body), connections=16, rate=100, warm=1,
                        seconds=seconds,
                    )
                )  # fmt: skip

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            thread.join()
        if not replies:
            raise MeasurementError(f"reviews {when}: no answer")
        self._spread(f"review-{when}", [micros / 1e6 for micros in replies[0]["latencies"]])

    def _spread(self, key: str, took: Sequence[float]) -> None:
        for much, percent in (("p50", 50), ("p99", 99), ("most", 100)):
            self.numbers[f"{key}-{much}"] = percentile(took, percent)

    @contextmanager
    def _generator(self) -> Generator[Conversation]:
        with started("bench-load") as program:
            yield program


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
