"""What each event costs the charm: CPU, imports, requests and hook tools; README.md says how.

The packed charm runs by its own `dispatch`, under the lab's stand-in for Juju, on a real API
server and Pebble. Requests are counted there: in the audit log, and in the log of Pebble.
"""

from __future__ import annotations

import json
import re
import statistics
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

import lab
import lab.istio
import lab.juju
import lab.pack
import msgspec
from lab import interpreters
from lab.creation import audited
from lab.juju.dispatch import Event
from lab.juju.unit import Unit

from benchmarks import machine
from benchmarks.document import table
from benchmarks.numbers import BEFORE, OURS, Numbers, Verdict

HERE = Path(__file__).with_name("hook")
QUIET = "update-status"
LEADER, OTHER = "leader", "another unit"
# Seconds of CPU of the charm's process.
TARGET = 0.5
READS = ("get", "list")
# They ask about the charm's rights and the workload's token, and store nothing.
REVIEWS = ("create selfsubjectaccessreviews", "create tokenreviews")
# Verbose Pebble notes each request. Those that Juju's agent makes all the time are not counted.
_PEBBLE = re.compile(r"(?P<at>\S+Z) \[pebble\] (?P<verb>GET|POST) (?P<path>/v1/[a-z-]+)")
_AGENTS = ("/v1/changes", "/v1/health", "/v1/notices", "/v1/system-info")
_MODEL = "hooks"
# Relations that come and go, each alone.
ENDPOINTS = (
    "metrics-endpoint", "grafana-dashboard", "logging", "istio-pilot", "istio-metadata",
    "service-mesh", "sidecar", "certificates", "charm-tracing",
)  # fmt: skip


class Cost(Numbers, frozen=True):
    """One event.

    Attributes:
        unit: `LEADER` or `OTHER`.
        event: its name.
        runs: how often it was measured; the numbers are medians, the counts those of the last.
        wall: seconds from the start of `dispatch` to its end.
        cpu: seconds of CPU of the charm's process.
        imports: of these, what imports take.
        tools: seconds of CPU of the hook tools, which are the stand-in's.
        modules: how many the process has imported.
        requests: to the API server, as "verb resource".
        pebble: requests to Pebble, as "verb path".
        calls: of hook tools.
        lines: that went to juju-log, a call each.
    """

    unit: str
    event: str
    runs: int
    wall: float
    cpu: float
    imports: float
    tools: float
    modules: int
    requests: Mapping[str, int]
    pebble: Mapping[str, int]
    calls: Mapping[str, int]
    lines: int

    @property
    def writes(self) -> dict[str, int]:
        """The requests that store something."""
        return {
            name: count
            for name, count in self.requests.items()
            if name.split()[0] not in READS and name not in REVIEWS
        }


class Program(Numbers, frozen=True):
    """The charm of one checkout."""

    name: str
    costs: Sequence[Cost]

    def quiet(self, unit: str = LEADER) -> Cost:
        """What `update-status` costs while nothing happens."""
        return next(one for one in self.costs if (one.unit, one.event) == (unit, QUIET))


class Results(Numbers, frozen=True):
    """All that was measured, with the machine."""

    on: Mapping[str, str]
    programs: Sequence[Program]

    def verdicts(self) -> Iterator[Verdict]:
        """Each target with what was measured."""
        ours = self.programs[-1]
        for unit in (LEADER, OTHER):
            cost, what = ours.quiet(unit), f"{QUIET}, {unit}"
            yield Verdict(
                f"{what}: CPU", f"{cost.cpu:.2f} s", f"under {TARGET} s", cost.cpu < TARGET
            )
            writes = sum(cost.writes.values())
            yield Verdict(f"{what}: requests that write", str(writes), "0", not writes)


def main(*, quick: bool, results: Path | None, before: Path | None) -> None:
    """Measure on a cluster of its own, print the tables, and keep the files in ``results``.

    ``quick``: with one relation. ``before``: a checkout whose charm is measured, too.

    Raises:
        LabError, TimeoutError, ChildProcessError: it could not be measured.
    """
    with lab.cluster("node") as cluster:
        measured = measure(
            cluster, 3 if quick else 15, ENDPOINTS[-2:-1] if quick else ENDPOINTS, before
        )
    print(markdown(measured))
    if results:
        results.mkdir(parents=True, exist_ok=True)
        text = msgspec.json.format(msgspec.json.encode(measured), indent=1)
        (results / "hooks.json").write_bytes(text + b"\n")
        (results / "hooks.md").write_text(f"{markdown(measured)}\n")


def measure(
    cluster: lab.Cluster, rounds: int, endpoints: Sequence[str], before: Path | None = None
) -> Results:
    """Play every event with the charm of this checkout, and with that of ``before``."""
    on = {**machine.describe(), "Python of the charm": interpreters.version()}
    checkouts = {BEFORE: before, OURS: lab.pack.ROOT}
    charms = {name: lab.pack.pack(each.resolve()) for name, each in checkouts.items() if each}
    lab.istio.install(cluster)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        apps: dict[str, lab.juju.App] = {}
        for name, charm in charms.items():
            # The lab's audit policy has the accounts of these two models.
            namespace = _MODEL if name is OURS else f"{_MODEL}-before"
            model = stack.enter_context(lab.juju.Model(cluster, namespace))
            apps[name] = model.deploy(_with_meter(charm, folder / namespace), trust=True)
            model.settle()
        units = {name: [*_play(app, endpoints)] for name, app in apps.items()}
        # In turns: what slows the machine slows both.
        for _ in range(rounds):
            for name, app in apps.items():
                for unit in units[name]:
                    app.model.agent.run(unit, Event(QUIET))
        for app in apps.values():
            app.remove()
        programs = [Program(name, [*_read(cluster, units[name])]) for name in apps]
    return Results(on, programs)


def _with_meter(charm: Path, folder: Path) -> Path:
    """Return a copy of the packed charm whose `dispatch` notes what the charm's own costs."""
    folder.mkdir()
    copy = folder / charm.name
    with zipfile.ZipFile(charm) as source, zipfile.ZipFile(copy, "w") as target:
        for entry in source.infolist():
            content = source.read(entry)
            if entry.filename == "dispatch":
                meter = zipfile.ZipInfo("dispatch")
                meter.external_attr = entry.external_attr
                target.writestr(meter, '#!/bin/sh\nexec python3 -I "$0.py"\n')
                entry.filename = "dispatch.charm"
            target.writestr(entry, content)
        target.write(HERE / "dispatch.py", "dispatch.py")
        target.write(HERE / "sitecustomize.py", "lib/sitecustomize.py")
    return copy


def _play(app: lab.juju.App, endpoints: Sequence[str]) -> Iterator[Unit]:
    """Bring every other event to the application; yields its leader and another unit."""
    unit, agent = app.leader, app.model.agent
    yield unit
    for endpoint in endpoints:
        relation = app.integrate(endpoint, f"remote-{endpoint}")
        app.settle()
        relation.remove()
        app.settle()
    app.configure(log_level="debug")
    app.settle()
    app.run("leader-elected")
    agent.run(unit, Event("secret-changed", {"JUJU_SECRET_ID": "secret:x"}))
    app.settle()
    app.replace_pod(0)
    app.settle()
    app.scale(2)
    app.settle()
    yield app.units[1]


def _read(cluster: lab.Cluster, units: Iterable[Unit]) -> Iterator[Cost]:
    """Return what the units' events cost, in the order in which they came first."""
    for name, unit in zip((LEADER, OTHER), units, strict=True):
        hooks = [
            each for each in (unit.folder / "hooks").iterdir() if (each / "cost.json").exists()
        ]
        by_event: dict[str, list[Path]] = {}
        for hook in sorted(hooks):
            by_event.setdefault(hook.name.partition("-")[2], []).append(hook)
        requests, pebble = [*_audit(cluster, unit)], [*_pebble(cluster, unit)]
        for event, runs in by_event.items():
            yield _cost(name, event, runs, requests, pebble)


def _cost(
    unit: str,
    event: str,
    hooks: Sequence[Path],
    requests: Sequence[tuple[float, str]],
    pebble: Sequence[tuple[float, str]],
) -> Cost:
    """Return what the runs of an event cost; `requests` and `pebble` are those of all events."""
    costs = [json.loads((hook / "cost.json").read_text()) for hook in hooks]
    imports = [json.loads((hook / "imports.json").read_text()) for hook in hooks]
    last, begun = hooks[-1], costs[-1]["began"]
    ended = begun + costs[-1]["wall"]

    def during(all_of: Sequence[tuple[float, str]]) -> dict[str, int]:
        return dict(sorted(Counter(what for at, what in all_of if begun <= at <= ended).items()))

    def median(of: Sequence[Mapping[str, float]], key: str) -> float:
        return round(statistics.median(one[key] for one in of), 4)

    return Cost(
        unit=unit,
        event=event,
        runs=len(hooks),
        wall=median(costs, "wall"),
        cpu=median(costs, "cpu"),
        imports=median(imports, "imports"),
        tools=median(costs, "children"),
        modules=len(imports[-1]["modules"]),
        requests=during(requests),
        pebble=during(pebble),
        calls=dict(sorted(Counter((last / "tools").read_text().splitlines()).items())),
        lines=len((last / "log").read_text().splitlines()),
    )


def _audit(cluster: lab.Cluster, unit: Unit) -> Iterator[tuple[float, str]]:
    """Yield when the charm sent a request to the API server, and its verb and resource."""
    app, model = unit.name.partition("/")[0], unit.folder.parent.name
    for event in audited(cluster, about=f'"system:serviceaccount:{model}:{app}"'):
        about = event.get("objectRef") or {"resource": event["requestURI"]}
        resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
        verb = event["verb"]
        yield _seconds(event["requestReceivedTimestamp"]), f"{verb} {resource}"


def _pebble(cluster: lab.Cluster, unit: Unit) -> Iterator[tuple[float, str]]:
    """Yield when the charm sent a request to its container's Pebble, and verb and path."""
    for log in cluster.logs.glob(f"*{unit.name.replace('/', '-')}-*.log"):
        for found in _PEBBLE.finditer(log.read_text(errors="replace")):
            if found["path"] not in _AGENTS:
                yield _seconds(found["at"]), f"{found['verb']} {found['path']}"


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def markdown(results: Results) -> str:
    """The tables: targets, events, the requests of a quiet unit, and the machine."""
    ours, others = results.programs[-1], results.programs[:-1]
    parts = ["# What the charm's events cost", _verdicts(results)]
    for other in others:
        rows = [_ratio(other.quiet(unit), ours.quiet(unit)) for unit in (LEADER, OTHER)]
        head = (QUIET, "CPU", "imports", "wall", "modules", "API requests", "hook tools")
        parts += [f"## {ours.name} : {other.name}", table(head, rows)]
    for program in results.programs:
        head = (
            "event", "runs", "wall s", "CPU s", "imports s", "modules", "API requests", "writes",
            "Pebble", "hook tools", "their CPU s", "log lines",
        )  # fmt: skip
        parts += [f"## {program.name}: each event", table(head, map(_row, program.costs))]
    kinds = sorted({kind for p in results.programs for kind in p.quiet().requests})
    head = (f"requests of {QUIET}, {LEADER}", *(program.name for program in results.programs))
    rows = [(k, *(str(p.quiet().requests.get(k, 0)) for p in results.programs)) for k in kinds]
    parts += ["## Requests of a quiet unit", table(head, rows)]
    parts += ["## Machine", table(("", ""), [*results.on.items()])]
    return "\n\n".join(parts)


def _verdicts(results: Results) -> str:
    rows = [
        (v.what, v.measured, v.target, "met" if v.met else "**missed**") for v in results.verdicts()
    ]
    return table(("what", "measured", "target", ""), rows)


def _ratio(before: Cost, now: Cost) -> tuple[str, ...]:
    pairs = (
        (now.cpu, before.cpu), (now.imports, before.imports), (now.wall, before.wall),
        (now.modules, before.modules),
        (sum(now.requests.values()), sum(before.requests.values())),
        (sum(now.calls.values()), sum(before.calls.values())),
    )  # fmt: skip
    return now.unit, *(f"{ours:g} : {theirs:g} = {ours / theirs:.2f}" for ours, theirs in pairs)


def _row(cost: Cost) -> tuple[str, ...]:
    def count(of: Mapping[str, int]) -> str:
        return str(sum(of.values()))

    return (
        f"{cost.event}, {cost.unit}", str(cost.runs), f"{cost.wall:.2f}", f"{cost.cpu:.2f}",
        f"{cost.imports:.2f}", str(cost.modules), count(cost.requests), count(cost.writes),
        count(cost.pebble), count(cost.calls), f"{cost.tools:.2f}", str(cost.lines),
    )  # fmt: skip
