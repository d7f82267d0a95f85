"""The burst benchmark's results for people: tables in Markdown, and a plot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import document, svg
from benchmarks.burst_numbers import CLASSIC, KUBELET, NATIVE, Freed, Results
from benchmarks.document import curve, table
from benchmarks.numbers import percentile
from benchmarks.svg import Line, Panel

KINDS = (CLASSIC, NATIVE)
PERCENTS = (50, 90, 100)


def write(results: Results, folder: Path) -> None:
    """Write ``burst.json``, ``.md`` and ``.svg`` to the folder, made when it is missing."""
    document.write(folder, "burst", results, markdown(results), plot(results))


def markdown(results: Results) -> str:
    """The target, then what stands behind it, as tables."""
    sizes = results.sizes
    return "\n\n".join(
        [
            "# Burst benchmark",
            ", ".join(f"{name} {value}" for name, value in results.machine.items()),
            document.verdicts(results),
            (
                f"## From the payload's exit to the proxy's\n\nSeconds, by containerd's events:"
                f" {sizes.jobs} Jobs that end at once, {sizes.rounds} times of each kind."
            ),
            table(("", "p50", "p90", "most"), _exits(results)),
            "## Where the time goes\n\nSeconds of each part, and since the payload's exit.",
            table(("", "p50", "p90", "most", "until then, p90"), _parts(results)),
            "## Each burst",
            table(("", "payloads end within s", "p50", "p90", "most"), _bursts(results)),
            (
                "## What the kubelet counted\n\nIn each burst; medians. Its requests are those of"
                " all its clients."
            ),
            table(("", *KUBELET), _kubelet(results)),
            (
                "## Who used the cores\n\nSeconds of CPU for each pod, from the first exit of a"
                " payload until the API server has stored the last end; medians of the bursts."
            ),
            table(("", *results.bursts[0].cpu), _cpu(results)),
        ]
    )


def _exits(results: Results) -> Iterator[tuple[str, ...]]:
    for kind in KINDS:
        yield kind, *(f"{results.exited(kind, percent):.2f}" for percent in PERCENTS)
    ratios = (results.exited(CLASSIC, p) / results.exited(NATIVE, p) for p in PERCENTS)
    yield "native's = 1", *(f"{ratio:.2f}" for ratio in ratios)
    pods = results.of(CLASSIC)
    for what, took in (
        ("until a status says that the payload is finished", [pod.stored for pod in pods]),
        ("from that status to the exec", [(pod.sent or 0.0) - pod.stored for pod in pods]),
    ):
        yield f"{CLASSIC}: {what}", *(f"{percentile(took, p):.2f}" for p in PERCENTS)


def _parts(results: Results) -> Iterator[tuple[str, ...]]:
    """Each step since the one before it, and since the payload's exit."""
    classic = (
        ("kubelet: exit to status at a watch", lambda pod: pod.stored),
        ("istio-aux: to its decision", lambda pod: pod.seen),
        ("istio-aux: to its exec at the API server", lambda pod: pod.sent),
        ("API server, kubelet, containerd: to the command's start", lambda pod: pod.started),
        ("proxy: to its exit", lambda pod: pod.exited),
    )
    native = (
        ("kubelet, containerd: exit to the start of the preStop hook", lambda pod: pod.started),
        ("proxy: to its exit", lambda pod: pod.exited),
    )
    for kind, steps in ((CLASSIC, classic), (NATIVE, native)):
        before: Sequence[float] = [0.0] * len(results.of(kind))
        for what, moment in steps:
            now = [moment(pod) or 0.0 for pod in results.of(kind)]
            took = [after - start for start, after in zip(before, now, strict=True)]
            shown = [*(percentile(took, p) for p in PERCENTS), percentile(now, 90)]
            yield f"{kind}: {what}", *(f"{seconds:.2f}" for seconds in shown)
            before = now
    for what, part in (
        (f"{CLASSIC}: exec until it was answered", lambda pod: pod.answered - pod.sent),
        (f"{NATIVE}: exit to status at a watch, beside that", lambda pod: pod.stored),
    ):
        pods = results.of(CLASSIC if what.startswith(CLASSIC) else NATIVE)
        took = [part(pod) for pod in pods]
        yield what, *(f"{percentile(took, p):.2f}" for p in PERCENTS), ""


def _bursts(results: Results) -> Iterator[tuple[str, ...]]:
    for burst in results.bursts:
        took = [pod.exited for pod in burst.pods]
        yield (
            burst.kind, f"{burst.spread:.2f}", *(f"{percentile(took, p):.2f}" for p in PERCENTS),
        )  # fmt: skip


def _kubelet(results: Results) -> Iterator[tuple[str, ...]]:
    for kind in KINDS:
        bursts = [burst.kubelet for burst in results.bursts if burst.kind == kind]
        yield kind, *(f"{percentile([one[what] for one in bursts], 50):.1f}" for what in KUBELET)


def _cpu(results: Results) -> Iterator[tuple[str, ...]]:
    for kind in KINDS:
        bursts = [burst.cpu for burst in results.bursts if burst.kind == kind]
        yield (
            kind,
            *(
                f"{percentile([cpu.get(name, 0.0) for cpu in bursts], 50) / results.sizes.jobs:.3f}"
                if name != "elapsed"
                else f"{percentile([cpu[name] for cpu in bursts], 50):.1f}"
                for name in results.bursts[0].cpu
            ),
        )


def plot(results: Results) -> str:
    """Two panels: how proxies exit, and what istio-aux waits for."""

    def line(name: str, pods: Sequence[Freed], moment: str) -> Line:
        return Line(name, curve([getattr(pod, moment) for pod in pods], of=100))

    classic, native = results.of(CLASSIC), results.of(NATIVE)
    panels = [
        Panel(
            f"Proxies that have exited, {results.sizes.jobs} Jobs end at once",
            "seconds since the payload's exit",
            "% of pods",
            [line(CLASSIC, classic, "exited"), line(NATIVE, native, "exited")],
        ),
        Panel(
            "Classic with istio-aux",
            "seconds since the payload's exit",
            "% of pods",
            [
                line("status at a watch", classic, "stored"),
                line("told", classic, "sent"),
                line("exited", classic, "exited"),
            ],
        ),
    ]
    return svg.document(panels)
