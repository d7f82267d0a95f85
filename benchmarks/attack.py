"""How many pods are late while pods of a tenant flood the webhook with reviews; README.md says how.

Late is a pod that the API server created unchanged, because it had no answer within the seconds
that charm and chart let it wait. Each connection of the flood asks again as soon as it is answered.
The attacker may be there before the API server: the unit starts while it is attacked.
"""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import lab
import lab.istio
from lab import creation, meshed
from lab.fixtures import make_namespace
from lab.workload import Workload

from benchmarks import machine, tables
from benchmarks.flood import bodies, flooding
from benchmarks.programs import installed
from benchmarks.tables import BEFORE, OURS, percentile

# Pods of another tenant that are created meanwhile: one after another at a rate, then all at once.
# For most of these the API server opens a connection, as it keeps 25.
PODS, RATE = 80, 10.0
HELD = b"istio-aux.io/started-with"
SETTLE = 2.0  # Seconds for which the flood runs before the first of them.


@dataclass(frozen=True)
class Attack:
    """`addresses` of its connections; 0: each has one of its own."""

    flood: str
    connections: int
    addresses: int = 0
    first: bool = False  # Whether the attacker is there before the API server.

    def __str__(self) -> str:
        where = "" if not self.addresses else " from one address"
        first = ", attacker first" if self.first else ""
        return f"{self.flood}, {self.connections}{where}{first}"


ATTACKS = (
    Attack("9,000 levels", 200),
    Attack("495 keys", 200),
    *(Attack("330 maps", each, first=first) for first in (False, True) for each in (500, 700, 900)),
    *(Attack("330 maps", 1500, 1, first=first) for first in (False, True)),
)
HEAD = (
    "flood, connections",
    "late",
    "late of a burst",
    "creation p50 ms",
    "p99 ms",
    "reviews of the flood",
)


def main(results: Path | None, before: Path | None, *, quick: bool) -> list[tuple[str, ...]]:
    """Measure, print the table, keep ``attack.md`` in ``results``, and return the table's lines.

    Raises MeasurementError, TimeoutError, ChildProcessError: it could not be measured.
    """
    on, pods = machine.describe(), 5 if quick else PODS
    programs: dict[str, Path | None] = {**({BEFORE: before} if before else {}), OURS: None}
    lines: list[tuple[str, ...]] = []
    with tempfile.TemporaryDirectory() as folder, lab.cluster("api") as cluster:
        lab.istio.install(cluster)
        for attack in ATTACKS[:1] if quick else ATTACKS:
            for program, checkout in programs.items():
                what = f"{attack}, {program}" if before else f"{attack}"
                name = f"a-{len(lines)}"
                print(f"benchmarks: {what}", flush=True)
                with _deployed(cluster, Path(folder) / name, name) as workload:
                    lines.append((what, *_attacked(workload, checkout, attack, pods)))
    described = ", ".join(f"{name} {value}" for name, value in on.items())
    text = "\n\n".join(["# Attack benchmark", described, tables.table(HEAD, lines)])
    print(text)
    if results:
        tables.write(results, "attack", text)
    return lines


@contextmanager
def _deployed(cluster: lab.Cluster, folder: Path, name: str) -> Generator[Workload]:
    """A workload that is not started, with its webhook and a namespace in the mesh."""
    selector = f"bench/{name}=yes"
    workload = Workload(cluster, folder, name=name, model=name, selector=selector)
    workload.deploy()
    with cluster.client() as client:
        labels = {f"bench/{name}": "yes", "istio-injection": "enabled"}
        make_namespace(client, f"{name}-honest", labels)
    workload.publish()
    yield workload
    workload.withdraw()
    workload.process.kill()
    workload.process.wait(30)


def _attacked(
    workload: Workload, checkout: Path | None, attack: Attack, pods: int
) -> tuple[str, ...]:
    """The rest of the attack's line."""
    cluster, namespace = workload.cluster, f"{workload.name}-honest"
    pod = meshed.nameless(namespace, sidecar=None)
    where = cluster.host, workload.webhook_port, attack.connections, bodies()[attack.flood]
    flood = flooding(*where, addresses=attack.addresses, begun=not attack.first)
    with ExitStack() as stack:
        answered = stack.enter_context(flood) if attack.first else None
        workload.start(installed(workload.argv, checkout))
        workload.await_ready()
        if answered is None:
            workload.await_admission(namespace)
            answered = stack.enter_context(flood)
        with creation.Stream(cluster, pod, rate=RATE, dry_run=True) as stream:
            stream.await_more(int(SETTLE * RATE))
            made = stream.await_more(pods)[:pods]
        burst = creation.create(cluster, *[pod] * pods, dry_run=True, at_once=pods)
    took = [each.seconds * 1e3 for each in made]
    spread = (f"{percentile(took, part):.0f}" for part in (50, 99))
    late = (sum(HELD not in each.body for each in some) for some in (made, burst))
    return *(f"{each} of {pods}" for each in late), *spread, f"{len(answered):,}"
