"""The admission benchmark's results for people: tables in Markdown, and a plot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks import document, svg
from benchmarks.admission_numbers import (
    BUSIER,
    BUSY,
    LARGE,
    NEITHER,
    SMALL,
    STEADY,
    WEBHOOKS,
    Creations,
    Load,
    Results,
)
from benchmarks.document import curve, table
from benchmarks.numbers import MIB, percentile
from benchmarks.svg import Line, Panel


def write(results: Results, folder: Path) -> None:
    """Write ``admission.json``, ``.md`` and ``.svg`` to the folder, made when it is missing."""
    document.write(folder, "admission", results, markdown(results), plot(results))


def markdown(results: Results) -> str:
    """Targets, then what stands behind them, as tables."""
    return "\n\n".join(
        [
            "# Admission benchmark",
            ", ".join(f"{name} {value}" for name, value in results.machine.items()),
            document.verdicts(results),
            (
                f"## One webhook on one core\n\nMedians of {results.sizes.rounds} rounds; every"
                " answer was verified."
            ),
            table(
                (
                    "review", "load", "webhook", "CPU for a review µs", "reviews/s", "p50 ms",
                    "p99 ms", "generator busy %",
                ),
                [_load(one) for one in results.loads],
            ),
            "Bytes of the reviews: " + ", ".join(_sizes(results)) + ".",
            "## Memory after all of that",
            table(
                ("webhook", "resident MiB", "most MiB"),
                [
                    (name, f"{used.rss / MIB:.1f}", f"{used.peak / MIB:.1f}")
                    for name, used in results.used.items()
                ],
            ),
            (
                "## Creation of a pod through the API server\n\nMilliseconds, one pod after"
                " another, by who changes it."
            ),
            table(
                (
                    "", "changed by", "pods", "p50", "p99", "CPU of the API server", "added to p50",
                    "added to p99", "added CPU",
                ),
                [_creations(results, one) for one in results.creations],
            ),
            (
                "## Creation of a pod while the webhook is in trouble\n\nMilliseconds; every pod"
                " was created."
            ),
            table(
                ("its webhook", "pods", "p50", "p99", "most", "changed"),
                [
                    (
                        one.what, str(len(one.milliseconds)),
                        *(f"{percentile(one.milliseconds, p):.1f}" for p in (50, 99, 100)),
                        str(one.changed),
                    )
                    for one in results.troubles
                ],
            ),
        ]
    )  # fmt: skip


def plot(results: Results) -> str:
    """Four panels: CPU, throughput and latency of the webhooks, and creation by form."""

    def lines(load: str, what: str) -> Iterator[Line]:
        for name in WEBHOOKS:
            both = [results.load(name, body, load) for body in (SMALL, LARGE)]
            yield Line(name, [(one.size / 1000, one.of(what)) for one in both], dots=True)

    cpu = Panel("CPU for a review", "KB of a review", "microseconds", [*lines(BUSY, "cpu")])
    rate = Panel(
        "Reviews on one core, 64 connections",
        "KB of a review",
        "reviews a second",
        [*lines(BUSIER, "rate")],
    )
    latency = Panel(
        f"Latency at 100 reviews of {SMALL} a second",
        "milliseconds",
        "% of reviews",
        [Line(name, _fastest(_steady(results.load(name, SMALL, STEADY)))) for name in WEBHOOKS],
    )
    created = Panel(
        "Creation of a pod (dry run)",
        "milliseconds",
        "% of pods",
        [Line(one.form, _fastest(one.milliseconds)) for one in results.creations if one.dry_run],
    )
    return svg.document([cpu, rate, latency, created])


def _load(one: Load) -> tuple[str, ...]:
    return (
        one.body, one.load, one.webhook, f"{one.of('cpu'):.0f}", f"{one.of('rate'):,.0f}",
        f"{one.of('p50'):.2f}", f"{one.of('p99'):.2f}", f"{one.of('generator') * 100:.0f}",
    )  # fmt: skip


def _creations(results: Results, one: Creations) -> tuple[str, ...]:
    numbers, without = _three(one), _three(results.created(NEITHER, dry_run=one.dry_run))
    added = (f"{more - less:+.2f}" for more, less in zip(numbers, without, strict=True))
    return (
        "dry run" if one.dry_run else "stored", one.form, str(len(one.milliseconds)),
        *(f"{number:.2f}" for number in numbers), *(("",) * 3 if one.form == NEITHER else added),
    )  # fmt: skip


def _three(one: Creations) -> tuple[float, float, float]:
    """p50, p99, and the CPU of the API server."""
    return percentile(one.milliseconds, 50), percentile(one.milliseconds, 99), median(one.cpu)


def _sizes(results: Results) -> Iterator[str]:
    yield from dict.fromkeys(f"{one.body} {one.size:,}" for one in results.loads)


def _steady(one: Load) -> list[float]:
    return [latency for each in one.rounds for latency in each.latencies]


def _fastest(milliseconds: list[float]) -> list[tuple[float, float]]:
    """The curve of all but the slowest hundredth, which would squeeze the others."""
    return [(x, percent) for x, percent in curve(milliseconds, of=100) if percent <= 99]
