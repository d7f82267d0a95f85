"""The cluster of the scale benchmark: tens of thousands of pods that are there before Istio."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import lab
import lab.istio
from lab.workload import Workload
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace, ServiceAccount

from benchmarks import driver as driving, pods
from benchmarks.driver import Driver, Where
from benchmarks.scale_rows import Sizes

NAME = "scale"
"""Of the node, of applications, and the beginning of the namespaces' names."""
KEY = "bench.istio-aux.io/pods"


@contextmanager
def crowded(sizes: Sizes) -> Generator[Crowd]:
    """A cluster with all the pods, and Istio, which came after them."""
    with lab.cluster("api") as cluster, tempfile.TemporaryDirectory() as folder:
        # It follows every pod, and would delete those whose controllers do not exist.
        cluster.process("kube-controller-manager").kill()
        bodies = pods.crowd(NAME)
        with driving.running(cluster, NAME, NAME, sizes.exit_delay, bodies) as driver:
            crowd = Crowd(cluster, driver, sizes, Path(folder))
            crowd.make()
            yield crowd


class Crowd:
    """The cluster and its pods.

    Attributes:
        made: seconds that making the pods took.
    """

    def __init__(self, cluster: lab.Cluster, driver: Driver, sizes: Sizes, folder: Path) -> None:
        self.cluster, self.driver, self.sizes, self._folder = cluster, driver, sizes, folder
        self.made = 0.0
        self._prefixes = 0
        half = sizes.namespaces // 2
        self.mesh = Where(0, half)
        self.plain = Where(half, sizes.namespaces - half)
        self.large = Where(sizes.namespaces, 1)

    def make(self) -> None:
        """Make namespaces, then pods, then Istio, which injects none of them."""
        sizes, mesh = self.sizes, {KEY: "yes", "istio-injection": "enabled"}
        with self.cluster.client() as client:
            for number in range(sizes.namespaces + 1):
                labels = mesh if number < self.mesh.spread else {}
                client.create(Namespace(metadata=ObjectMeta(name=named(number), labels=labels)))
            for where in (self.mesh, self.plain, self.large):
                # Of each kind the API server makes one pod, which goes to the first namespace.
                account = ObjectMeta(name="default", namespace=named(where.first))
                client.create(ServiceAccount(metadata=account))
        say(f"{sizes.pods:,} pods are made")
        began, refusing = time.monotonic(), sizes.others // 2
        for kind, count, status, pod, where in (
            ("job", sizes.jobs, "running", "job", self.mesh),
            ("unmeshed", sizes.unmeshed, "alone", "unmeshed", self.mesh),
            ("refusing", refusing, "alone", "refusing", self.mesh),
            ("other", sizes.others - refusing, "alone", "other", self.plain),
            ("large", sizes.large, "alone", "other", self.large),
        ):
            self.driver.create(kind, count, status, pod=pod, where=where)
        self.made = time.monotonic() - began
        lab.istio.install(self.cluster)

    def prefix(self) -> str:
        """A new one, for names of pods."""
        self._prefixes += 1
        return f"made-{self._prefixes}"

    def deploy(self, checkout: Path | None) -> Workload:
        """Our application; ``checkout``: the one that is there."""
        name = f"{NAME}-before" if checkout else f"{NAME}-ours"
        workload = Workload(
            self.cluster, self._folder / name, name=name, model=name, selector=f"{KEY}=yes",
            more={"lease": f"{name}/{name}"},
        )  # fmt: skip
        workload.deploy()
        return workload


def named(number: int) -> str:
    """The name of a namespace."""
    return f"{NAME}-{number:05}"


def say(what: str) -> None:
    """Print progress."""
    print(f"benchmarks: {what}", flush=True)
