"""What was measured, and what it is measured against: data and arithmetic only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from benchmarks.processes import Usage

MIB = 1 << 20


class Numbers(msgspec.Struct, frozen=True, rename="kebab"):
    """Base of what goes into the JSON file."""


class Sizes(Numbers, frozen=True, kw_only=True):
    """How much of everything.

    Attributes:
        start: pods that are finished when the workload starts.
        steady: pods that finish one after another, ``rate`` a second.
        rate: see there.
        again: the same again, for what quits leave behind.
        watched: numbers of running pods for which watching is measured, ascending.
        events: changes of these pods, ``event_rate`` a second.
        event_rate: see there.
        idle: seconds for which a workload is watched that has nothing to do.
        settle: seconds after the last quit before memory and descriptors are counted.
        limit: seconds after which something counts as broken.
    """

    start: int
    steady: int
    rate: float
    again: int
    watched: tuple[int, ...]
    events: int
    event_rate: float
    idle: float
    settle: float
    limit: float


class Freed(Numbers, frozen=True):
    """Target (a): seconds from the start of the process, ``told`` and ``ended`` ascending.

    Attributes:
        seconds: until the workload had seen every proxy exit.
        told: until each quit command arrived at the node.
        ended: until the API server had stored each proxy's end.
        execs: commands in all; more than pods if one was told twice.
        cpu: seconds of CPU by process, and ``elapsed``.
    """

    seconds: float
    told: list[float]
    ended: list[float]
    execs: int
    cpu: dict[str, float]


class Latency(Numbers, frozen=True):
    """Target (b): seconds to the quit command's arrival at the node, by pod.

    Attributes:
        from_sent: since the status was sent to the API server; the longer way, which is judged.
        from_stored: since the API server had answered that it is stored.
        seconds: from the first finished pod to the last.
        cpu: seconds of CPU by process in that time, and ``elapsed``.
    """

    from_sent: list[float]
    from_stored: list[float]
    seconds: float
    cpu: dict[str, float]


class Watched(Numbers, frozen=True):
    """Target (c): one process with that many pods.

    Attributes:
        pods: how many.
        ready: seconds from the start of the process until it knew them all.
        listed: what it used then.
        after: what it used after the events.
        idle: seconds of CPU a second when nothing happens.
        per_event: seconds of CPU for each event, without what idling costs.
    """

    pods: int
    ready: float
    listed: Usage
    after: Usage
    idle: float
    per_event: float


class Flatness(Numbers, frozen=True):
    """Target (d): the workload's use after so many more quits."""

    when: str
    quits: int
    used: Usage


class Verdict(Numbers, frozen=True):
    """A target, what was measured, and whether that is within it."""

    what: str
    measured: str
    target: str
    met: bool


class Results(Numbers, frozen=True, kw_only=True):
    """Everything of one run."""

    sizes: Sizes
    machine: dict[str, str]
    freed: Freed
    latency: Latency
    flatness: list[Flatness]
    watched: list[Watched]

    def verdicts(self) -> Iterator[Verdict]:
        """Each target with what was measured."""
        sizes = self.sizes
        yield _below(
            f"{sizes.start} finished pods at start-up freed", self.freed.seconds, 10, "s", 1
        )
        half, most = (percentile(self.latency.from_sent, p) * 1e3 for p in (50, 99))
        at = f"status to quit at {sizes.rate:g} pods/s"
        yield _below(f"{at}, p50", half, 50, "ms", 1)
        yield _below(f"{at}, p99", most, 250, "ms", 1)
        largest = self.watched[-1]
        rss = max(largest.listed.peak, largest.after.peak) / MIB
        yield _below(f"most resident memory with {largest.pods} watched pods", rss, 80, "MiB", 1)
        # The ones before have warmed the process up: pools, caches, the allocator's arenas.
        first, last = self.flatness[-2].used, self.flatness[-1].used
        quits = self.flatness[-1].quits
        grown = (last.rss - first.rss) / MIB
        yield _below(f"memory gained by {quits} more quits", grown, 1, "MiB", 1)
        opened = last.descriptors - first.descriptors
        yield _below(f"descriptors gained by {quits} more quits", opened, 3, "", 0)


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest of ``values`` that at least ``percent`` of them do not exceed."""
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(int(rank), 1) - 1]


def _below(what: str, measured: float, target: float, unit: str, digits: int) -> Verdict:
    return Verdict(
        what=what,
        measured=f"{measured:.{digits}f} {unit}".strip(),
        target=f"under {target:g} {unit}".strip(),
        met=measured < target,
    )
