"""The results for people and for programs: Markdown, SVG and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from benchmarks import svg
from benchmarks.numbers import MIB, Results, percentile
from benchmarks.svg import Limit, Line, Panel

LAB = ("kube-apiserver", "etcd", "kubelet stand-in")
POINTS = 150
"""Points of a curve in the plot; more cannot be seen."""


def write(results: Results, folder: Path) -> None:
    """Write ``quit.json``, ``quit.md`` and ``quit.svg`` to the folder, made when it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = {**msgspec.to_builtins(results), "verdicts": list(results.verdicts())}
    text = msgspec.json.format(msgspec.json.encode(_rounded(numbers)), indent=1)
    (folder / "quit.json").write_bytes(text + b"\n")
    (folder / "quit.md").write_text(markdown(results) + "\n\n![the same as curves](quit.svg)\n")
    (folder / "quit.svg").write_text(plot(results))


def markdown(results: Results) -> str:
    """Targets, then what stands behind them, as tables."""
    freed, latency = results.freed, results.latency
    verdicts = [
        (v.what, v.measured, v.target, "met" if v.met else "**missed**") for v in results.verdicts()
    ]
    return "\n\n".join(
        [
            "# Quit benchmark",
            ", ".join(f"{name} {value}" for name, value in results.machine.items()),
            _table(("what", "measured", "target", ""), verdicts),
            "## Finished pods at start-up\n\nSeconds from the start of the process.",
            _table(
                ("", "first", "half", "last"),
                [
                    ("quit arrived at the node", *_three(freed.told)),
                    ("proxy's end stored by the API server", *_three(freed.ended)),
                ],
            ),
            (f"Seen by the workload: all after {freed.seconds:.2f} s."
            f" Commands sent: {freed.execs} for {len(freed.told)} pods."),
            (f"## Latency at {results.sizes.rate:g} finishing pods a second\n\nMilliseconds to the"
            " quit command's arrival at the node."),
            _table(
                ("since the status was", "p50", "p90", "p99", "most"),
                [
                    ("sent to the API server", *_milliseconds(latency.from_sent)),
                    ("stored, and the answer back", *_milliseconds(latency.from_stored)),
                ],
            ),
            "## Watching pods to which nothing happens that matters",
            _table(
                (
                    "pods", "ready s", "memory MiB", "most MiB", "after events MiB",
                    "CPU for an event µs", "idle CPU %",
                ),
                [
                    (
                        f"{w.pods:,}", f"{w.ready:.1f}", _mib(w.listed.rss), _mib(w.after.peak),
                        _mib(w.after.rss), f"{w.per_event * 1e6:.0f}", f"{w.idle * 100:.1f}",
                    )
                    for w in results.watched
                ],
            ),
            "## What quits leave behind",
            _table(
                ("", "quits", "memory MiB", "most MiB", "descriptors", "threads"),
                [
                    (
                        row.when, f"{row.quits:,}", _mib(row.used.rss), _mib(row.used.peak),
                        str(row.used.descriptors), str(row.used.threads),
                    )
                    for row in results.flatness
                ],
            ),
            "## Who used the cores\n\nSeconds of CPU; all but the workload is the lab's.",
            _table(
                ("", "clock s", "workload", *LAB),
                [
                    ("start-up", *_cpu(freed.cpu)),
                    ("latency", *_cpu(latency.cpu)),
                ],
            ),
        ]
    )  # fmt: skip


def plot(results: Results) -> str:
    """Four panels: both curves of time, memory and CPU by watched pods."""
    freed, latency, watched = results.freed, results.latency, results.watched
    millis = [[s * 1e3 for s in given] for given in (latency.from_sent, latency.from_stored)]
    start = Panel(
        f"{len(freed.told):,} finished pods at start-up",
        "seconds since the start of the process",
        "pods",
        [Line("quit arrived", _curve(freed.told)), Line("proxy's end stored", _curve(freed.ended))],
        [Limit("target", x=10)],
    )
    rate = Panel(
        f"Status to quit, {results.sizes.rate:g} pods a second",
        "milliseconds",
        "% of pods",
        [
            Line("since sent", _curve(millis[0], of=100)),
            Line("since stored", _curve(millis[1], of=100)),
        ],
        [Limit("target of p50", x=50), Limit("target of p99", x=250)],
    )
    memory = Panel(
        "Memory of the workload",
        "watched pods",
        "MiB",
        [
            Line("resident", [(w.pods, w.listed.rss / MIB) for w in watched], dots=True),
            Line("most", [(w.pods, w.after.peak / MIB) for w in watched], dots=True),
        ],
        [Limit("target", y=80)],
    )
    cpu = Panel(
        "CPU of the workload",
        "watched pods",
        "microseconds an event",
        [Line("for one event", [(w.pods, w.per_event * 1e6) for w in watched], dots=True)],
    )
    return svg.document([start, rate, memory, cpu])


def _curve(values: Iterable[float], of: float | None = None) -> list[tuple[float, float]]:
    """How many of the values are at most x, or what part ``of`` that number."""
    ordered = sorted(max(value, 0.0) for value in values)
    scale = of / len(ordered) if of else 1
    step = max(1, len(ordered) // POINTS)
    chosen = [*range(0, len(ordered) - 1, step), len(ordered) - 1]
    return [(ordered[index], (index + 1) * scale) for index in chosen]


def _three(values: Sequence[float]) -> Iterator[str]:
    yield from (f"{percentile(values, percent):.2f}" for percent in (0, 50, 100))


def _milliseconds(values: Sequence[float]) -> Iterator[str]:
    yield from (f"{percentile(values, percent) * 1e3:.1f}" for percent in (50, 90, 99, 100))


def _mib(size: int) -> str:
    return f"{size / MIB:.1f}"


def _cpu(spent: Mapping[str, float]) -> Iterator[str]:
    yield from (f"{spent[name]:.2f}" for name in ("elapsed", "workload", *LAB))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---", *("--:" for _ in head[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _rounded(value: object) -> object:
    """The same with numbers of at most six decimals, which is what the clocks are good for."""
    match value:
        case float():
            return round(value, 6)
        case dict():
            return {key: _rounded(item) for key, item in value.items()}
        case list() | tuple():
            return [_rounded(item) for item in value]
        case _:
            return value
