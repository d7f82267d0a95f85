"""The numbers of the scale benchmark, their goals and their tables: data and arithmetic only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks import document
from benchmarks.numbers import CONTROLLER, MIB, OURS, Numbers, Verdict


class Sizes(Numbers, frozen=True, kw_only=True):
    """How much of everything.

    Attributes:
        namespaces: how many; half of them are selected and injected.
        jobs: pods with a proxy, in selected namespaces.
        unmeshed: pods without the sidecar that they should have, in selected namespaces.
        others: pods that need neither, half of them in selected namespaces.
        large: pods of one more namespace, which is then relabelled; as `others`.
        finished: pods that are finished when a program starts.
        rates: of events, a second.
        seconds: for how long they come, and for how long reviews are sent.
        quits: pods that finish one after another, ``rate`` a second.
        rate: see there.
        looks: how often each page of a unit is read.
        units: of which one leads.
        exit_delay: seconds from a quit to the proxy's end in the API.
        limit: seconds after which something counts as broken.
    """

    namespaces: int
    jobs: int
    unmeshed: int
    others: int
    large: int
    finished: int
    rates: tuple[int, ...]
    seconds: float
    quits: int
    rate: float
    looks: int
    units: int
    exit_delay: float
    limit: float

    @property
    def pods(self) -> int:
        """All of them, before a program starts."""
        return self.jobs + self.unmeshed + self.others + self.large


class Measured(Numbers, frozen=True, kw_only=True):
    """Everything about one program.

    Attributes:
        name: of the program.
        numbers: what was measured, by the keys of `ROWS`; seconds and bytes.
        failed: why a scene could not be measured, by its name.
    """

    name: str
    numbers: dict[str, float]
    failed: dict[str, str]


@dataclass(frozen=True)
class Row:
    """A line of the table.

    ``most``: the goal in the unit of the table; ``beside``: the goal as a part of the yardstick's.
    """

    key: str
    what: str
    scale: float = 1
    digits: int = 2
    most: float | None = None
    beside: float | None = None


def rows(sizes: Sizes) -> Iterator[tuple[str, list[Row]]]:
    """The tables by title."""
    mib = 1 / MIB
    yield (
        "Start",
        [
            Row("ready", "process start to ready, s", digits=1),
            Row("first-quit", "process start to the first quit, s", digits=1, most=5),
            Row("last-quit", f"process start to the last of {sizes.finished} quits, s", digits=1),
            Row("judged", "process start to all pods judged, s", digits=1),
            Row("start-cpu", "CPU until then, s", digits=1),
        ],
    )
    yield (
        "Memory",
        [
            Row("rss", "resident after the start, MiB", mib, 1, 200, 0.25),
            Row("rss-end", "resident after all that follows, MiB", mib, 1, 200, 0.25),
            Row("peak", "most ever resident, MiB", mib, 1),
            Row("rss-follower", "resident of a unit that does not lead, MiB", mib, 1, 200, 0.25),
        ],
    )
    yield (
        "Events",
        [
            Row("idle", "CPU when nothing happens, %", 100, 2),
            *(
                Row(
                    f"event-{kind}-{rate}",
                    f"CPU of an event {whose}, {rate} a second, µs",
                    1e6,
                    0,
                    None,
                    1.5,
                )
                for kind, whose in (
                    ("other", "that concerns nobody"),
                    ("job", "of a pod with a proxy"),
                )
                for rate in sizes.rates
            ),
            *(
                Row(
                    f"achieved-{kind}-{rate}",
                    f"events a second that the API server took, {kind} {rate}",
                    1,
                    0,
                )
                for kind in ("other", "job")
                for rate in sizes.rates
            ),
        ],
    )
    at = f"at {sizes.rate:g} finishing pods a second"
    yield (
        "Quits",
        [
            Row("quit-p50", f"status to quit {at}, p50 ms", 1e3, 0),
            Row("quit-p99", f"status to quit {at}, p99 ms", 1e3, 0),
            Row("quit-cpu", f"CPU of a quit {at}, ms", 1e3, 2),
        ],
    )
    yield (
        "Change of leader, relist, relabelling",
        [
            Row("kill", "kill -9 of the leader to the next quit, s", 1, 1, 20),
            Row("term", "SIGTERM of the leader to the next quit, s", 1, 1, 2),
            Row("relist", "restarted API server ready, to complete lists, s", 1, 1),
            Row("relist-quit", "restarted API server ready, to the next quit, s", 1, 1),
            Row("relist-cpu", "CPU of that, s", 1, 1),
            Row("expired", "watches that got 410", 1, 0),
            Row("ended", "processes that ended meanwhile, because they lost their Lease", 1, 0),
            Row(
                "relabel",
                f"a namespace of {sizes.large:,} pods is selected, to all judged, s",
                1,
                2,
            ),
            Row("relabel-cpu", "CPU of that, s", 1, 2),
        ],
    )
    yield (
        f"Answers during {sizes.rates[-1]} events a second",
        [
            Row(f"{path}-{much}", f"{path}, {much} ms", 1e3, 1)
            for path in ("/readyz", "/metrics", "/status")
            for much in ("p50", "most")
        ],
    )
    yield "Admission, 100 a second", list(_admission(sizes))
    yield (
        "Commands",
        [
            Row(f"{command}-{much}", f"`istio-aux {command}`, {unit}", scale, 1)
            for command in ("audit", "explain")
            for much, unit, scale in (
                ("seconds", "s", 1),
                ("cpu", "s of CPU", 1),
                ("peak", "most MiB", mib),
            )
        ],
    )


def _admission(sizes: Sizes) -> Iterator[Row]:
    reviews = {
        "idle": "when nothing happens",
        "events": f"during {sizes.rates[-1]} events a second",
        "relabel": "while the namespace is relabelled",
        "relist": "while pods are listed again",
    }
    spread = {"p50": None, "p99": None, "most": 100}
    for when, name in reviews.items():
        for much, goal in spread.items():
            yield Row(f"review-{when}-{much}", f"review {name}, {much} ms", 1e3, 1, goal)
    slow = f"creation during {sizes.rates[0]} events a second"
    for form in ("neither", "webhook"):
        for much in spread:
            yield Row(f"creation-{form}-{much}", f"{slow}, {form}, {much} ms", 1e3, 1)
    yield Row("creation-gc", "CPU of the API server's garbage collections meanwhile, s", 1, 1)


class Results(Numbers, frozen=True, kw_only=True):
    """Everything of one run; ``programs`` has the yardstick first and ours last.

    Attributes:
        made: seconds that making the pods took.
        etcd: bytes of etcd's file then.
        server: resident bytes of the API server then.
    """

    sizes: Sizes
    machine: dict[str, str]
    made: float
    etcd: int
    server: int
    programs: list[Measured]
    seconds: float

    def verdicts(self) -> Iterator[Verdict]:
        """Each goal with what was measured."""
        numbers = {one.name: one.numbers for one in self.programs}
        mine, theirs = numbers.get(OURS, {}), numbers.get(CONTROLLER, {})
        for _, table in rows(self.sizes):
            for row in table:
                value, other = mine.get(row.key), theirs.get(row.key)
                if row.most is not None:
                    yield _verdict(row, value, row.most)
                if row.beside is not None:
                    most = None if other is None else other * row.scale * row.beside
                    yield _verdict(row, value, most, f"{row.beside:g} of {CONTROLLER}'s: ")


def _verdict(row: Row, value: float | None, most: float | None, beside: str = "") -> Verdict:
    met = value is not None and most is not None and value * row.scale <= most
    shown = "not measured" if most is None else f"{most:.{row.digits}f}"
    return Verdict(
        what=row.what, measured=_shown(row, value), target=f"at most {beside}{shown}", met=met
    )


def _shown(row: Row, value: float | None) -> str:
    return "-" if value is None else f"{value * row.scale:.{row.digits}f}"


def markdown(results: Results) -> str:
    """Goals, then all numbers, side by side."""
    sizes, names = results.sizes, [one.name for one in results.programs]
    parts = [
        "# Scale benchmark",
        ", ".join(f"{name} {value}" for name, value in results.machine.items()),
        _made(results),
        document.verdicts(results),
    ]
    for title, table in rows(sizes):
        lines = [
            (row.what, *(_beside(row, one.numbers, results) for one in results.programs))
            for row in table
            if any(row.key in one.numbers for one in results.programs)
        ]
        if lines:
            parts += [f"## {title}", document.table(("", *names), lines)]
    failed = [
        f"* {one.name}, {scene}: {why}"
        for one in results.programs
        for scene, why in one.failed.items()
    ]
    return "\n\n".join([*parts, *(["## Not measured", "\n".join(failed)] if failed else [])])


def _made(results: Results) -> str:
    sizes = results.sizes
    return (
        f"{sizes.pods:,} pods in {sizes.namespaces + 1:,} namespaces: {sizes.jobs:,} with a proxy,"
        f" {sizes.unmeshed:,} without the sidecar that they should have. They were"
        f" stored in {results.made:.0f} s ({sizes.pods / results.made:.0f} a second). Then the API"
        f" server had {results.server / MIB:,.0f} MiB resident,"
        f" etcd {results.etcd / MIB:,.0f} MiB on disk."
        f" The run took {results.seconds / 60:.0f} minutes."
    )


def _beside(row: Row, numbers: Mapping[str, float], results: Results) -> str:
    value, first = numbers.get(row.key), results.programs[0].numbers.get(row.key)
    shown = _shown(row, value)
    if value is None or not first or first < 0 or numbers is results.programs[0].numbers:
        return shown
    return f"{shown} ({value / first:.2f}x)"


def write(results: Results, folder: Path) -> None:
    """Write ``scale.json`` and ``scale.md`` to the folder, made when it is missing."""
    document.write(folder, "scale", results, markdown(results))
