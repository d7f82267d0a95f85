"""The measurements of the quit benchmark and their targets: data and arithmetic only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from benchmarks.processes import Usage

MIB = 1 << 20

OURS, BEFORE, CONTROLLER = "istio-aux", "istio-aux before", "controller-runtime"
"""The programs that quit: this checkout's, another one's, and what both stand beside."""

FLOOR = "floor"
"""The leanest client: what it costs is what the API server asks of any client."""

PROGRAM = "program"
"""The one that is measured, among the names of processes."""


class Numbers(msgspec.Struct, frozen=True, rename="kebab"):
    """Base of what goes into the JSON file."""


class Sizes(Numbers, frozen=True, kw_only=True):
    """How much of everything.

    Attributes:
        start: pods that are finished when the workload starts.
        steady: pods that finish one after another, ``rate`` a second.
        rate: see there.
        paced: pods that finish ``pace`` a second: so few that none waits for another one.
        pace: see there.
        again: as many as ``steady`` again, for what quits leave behind.
        late: pods that finish at the same rate while the most pods are watched.
        watched: numbers of running pods for which watching is measured, ascending.
        events: changes of these pods, ``event_rate`` a second.
        event_rate: see there.
        idle: seconds for which a workload is watched that has nothing to do.
        exit_delay: seconds from a quit to the proxy's end in the API.
        settle: seconds after the last quit before memory and descriptors are counted.
        limit: seconds after which something counts as broken.
    """

    start: int
    steady: int
    rate: float
    paced: int
    pace: float
    again: int
    late: int
    watched: tuple[int, ...]
    events: int
    event_rate: float
    idle: float
    exit_delay: float
    settle: float
    limit: float


class Freed(Numbers, frozen=True):
    """Target (a): seconds from the start of the process, ``told`` and ``ended`` ascending.

    Attributes:
        seconds: until the API server had stored the last proxy's end.
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


class Quits(Numbers, frozen=True, kw_only=True):
    """What one program's quits take.

    Attributes:
        name: of the program.
        latency: at ``rate`` pods a second.
        paced: at ``pace`` pods a second.
    """

    name: str
    freed: Freed
    latency: Latency
    paced: Latency

    def per_quit(self, scene: Freed | Latency, process: str = PROGRAM) -> float:
        """Seconds of CPU of a process for each quit of a scene."""
        return scene.cpu[process] / self._quits(scene)

    def beside_api_server(self, scene: Freed | Latency) -> float:
        """Its CPU in a scene as a share of the API server's: what slows both cancels out."""
        return scene.cpu[PROGRAM] / scene.cpu["kube-apiserver"]

    @staticmethod
    def _quits(scene: Freed | Latency) -> int:
        return len(scene.told if isinstance(scene, Freed) else scene.from_sent)


class Measured(Quits, frozen=True, kw_only=True):
    """Everything about one program.

    Attributes:
        flatness: after the first quits, those of the latency, and as many again.
        watched: by number of pods, ascending.
        late: what it uses with the most pods watched and ``late`` quits behind it.
    """

    flatness: list[Flatness]
    watched: list[Watched]
    late: Usage

    @property
    def most(self) -> int:
        """The most bytes that were ever resident with the most pods watched."""
        return max(self.watched[-1].listed.peak, self.watched[-1].after.peak)


class Results(Numbers, frozen=True, kw_only=True):
    """Everything of one run; ``programs`` has controller-runtime first and ours last."""

    sizes: Sizes
    machine: dict[str, str]
    floor: Quits
    programs: list[Measured]

    @property
    def ours(self) -> Measured:
        """What the targets are about."""
        return self.programs[-1]

    def verdicts(self) -> Iterator[Verdict]:
        """Each target with what was measured."""
        sizes, ours, yardstick = self.sizes, self.ours, self.programs[0]
        freed = f"{sizes.start} finished pods at start-up freed"
        yield _below(freed, ours.freed.seconds, 10, "s", 1)
        beside = ours.freed.seconds / self.floor.freed.seconds
        yield _below(f"{freed}, the floor's = 1", beside, 1.3, "", 2)
        half, most = (percentile(ours.latency.from_sent, p) * 1e3 for p in (50, 99))
        at = f"status to quit at {sizes.rate:g} pods/s"
        yield _below(f"{at}, p50", half, 50, "ms", 1)
        yield _below(f"{at}, p99", most, 250, "ms", 1)
        for mine, theirs, where in (
            (ours.freed, yardstick.freed, "at start-up"),
            (ours.latency, yardstick.latency, f"at {sizes.rate:g}/s"),
        ):
            share = ours.per_quit(mine) / yardstick.per_quit(theirs)
            yield _below(f"CPU a quit {where}, {yardstick.name}'s = 1", share, 1, "", 2)
        pods = ours.watched[-1].pods
        yield _below(f"most memory watching {pods:,}", ours.most / MIB, 80, "MiB", 1)
        late = f"memory watching {pods:,} after {sizes.late:,} quits"
        yield _below(late, ours.late.rss / MIB, 80, "MiB", 1)
        # The ones before have warmed the process up: pools, caches, the allocator's arenas.
        first, last = ours.flatness[-2].used, ours.flatness[-1].used
        quits = ours.flatness[-1].quits
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
