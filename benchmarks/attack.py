"""How many pods are late while pods of a tenant flood the webhook with reviews; README.md says how.

Late is a pod that the API server created unchanged, because it had no answer within the seconds
that charm and chart let it wait. Each connection of the flood comes from an address of its own, as
those of pods do, and asks again as soon as it is answered.
"""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import lab
from lab import creation, meshed
from lab.fixtures import make_namespace
from lab.workload import Workload

from benchmarks import document, machine
from benchmarks.flood import bodies, flooding
from benchmarks.numbers import BEFORE, OURS, Numbers, Verdict, percentile
from benchmarks.quitters import installed

CONNECTIONS = (60, 120, 200)
PODS, RATE = 70, 5.0  # Pods of another tenant that are created meanwhile, and how many a second.
HELD = b"istio-aux.io/started-with"
SETTLE = 2.0  # Seconds for which the flood runs before the first of them.


class Flooded(Numbers, frozen=True, kw_only=True):
    """What one flood did to a program."""

    flood: str
    connections: int
    program: str
    late: int
    milliseconds: list[float]
    """How long each creation took."""
    answered: int
    """Reviews of the flood that got an answer."""


class Results(Numbers, frozen=True, kw_only=True):
    """All floods, and the machine."""

    machine: dict[str, str]
    floods: list[Flooded]

    def verdicts(self) -> Iterator[Verdict]:
        """One for each flood of this revision."""
        for one in self.floods:
            if one.program == OURS:
                what = f"late of {PODS}, {one.connections} connections, {one.flood}"
                yield Verdict(what, str(one.late), "0", one.late == 0)


def main(results: Path | None, before: Path | None, *, quick: bool) -> None:
    """Measure, print the table, and keep ``attack.md`` and ``.json`` in ``results``.

    Raises MeasurementError, TimeoutError, ChildProcessError: it could not be measured.
    """
    on, pods = machine.describe(), 5 if quick else PODS
    programs: dict[str, Path | None] = {**({BEFORE: before} if before else {}), OURS: None}
    floods: list[Flooded] = []
    with tempfile.TemporaryDirectory() as folder, lab.cluster("api") as cluster:
        for flood in bodies():
            for connections in CONNECTIONS[:1] if quick else CONNECTIONS:
                for program, checkout in programs.items():
                    print(f"benchmarks: {flood}, {connections}, {program}", flush=True)
                    name = f"attacked-{len(floods)}"
                    with _published(cluster, Path(folder) / name, name, checkout) as workload:
                        floods.append(_flooded(workload, program, flood, connections, pods))
    measured = Results(machine=on, floods=floods)
    print(markdown(measured))
    if results:
        document.write(results, "attack", measured, markdown(measured))


def markdown(measured: Results) -> str:
    """A line for each flood."""
    lines = [
        (
            f"{one.flood}, {one.connections} connections, {one.program}", f"{one.late}",
            *(f"{percentile(sorted(one.milliseconds), part):.0f}" for part in (50, 99)),
            f"{one.answered:,}",
        )
        for one in measured.floods
    ]  # fmt: skip
    head = ("flood", f"late of {PODS}", "creation p50 ms", "p99 ms", "reviews of the flood")
    return "\n\n".join(
        [
            "# Attack benchmark",
            ", ".join(f"{name} {value}" for name, value in measured.machine.items()),
            document.table(head, lines),
        ]
    )


@contextmanager
def _published(
    cluster: lab.Cluster, folder: Path, name: str, checkout: Path | None
) -> Generator[Workload]:
    workload = Workload(cluster, folder, name=name, model=name, selector=f"bench/{name}=yes")
    workload.deploy()
    workload.start(installed(workload.argv, checkout))
    try:
        workload.await_ready()
        with cluster.client() as client:
            make_namespace(client, f"{name}-honest")
        workload.select(f"{name}-honest")
        workload.publish()
        workload.await_admission(f"{name}-honest")
        yield workload
        workload.withdraw()
    finally:
        workload.process.kill()
        workload.process.wait(30)


def _flooded(workload: Workload, program: str, flood: str, connections: int, pods: int) -> Flooded:
    pod = meshed.nameless(f"{workload.name}-honest", sidecar=None)
    port = workload.webhook_port
    with (
        flooding(workload.cluster.host, port, connections, flood) as answered,
        creation.Stream(workload.cluster, pod, rate=RATE, dry_run=True) as stream,
    ):
        stream.await_more(int(SETTLE * RATE))
        made = stream.await_more(pods)[:pods]
    late = sum(each.status == 201 and HELD not in each.body for each in made)
    return Flooded(
        flood=flood, connections=connections, program=program, late=late,
        milliseconds=[each.seconds * 1e3 for each in made], answered=answered[0],
    )  # fmt: skip
