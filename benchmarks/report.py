"""The results for people and for programs: Markdown, SVG and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import document, svg
from benchmarks.document import curve, table
from benchmarks.numbers import MIB, Results, percentile
from benchmarks.svg import Limit, Line, Panel

LAB = ("kube-apiserver", "etcd", "kubelet stand-in")


def write(results: Results, folder: Path) -> None:
    """Write ``quit.json``, ``quit.md`` and ``quit.svg`` to the folder, made when it is missing."""
    document.write(folder, "quit", results, markdown(results), plot(results))


def markdown(results: Results) -> str:
    """Targets, then what stands behind them, as tables."""
    freed, latency = results.freed, results.latency
    return "\n\n".join(
        [
            "# Quit benchmark",
            ", ".join(f"{name} {value}" for name, value in results.machine.items()),
            document.verdicts(results),
            "## Finished pods at start-up\n\nSeconds from the start of the process.",
            table(
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
            table(
                ("since the status was", "p50", "p90", "p99", "most"),
                [
                    ("sent to the API server", *_milliseconds(latency.from_sent)),
                    ("stored, and the answer back", *_milliseconds(latency.from_stored)),
                ],
            ),
            "## Watching pods to which nothing happens that matters",
            table(
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
            table(
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
            table(
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
        [Line("quit arrived", curve(freed.told)), Line("proxy's end stored", curve(freed.ended))],
        [Limit("target", x=10)],
    )
    rate = Panel(
        f"Status to quit, {results.sizes.rate:g} pods a second",
        "milliseconds",
        "% of pods",
        [
            Line("since sent", curve(millis[0], of=100)),
            Line("since stored", curve(millis[1], of=100)),
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


def _three(values: Sequence[float]) -> Iterator[str]:
    yield from (f"{percentile(values, percent):.2f}" for percent in (0, 50, 100))


def _milliseconds(values: Sequence[float]) -> Iterator[str]:
    yield from (f"{percentile(values, percent) * 1e3:.1f}" for percent in (50, 90, 99, 100))


def _mib(size: int) -> str:
    return f"{size / MIB:.1f}"


def _cpu(spent: Mapping[str, float]) -> Iterator[str]:
    yield from (f"{spent[name]:.2f}" for name in ("elapsed", "workload", *LAB))
