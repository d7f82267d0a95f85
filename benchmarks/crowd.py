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

from benchmarks import driver as driving
from benchmarks import pods
from benchmarks.driver import Driver, Where
from benchmarks.scale_numbers import Sizes

NAME = "scale"
"""Of the node, of applications, and the beginning of the namespaces' names."""
KEY = "bench.istio-aux.io/pods"


@contextmanager
def crowded(sizes: Sizes) -> Generator[Crowd]:
    """A cluster with all the pods, and Istio, which came after them."""
    with lab.cluster("api") as cluster, tempfile.TemporaryDirectory() as folder:
        # It follows every pod, and would delete those whose controllers do not exist.
        cluster.process("kube-controller-manager").kill()
        bodies = pods.crowd(NAME, {KEY: "yes"})
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
        self._istio: lab.istio.Istio | None = None
        self._prefixes = 0
        half = sizes.namespaces // 2
        self.mesh = Where(0, half)
        self.plain = Where(half, sizes.namespaces - half)
        self.large = Where(sizes.namespaces, 1)
        self._forms = {
            form: Where(sizes.namespaces + number, 1)
            for number, form in enumerate(("neither", "webhook"), 1)
        }

    def make(self) -> None:
        """Make namespaces and pods."""
        sizes, driver = self.sizes, self.driver
        for where, kind in (
            (self.mesh, "mesh"), (self.plain, "plain"), (self.large, "plain"),
            (self._forms["neither"], "plain"), (self._forms["webhook"], "selected"),
        ):  # fmt: skip
            driver.namespaces(kind, where)
        self.fill(sizes, "")

    def fill(self, sizes: Sizes, batch: str | None = None) -> None:
        """Make so many pods in the namespaces that there are; ``batch``: the end of their names.

        Istio comes after them, and injects none.
        """
        if self._istio:
            self._istio.remove()
        driver = self.driver
        batch = f"-{self.prefix()}" if batch is None else batch
        say(f"{sizes.pods:,} pods are made")
        began, refusing = time.monotonic(), sizes.others // 2
        for kind, count, status, pod, where in (
            ("job", sizes.jobs, "running", "job", self.mesh),
            ("unmeshed", sizes.unmeshed, "alone", "unmeshed", self.mesh),
            ("refusing", refusing, "alone", "refusing", self.mesh),
            ("other", sizes.others - refusing, "alone", "other", self.plain),
            ("large", sizes.large, "alone", "other", self.large),
        ):
            driver.copy(kind + batch, count, status, pod=pod, where=where)
        self.made = time.monotonic() - began
        say(f"made in {self.made:.0f} s, {sizes.pods / self.made:.0f} a second")
        self._istio = lab.istio.install(self.cluster)

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

    def form(self, form: str) -> Where:
        """Where pods of a form of admission go."""
        return self._forms[form]


def say(what: str) -> None:
    """Print progress."""
    print(f"benchmarks: {what}", flush=True)
