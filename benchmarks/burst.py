"""Jobs that end at once on a real kubelet: classic sidecars with istio-aux beside native ones.

README.md says how it is taken. Nothing here is asserted: numbers stand beside a target.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Generator, Iterable
from pathlib import Path
from urllib.parse import urlsplit

import lab
import lab.istio
from lab import images, node, workloads
from lab.creation import audited
from lab.fixtures import make_namespace
from lab.meshed import is_ready
from lab.workload import Workload
from lightkube import Client
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Namespace, Pod
from lightkube.types import CascadeType

from benchmarks import burst_report as report, machine, tables
from benchmarks.burst_numbers import CLASSIC, NATIVE, Burst, Observed, Sizes, join
from benchmarks.driver import MeasurementError
from benchmarks.processes import Meter

NAME = "istio-aux-burst"
"""Of the namespace of the Jobs."""

SELECTOR = "bench.istio-aux.io/burst=yes"
"""Not the default one: other workloads of the cluster, if any, leave these pods alone."""

MOST = 100
"""Jobs at once: a kubelet runs 110 pods."""

WHOLE = Sizes(jobs=50, rounds=3, settle=8.0, limit=600.0)
QUICK = Sizes(jobs=3, rounds=1, settle=0.5, limit=300.0)

# Istio's proxy requests a tenth of a core by default: 50 do not fit on a small node.
SMALL = {"sidecar.istio.io/proxyCPU": "1m", "sidecar.istio.io/proxyMemory": "1Mi"}
# Beside istio-aux a pod gets what Istio makes of it by itself, which is a classic sidecar here.
ANNOTATIONS = {CLASSIC: SMALL, NATIVE: {**SMALL, "sidecar.istio.io/nativeSidecar": "true"}}
LAB = ("kube-apiserver", "etcd", "kube-controller-manager", "kubelet", "containerd")


def main(sizes: Sizes, results: Path | None) -> None:
    """Measure on a cluster of its own, print all tables, and keep ``burst.md`` in ``results``.

    Raises:
        MeasurementError, TimeoutError, ChildProcessError: it could not be measured.
        tools.errors.ToolError: pods cannot run here.
    """
    on = machine.describe()
    with lab.cluster("node") as cluster:
        bursts = measure(cluster, sizes)
    text = report.markdown(sizes, on, bursts)
    print(text, report.details(bursts), sep="\n\n")
    if results:
        tables.write(results, "burst", text)


def measure(cluster: lab.Cluster, sizes: Sizes) -> list[Burst]:
    """All bursts, the kinds by turns. Raises as `main` does."""
    cluster.load(images.busybox())
    # Of its own: the cluster may have another Istio.
    istio = lab.istio.install(cluster, f"{NAME}-istio", revision=NAME, native="on request")
    key, _, value = SELECTOR.partition("=")
    with cluster.client() as client, tempfile.TemporaryDirectory() as folder:
        make_namespace(client, NAME, {key: value, "istio.io/rev": NAME})
        workload = Workload(cluster, Path(folder), name=NAME, model=NAME, selector=SELECTOR)
        workload.deploy()
        where = ["--address", node.CONTAINERD, "--namespace", "k8s.io"]
        events = cluster.spawn("ctr-events", ["ctr", *where, "events"])
        try:
            bench = _Bench(cluster, client, sizes, workload, events.log)
            kinds = [CLASSIC, NATIVE, NATIVE, CLASSIC] * sizes.rounds
            return [bench.play(n, kind) for n, kind in enumerate(kinds[: 2 * sizes.rounds])]
        finally:
            events.kill()
            client.delete(Namespace, NAME)
            istio.remove()


class _Bench:
    """Plays one burst after another."""

    def __init__(
        self, cluster: lab.Cluster, client: Client, sizes: Sizes, workload: Workload, events: Path
    ) -> None:
        self._cluster, self._client, self._sizes = cluster, client, sizes
        self._workload, self._events = workload, events
        gate = cluster.state / "gate"
        gate.mkdir()
        self._gate = gate / "fifo"
        os.mkfifo(self._gate)

    def play(self, number: int, kind: str) -> Burst:
        """One burst; istio-aux runs only where it is needed."""
        print(f"benchmarks: {self._sizes.jobs} Jobs, {kind}", flush=True)
        if kind is CLASSIC:
            self._workload.start()
            self._workload.await_ready()
        # Payloads that read it wait as long as it is open for writing.
        gate = os.open(self._gate, os.O_RDWR)
        try:
            self._start(number, kind)
            # Starts leave the kubelet with work, of which nothing tells when it is done.
            time.sleep(self._sizes.settle)
            burst = self._burst(kind, gate)
        finally:
            if self._workload.running:
                self._workload.stop()
        self._clear()
        return burst

    def _start(self, number: int, kind: str) -> None:
        """Make the Jobs; return when all their containers run and the proxies are ready."""
        for index in range(self._sizes.jobs):
            job = workloads.job(self._template(kind))
            job["metadata"] = {"name": f"burst-{number}-{index}", "namespace": NAME}
            self._client.create(workloads.Job.from_dict(job))

        def ready() -> bool:
            return sum(map(is_ready, self._client.list(Pod, namespace=NAME))) == self._sizes.jobs

        what = f"{self._sizes.jobs} pods to be ready"
        lab.until(ready, what=what, timeout=self._sizes.limit, every=1)

    def _template(self, kind: str) -> dict[str, object]:
        """A pod whose payload waits for the gate."""
        mount = {"name": "gate", "mountPath": "/gate"}
        payload = workloads.container("read _ < /gate/fifo; exit 0", volumeMounts=[mount])
        folder = {"path": str(self._gate.parent), "type": "Directory"}
        return workloads.template(
            payload,
            annotations=ANNOTATIONS[kind],
            volumes=[{"name": "gate", "hostPath": folder}],
            terminationGracePeriodSeconds=30,
        )

    def _burst(self, kind: str, gate: int) -> Burst:
        """Close the gate, on which all payloads end; return once all pods have ended."""
        sizes, pids = self._sizes, {name: self._cluster.process(name).pid for name in LAB}
        if kind is CLASSIC:
            pids["istio-aux"] = self._workload.process.pid
        with _watched(self._cluster) as lines:
            lab.until(lambda: len(lines) >= sizes.jobs, what="the watch", timeout=sizes.limit)
            meter = Meter(pids)
            os.close(gate)
            succeeded = b'"phase":"Succeeded"'
            lab.until(
                lambda: sum(succeeded in line for _, line in list(lines)) >= sizes.jobs,
                what=f"{sizes.jobs} pods to end", timeout=sizes.limit, every=0.2,
            )  # fmt: skip
            cpu = meter.read()
            spread, pods = lab.until(
                lambda: join(self._observed(kind, lines)),
                what="all that is observed of a burst", ignoring=(MeasurementError,), every=0.5,
            )  # fmt: skip
        return Burst(kind=kind, spread=spread, pods=pods, cpu=cpu)

    def _observed(self, kind: str, lines: Iterable[tuple[float, bytes]]) -> Observed:
        """What is there so far."""
        return Observed(
            watch=list(lines),
            containerd=_whole(self._events),
            audit=audited(self._cluster, about=f'"namespace":"{NAME}"'),
            log=map(json.loads, _whole(self._workload.process.log)) if kind is CLASSIC else (),
        )

    def _clear(self) -> None:
        """Delete the Jobs, so that the next ones find what these found."""
        self._client.deletecollection(Job, namespace=NAME, cascade=CascadeType.BACKGROUND)
        lab.until(
            lambda: not list(self._client.list(Pod, namespace=NAME)),
            what="the pods to be deleted", timeout=self._sizes.limit, every=1,
        )  # fmt: skip


def _whole(log: Path) -> list[str]:
    """The lines of a file that are whole."""
    return log.read_text().rpartition("\n")[0].splitlines()


@contextlib.contextmanager
def _watched(cluster: lab.Cluster) -> Generator[list[tuple[float, bytes]]]:
    """Lines of a watch of the pods as they arrive, each with its time; nothing is decoded yet."""
    pair = cluster.issue(NAME, NAME, organizations=["system:masters"])
    tls = ssl.create_default_context(cafile=str(cluster.ca))
    tls.load_cert_chain(pair.certificate, pair.key)
    address = urlsplit(cluster.server)
    connection = http.client.HTTPSConnection(str(address.hostname), address.port, context=tls)
    connection.request("GET", f"/api/v1/namespaces/{NAME}/pods?watch=true")
    answer, lines = connection.getresponse(), list[tuple[float, bytes]]()

    def read() -> None:
        # The end of the block ends the connection.
        with contextlib.suppress(http.client.HTTPException, OSError):
            for line in answer:
                lines.append((time.time(), line))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield lines
    finally:
        connection.sock.shutdown(socket.SHUT_RDWR)
        reader.join()
        connection.close()
