"""The burst benchmark's results for people: tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from benchmarks import tables
from benchmarks.burst_numbers import CLASSIC, NATIVE, Burst, Freed, Sizes
from benchmarks.tables import Verdict, percentile, table

KINDS = (CLASSIC, NATIVE)
PERCENTS = (50, 90, 100)


def markdown(sizes: Sizes, on: Mapping[str, str], bursts: Sequence[Burst]) -> str:
    """The goal, and what stands behind it, as tables."""
    pods = _pods(bursts)
    took = {kind: [pod.exited for pod in pods[kind]] for kind in KINDS}
    ratios = [percentile(took[CLASSIC], p) / percentile(took[NATIVE], p) for p in PERCENTS]
    what, goal = "payload's exit to proxy's exit, p90, native's = 1", ratios[1]
    return "\n\n".join(
        [
            "# Burst benchmark",
            ", ".join(f"{name} {value}" for name, value in on.items()),
            tables.goals([Verdict(what, f"{goal:.2f}", "at most 1", goal <= 1)]),
            (
                f"Seconds since a payload's exit, by containerd's events: {sizes.jobs} Jobs that"
                f" end at once, {sizes.rounds} times of each kind."
            ),
            table(
                ("until its proxy's exit", "p50", "p90", "most"),
                [
                    *((kind, *_spread(took[kind])) for kind in KINDS),
                    ("native's = 1", *(f"{ratio:.2f}" for ratio in ratios)),
                ],
            ),
        ]
    )


def details(bursts: Sequence[Burst]) -> str:
    """Where the time went, and seconds of CPU of a burst, as tables."""
    cpu = {kind: [one.cpu for one in bursts if one.kind == kind] for kind in KINDS}
    processes = list(cpu[CLASSIC][0])
    lines = [
        (
            kind,
            *(f"{percentile([one.get(n, 0.0) for one in cpu[kind]], 50):.1f}" for n in processes),
        )
        for kind in KINDS
    ]
    head = ("each part", "p50", "p90", "most", "until then, p90")
    return "\n\n".join(
        [
            table(head, _parts(_pods(bursts))),
            (
                "Seconds of CPU of a burst, from the first exit of a payload until the API server"
                " has stored the last end; medians."
            ),
            table(("", *processes), lines),
        ]
    )


def _pods(bursts: Sequence[Burst]) -> dict[str, list[Freed]]:
    return {kind: [pod for one in bursts if one.kind == kind for pod in one.pods] for kind in KINDS}


def _spread(took: Sequence[float]) -> Iterator[str]:
    yield from (f"{percentile(took, percent):.2f}" for percent in PERCENTS)


def _parts(pods: Mapping[str, Sequence[Freed]]) -> Iterator[tuple[str, ...]]:
    """Each step since the one before it, and since the payload's exit."""
    classic = (
        ("kubelet: exit to status at a watch", "stored"),
        ("istio-aux: to its decision", "seen"),
        ("istio-aux: to its exec at the API server", "sent"),
        ("API server, kubelet, containerd: to the command's start", "started"),
        ("proxy: to its exit", "exited"),
    )
    native = (
        ("kubelet, containerd: exit to the start of the preStop hook", "started"),
        ("proxy: to its exit", "exited"),
    )
    for kind, steps in ((CLASSIC, classic), (NATIVE, native)):
        before: Sequence[float] = [0.0] * len(pods[kind])
        for what, moment in steps:
            now = [getattr(pod, moment) or 0.0 for pod in pods[kind]]
            took = [after - start for start, after in zip(before, now, strict=True)]
            yield f"{kind}: {what}", *_spread(took), f"{percentile(now, 90):.2f}"
            before = now
