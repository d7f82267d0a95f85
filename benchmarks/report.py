"""The quit benchmark's results for people and for programs: Markdown, SVG and JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import document, svg
from benchmarks.document import curve, table
from benchmarks.numbers import (
    MIB,
    PROGRAM,
    Latency,
    Measured,
    Quits,
    Results,
    percentile,
)
from benchmarks.svg import Limit, Line, Panel

LAB = ("kube-apiserver", "etcd", "kubelet stand-in")


def write(results: Results, folder: Path) -> None:
    """Write ``quit.json``, ``quit.md`` and ``quit.svg`` to the folder, made when it is missing."""
    document.write(folder, "quit", results, markdown(results), plot(results))


def markdown(results: Results) -> str:
    """Targets, then what stands behind them, as tables with a line for each program."""
    programs, rate = results.programs, f"{results.sizes.rate:g} finishing pods a second"
    yardstick, *others = programs
    quitting: list[Quits] = [yardstick, results.floor, *others]
    return "\n\n".join(
        [
            "# Quit benchmark",
            ", ".join(f"{name} {value}" for name, value in results.machine.items()),
            document.verdicts(results),
            "## Side by side\n\nAll of one run; in brackets: beside controller-runtime.",
            table(
                ("", *(one.name for one in programs), "floor", "istio-aux beside the floor"),
                _side_by_side(results),
            ),
            "## Finished pods at start-up\n\nSeconds from the start of the process.",
            table(
                ("", "first", "half", "last"),
                [
                    line
                    for one in quitting
                    for line in (
                        (f"{one.name}: quit arrived at the node", *_three(one.freed.told)),
                        (f"{one.name}: proxy's end stored", *_three(one.freed.ended)),
                    )
                ],
            ),
            "Commands sent: " + ", ".join(
                f"{one.freed.execs} by {one.name} for {len(one.freed.told)} pods"
                for one in quitting
            ) + ".",
            f"## Latency at {rate}\n\nMilliseconds to the quit command's arrival at the node.",
            table(
                ("since the status was", "p50", "p90", "p99", "most"),
                [
                    line
                    for one in quitting
                    for line in (
                        (f"{one.name}: sent", *_four(one.latency.from_sent)),
                        (f"{one.name}: stored", *_four(one.latency.from_stored)),
                    )
                ],
            ),
            "## Watching pods to which nothing happens that matters",
            table(
                (
                    "", "pods", "ready s", "memory MiB", "most MiB", "after events MiB",
                    "CPU for an event µs", "idle CPU %",
                ),
                [
                    (
                        one.name, f"{w.pods:,}", f"{w.ready:.1f}", _mib(w.listed.rss),
                        _mib(w.after.peak), _mib(w.after.rss), f"{w.per_event * 1e6:.0f}",
                        f"{w.idle * 100:.1f}",
                    )
                    for one in programs for w in one.watched
                ],
            ),
            "## What quits leave behind",
            table(
                ("", "quits", "memory MiB", "most MiB", "descriptors", "threads"),
                [
                    (
                        f"{one.name}: {row.when}", f"{row.quits:,}", _mib(row.used.rss),
                        _mib(row.used.peak), str(row.used.descriptors), str(row.used.threads),
                    )
                    for one in programs for row in one.flatness
                ],
            ),
            "## Who used the cores\n\nSeconds of CPU; all but the program is the lab's.",
            table(
                ("", "clock s", "program", *LAB),
                [
                    line
                    for one in quitting
                    for line in (
                        (f"{one.name}: start-up", *_cpu(one.freed.cpu)),
                        (f"{one.name}: latency", *_cpu(one.latency.cpu)),
                        (f"{one.name}: paced", *_cpu(one.paced.cpu)),
                    )
                ],
            ),
        ]
    )  # fmt: skip


def _side_by_side(results: Results) -> Iterator[tuple[str, ...]]:
    """What a user would compare, with its ratio to the first program, and to the floor."""
    sizes = results.sizes
    pods, rate, pace = f"{sizes.watched[-1]:,}", f"{sizes.rate:g}/s", f"{sizes.pace:g}/s"
    server = "kube-apiserver"
    rows: dict[str, tuple[Callable[[Quits], float], int]] = {
        "finished pods at start-up freed, s": (lambda one: one.freed.seconds, 1),
        f"status to quit at {rate}, p50 ms": (lambda one: _milliseconds(one.latency, 50), 1),
        f"status to quit at {rate}, p99 ms": (lambda one: _milliseconds(one.latency, 99), 1),
        f"status to quit at {pace}, p50 ms": (lambda one: _milliseconds(one.paced, 50), 1),
        f"status to quit at {pace}, p99 ms": (lambda one: _milliseconds(one.paced, 99), 1),
        "CPU a quit at start-up, ms": (lambda one: one.per_quit(one.freed) * 1e3, 2),
        f"CPU a quit at {rate}, ms": (lambda one: one.per_quit(one.latency) * 1e3, 2),
        f"CPU a quit at {pace}, ms": (lambda one: one.per_quit(one.paced) * 1e3, 2),
        "API server's CPU a quit at start-up, ms": (
            lambda one: one.per_quit(one.freed, server) * 1e3, 1,
        ),
        f"API server's CPU a quit at {rate}, ms": (
            lambda one: one.per_quit(one.latency, server) * 1e3, 1,
        ),
    }  # fmt: skip
    for what, (number, digits) in rows.items():
        floor, ours = number(results.floor), number(results.ours)
        beside = f"{ours / floor:.2f}x" if floor > 0 else "not measurable"
        yield (what, *_beside(results, number, digits), f"{floor:.{digits}f}", beside)
    more: dict[str, tuple[Callable[[Measured], float], int]] = {
        "CPU a watch event, µs": (lambda one: one.watched[-1].per_event * 1e6, 0),
        f"most memory watching {pods}, MiB": (lambda one: one.most / MIB, 1),
        f"memory watching {pods} after {sizes.late:,} quits, MiB": (
            lambda one: one.late.rss / MIB, 1,
        ),
    }  # fmt: skip
    for what, (measured, digits) in more.items():
        yield (what, *_beside(results, measured, digits), "", "")


def _beside(results: Results, number: Callable[[Measured], float], digits: int) -> Iterator[str]:
    first, *others = (number(one) for one in results.programs)
    yield f"{first:.{digits}f}" if first > 0 else "not measurable"
    for each in others:
        yield f"{each:.{digits}f}" + (f" ({each / first:.2f}x)" if first > 0 else "")


def plot(results: Results) -> str:
    """Four panels: both curves of time, memory and CPU by watched pods; a line a program."""
    programs, sizes = results.programs, results.sizes
    start = Panel(
        f"{sizes.start:,} finished pods at start-up, proxies' ends stored",
        "seconds since the start of the process",
        "pods",
        [Line(one.name, curve(one.freed.ended)) for one in programs],
        [Limit("target", x=10)],
    )
    rate = Panel(
        f"Status sent to quit, {sizes.rate:g} pods a second",
        "milliseconds",
        "% of pods",
        [Line(o.name, curve([s * 1e3 for s in o.latency.from_sent], of=100)) for o in programs],
        [Limit("target of p50", x=50), Limit("target of p99", x=250)],
    )
    memory = Panel(
        "Most memory",
        "watched pods",
        "MiB",
        [Line(o.name, [(w.pods, w.after.peak / MIB) for w in o.watched], True) for o in programs],
        [Limit("target", y=80)],
    )
    cpu = Panel(
        "CPU for an event that decides nothing",
        "watched pods",
        "microseconds",
        [Line(o.name, [(w.pods, w.per_event * 1e6) for w in o.watched], True) for o in programs],
    )
    return svg.document([start, rate, memory, cpu])


def _milliseconds(scene: Latency, percent: float) -> float:
    return percentile(scene.from_sent, percent) * 1e3


def _three(values: Sequence[float]) -> Iterator[str]:
    yield from (f"{percentile(values, percent):.2f}" for percent in (0, 50, 100))


def _four(values: Sequence[float]) -> Iterator[str]:
    yield from (f"{percentile(values, percent) * 1e3:.1f}" for percent in (50, 90, 99, 100))


def _mib(size: int) -> str:
    return f"{size / MIB:.1f}"


def _cpu(spent: Mapping[str, float]) -> Iterator[str]:
    yield from (f"{spent[name]:.2f}" for name in ("elapsed", PROGRAM, *LAB))
