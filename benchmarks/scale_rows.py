"""How large the scale benchmark is, and the lines of its tables: data only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.tables import MIB, Row


@dataclass(frozen=True, kw_only=True)
class Sizes:
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
        rounds: how often. The API server collects its garbage before each, and in none.
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
    rounds: int
    units: int
    exit_delay: float
    limit: float

    @property
    def pods(self) -> int:
        """All of them, before a program starts."""
        return self.jobs + self.unmeshed + self.others + self.large


WHOLE = Sizes(
    namespaces=1000, jobs=10_000, unmeshed=2_000, others=33_000, large=5_000,
    finished=20, rates=(100, 500), seconds=5.0, quits=300, rate=50.0, rounds=6, units=3,
    exit_delay=1.0, limit=300.0,
)  # fmt: skip
QUICK = Sizes(
    namespaces=10, jobs=40, unmeshed=10, others=40, large=20,
    finished=3, rates=(20, 50), seconds=0.5, quits=5, rate=50.0, rounds=1, units=3,
    exit_delay=0.05, limit=60.0,
)  # fmt: skip


def rows(sizes: Sizes) -> Iterator[tuple[str, list[Row]]]:
    """The tables by title."""
    mib = 1 / MIB
    yield (
        "Start",
        [
            Row("ready", "process start to ready, s"),
            Row("first-quit", "process start to the first quit, s", most=5),
            Row("judged", "process start to all pods judged, s"),
            Row("start-cpu", "CPU until then, s"),
        ],
    )
    yield (
        "Memory",
        [
            Row("rss", "resident after the start, MiB", mib, most=200, beside=0.25),
            Row("rss-end", "resident after all that follows, MiB", mib, most=200, beside=0.25),
            Row("peak", "most ever resident, MiB", mib),
            Row("rss-follower", "resident without the Lease, MiB", mib, most=200, beside=0.25),
        ],
    )
    kinds = {"other": "without a proxy", "job": "of a pod with a proxy"}
    each = [(kind, rate) for kind in kinds for rate in sizes.rates]
    yield (
        "Events",
        [
            Row("idle", "CPU when nothing happens, %", 100, 2),
            *(
                Row(f"event-{kind}-{rate}", f"CPU of an event {kinds[kind]}, {rate}/s, µs", 1e6, 0,
                    beside=1.5)
                for kind, rate in each
            ),
            *(
                Row(f"taken-{kind}-{rate}", f"taken by the API server, {kind} {rate}/s", digits=0)
                for kind, rate in each
            ),
        ],
    )  # fmt: skip
    at = f"at {sizes.rate:g} finishing pods a second"
    yield (
        "Quits",
        [
            Row("quit-p50", f"status to quit {at}, p50 ms, best round", 1e3, 0),
            Row("quit-p99", f"status to quit {at}, p99 ms, best round", 1e3, 0, most=200),
            Row("quit-p99-median", f"p99 ms, median of {sizes.rounds} rounds", 1e3, 0),
            Row("quit-cpu", f"CPU of a quit {at}, ms", 1e3, 2),
        ],
    )
    yield (
        "Change of leader, relist, relabelling",
        [
            Row("kill", "kill -9 of the leader to the next quit, s", most=20),
            Row("term", "SIGTERM of the leader to the next quit, s", most=2),
            Row("relist", "restarted API server ready, to complete lists, s"),
            Row("relist-quit", "restarted API server ready, to the next quit, s"),
            Row("relist-cpu", "CPU of that, s"),
            Row("ended", "processes that ended meanwhile, without their Lease", digits=0),
            Row("relabel", f"a namespace of {sizes.large:,} is selected, to all judged, s", 1, 2),
            Row("relabel-cpu", "CPU of that, s", 1, 2),
        ],
    )
    reviews = {
        "idle": "when nothing happens",
        "events": f"during {sizes.rates[-1]} events a second",
        "relabel": "while the namespace is relabelled",
        "relist": "while pods are listed again",
    }
    yield (
        "Reviews, 100 a second",
        [
            Row(f"review-{when}-{much}", f"review {name}, {much} ms", 1e3,
                most=100 if much == "most" else None)
            for when, name in reviews.items()
            for much in ("p99", "most")
        ],
    )  # fmt: skip
    yield (
        "Commands",
        [
            Row(f"{command}-{much}", f"`istio-aux {command}`, {unit}", scale)
            for command in ("audit", "explain")
            for much, unit, scale in (
                ("seconds", "s", 1), ("cpu", "s of CPU", 1), ("peak", "most MiB", mib),
            )
        ],
    )  # fmt: skip
