"""How many pods are late while pods of a tenant flood the webhook with reviews; README.md says how.

Late is a pod that the API server created unchanged, because it had no answer within the seconds
that charm and chart let it wait. Each connection of the flood comes from an address of its own, as
those of pods do, and asks again as soon as it is answered.
"""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import lab
from lab import creation, meshed
from lab.fixtures import make_namespace
from lab.workload import Workload

from benchmarks import machine, tables
from benchmarks.flood import bodies, flooding
from benchmarks.programs import installed
from benchmarks.tables import BEFORE, OURS, percentile

CONNECTIONS = (60, 120, 200)
PODS, RATE = 70, 5.0  # Pods of another tenant that are created meanwhile, and how many a second.
HELD = b"istio-aux.io/started-with"
SETTLE = 2.0  # Seconds for which the flood runs before the first of them.


HEAD = ("flood", "late", "creation p50 ms", "p99 ms", "reviews of the flood")


def main(results: Path | None, before: Path | None, *, quick: bool) -> list[tuple[str, ...]]:
    """Measure, print the table, keep ``attack.md`` in ``results``, and return the table's lines.

    Raises MeasurementError, TimeoutError, ChildProcessError: it could not be measured.
    """
    on, pods = machine.describe(), 5 if quick else PODS
    programs: dict[str, Path | None] = {**({BEFORE: before} if before else {}), OURS: None}
    lines: list[tuple[str, ...]] = []
    with tempfile.TemporaryDirectory() as folder, lab.cluster("api") as cluster:
        for flood in bodies():
            for connections in CONNECTIONS[:1] if quick else CONNECTIONS:
                for program, checkout in programs.items():
                    what, name = f"{flood}, {connections} connections, {program}", f"a-{len(lines)}"
                    print(f"benchmarks: {what}", flush=True)
                    with _published(cluster, Path(folder) / name, name, checkout) as workload:
                        lines.append((what, *_flooded(workload, flood, connections, pods)))
    described = ", ".join(f"{name} {value}" for name, value in on.items())
    text = "\n\n".join(["# Attack benchmark", described, tables.table(HEAD, lines)])
    print(text)
    if results:
        tables.write(results, "attack", text)
    return lines


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


def _flooded(workload: Workload, flood: str, connections: int, pods: int) -> tuple[str, ...]:
    """The rest of the flood's line."""
    pod = meshed.nameless(f"{workload.name}-honest", sidecar=None)
    port = workload.webhook_port
    with (
        flooding(workload.cluster.host, port, connections, bodies()[flood]) as answered,
        creation.Stream(workload.cluster, pod, rate=RATE, dry_run=True) as stream,
    ):
        stream.await_more(int(SETTLE * RATE))
        made = stream.await_more(pods)[:pods]
    late = sum(each.status == 201 and HELD not in each.body for each in made)
    took = [each.seconds * 1e3 for each in made]
    spread = (f"{percentile(took, part):.0f}" for part in (50, 99))
    return f"{late} of {pods}", *spread, f"{len(answered):,}"
