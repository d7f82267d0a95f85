"""What was found, as text: a pair that differs, and the table of the worlds. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from twins.grammar import Moment
from twins.judge import Again, Half, Verdict, losses, verdict
from twins.manifests import Pair

HEAD = ("world", "pairs", "same", "better", "worse", "complete with", "without", "seconds")


@dataclass
class Count:
    """What was found in one world."""

    verdicts: dict[Verdict, int] = field(
        default_factory=lambda: {"same": 0, "better": 0, "worse": 0}
    )
    complete: list[int] = field(default_factory=lambda: [0, 0])  # With istio-aux, and without.
    seconds: float = 0.0

    def add(self, ours: Half, twin: Half, seen: Verdict) -> None:
        self.verdicts[seen] += 1
        self.complete[0] += ours.complete
        self.complete[1] += twin.complete


def table(counts: Mapping[str, Count]) -> str:
    """The counts by world."""
    rows = [
        (
            name, sum(count.verdicts.values()), *count.verdicts.values(), *count.complete,
            round(count.seconds),
        )
        for name, count in counts.items()
    ]  # fmt: skip
    return "\n".join(
        "".join(f"{cell!s:>15}" if at else f"{cell:<12}" for at, cell in enumerate(row))
        for row in (HEAD, *rows)
    )


def told(pair: Pair, ours: Half, twin: Half, again: Again | None = None) -> str:
    """What happened to a pair, with its manifests."""
    values = "; ".join(f"{dimension}: {value}" for dimension, value in pair.values.items())
    lines = [
        f"{'WORSE' if again and again.worse else verdict(ours, twin)}: {pair.name}",
        *(f"  {text}" for text in losses(ours, twin).values()),
        *([f"  {again}"] if again else []),
        *([f"  {values}"] if values else []),
        *half("with", ours),
        *half("without", twin),
        *(f"  {line}" for line in pair.text.splitlines()),
    ]
    return "\n".join(lines)


def half(name: str, of: Half) -> list[str]:
    """What became of one Job, and of each of its pods."""
    reached = ", ".join(sorted(of.reached)) or "none"
    runs = ", ".join(f"{name} {count}" for name, count in of.runs.items()) or "none"
    end = f"{of.end or of.refused or 'runs on'} after {of.seconds:.0f} s"
    counted = f"failures: {of.failures}; reached the service: {reached}; runs: {runs}"
    return [f"  {name}: {end}; {counted}", *(f"    {line}" for line in of.story)]


def line(world: str, moment: Moment, pair: Pair, ours: Half, twin: Half) -> str:
    """A line of JSON about a pair."""
    found = {
        "world": world, "pair": pair.name, **moment.values, **pair.values,
        "worse": losses(ours, twin), "better": losses(twin, ours),
        "with": half("with", ours), "without": half("without", twin),
    }  # fmt: skip
    return json.dumps(found)
