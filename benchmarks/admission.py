"""What an admission review costs, beside two webhooks in Go; README.md says how it is taken.

Our webhook is `istio-aux serve` as it ships; all three run at the same time, one is loaded at a
time. Nothing here is asserted: numbers stand beside targets.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import lab
from lab import toolchain

from benchmarks import admission_report as report
from benchmarks import creating, machine, reviews, webhooks
from benchmarks.admission_numbers import (
    BUSIER,
    BUSY,
    CONTROLLER,
    DISTINCT,
    FORMS,
    LARGE,
    NEW,
    OURS,
    SAME,
    SMALL,
    STEADY,
    WEBHOOKS,
    Creations,
    Load,
    Results,
    Round,
    Sizes,
)
from benchmarks.creating import Forms
from benchmarks.numbers import percentile
from benchmarks.webhooks import Webhooks

WHOLE = Sizes(
    rounds=24, seconds=0.3, scheduled=0.8, warm=2,
    blocks=1, creations=20, troubled=20, patience=True,
)  # fmt: skip
QUICK = Sizes(
    rounds=1, seconds=0.03, scheduled=0.1, warm=1,
    blocks=1, creations=3, troubled=2, patience=False,
)  # fmt: skip


def main(sizes: Sizes, results: Path | None) -> None:
    """Measure on a cluster of its own, print the table, and keep the files in ``results``.

    Raises:
        MeasurementError, TimeoutError, ChildProcessError: it could not be measured.
    """
    with lab.cluster("api") as cluster:
        measured = measure(cluster, sizes)
    print(report.markdown(measured))
    if results:
        report.write(measured, results)


def measure(cluster: lab.Cluster, sizes: Sizes) -> Results:
    """All numbers. Raises as `main` does."""
    on = {
        **machine.describe(),
        "Go": toolchain.version(webhooks.SOURCE).removeprefix("go"),
        "controller-runtime": machine.pinned(webhooks.SOURCE, "sigs.k8s.io/controller-runtime"),
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        workload = creating.deploy(cluster, folder / "workload")
        workload.await_ready()
        with webhooks.running(cluster, workload, folder / "workload") as running:
            loads = _loads(running, sizes, folder)
            used = {webhook: running.usage(webhook) for webhook in WEBHOOKS}
        with creating.published(cluster, workload) as forms:
            creations = _creations(forms, sizes)
            troubles = forms.troubles(sizes.troubled, patience=sizes.patience)
    return Results(
        sizes=sizes, machine=on, loads=loads, used=used, creations=creations, troubles=troubles
    )


def _loads(running: Webhooks, sizes: Sizes, folder: Path) -> list[Load]:
    """Each webhook under each load, round by round."""
    files: dict[str, Path] = {}
    for number, (body, text) in enumerate(reviews.bodies().items()):
        files[body] = folder / f"{number}.json"
        files[body].write_text(text)
    found: dict[tuple[str, str, str], Load] = {}
    for number in range(sizes.rounds):
        _say(f"load, round {number + 1} of {sizes.rounds}")
        for body, load, webhook, how in _plan(sizes):
            reply = running.load(webhook, body=str(files[body]), warm=sizes.warm, **how)
            known = found.setdefault(
                (webhook, body, load),
                Load(webhook=webhook, body=body, size=reply["bytes"], load=load, rounds=[]),
            )
            known.rounds.append(_round(reply, keep=load == STEADY))
    return list(found.values())


def _plan(sizes: Sizes) -> Iterator[tuple[str, str, str, Mapping[str, Any]]]:
    """Body, load, webhook and order of each stretch of a round.

    Webhooks that are compared stand beside each other.
    """
    short = {"seconds": sizes.seconds}
    busy, busier = {"connections": 16, **short}, {"connections": 64, **short}
    steady = {"connections": 16, "rate": 100, "seconds": sizes.scheduled}
    for body in (SMALL, LARGE):
        for load, how in ((BUSY, busy), (BUSIER, busier), (STEADY, steady)):
            yield from ((body, load, webhook, how) for webhook in WEBHOOKS)
    yield from ((SMALL, NEW, webhook, {**busier, "fresh": True}) for webhook in WEBHOOKS)
    yield from ((SAME, BUSY, webhook, busy) for webhook in (OURS, CONTROLLER))
    yield from ((DISTINCT, BUSY, webhook, busy) for webhook in (OURS, CONTROLLER))


def _round(reply: Mapping[str, Any], *, keep: bool) -> Round:
    latencies = sorted(latency / 1e3 for latency in reply["latencies"])
    return Round(
        reviews=len(latencies),
        cpu=reply["cpu"] / len(latencies) * 1e6,
        rate=len(latencies) / reply["elapsed"],
        p50=percentile(latencies, 50),
        p99=percentile(latencies, 99),
        generator=reply["own"] / reply["elapsed"],
        latencies=latencies if keep else [],
    )


def _creations(forms: Forms, sizes: Sizes) -> list[Creations]:
    """Pods of each form, dry ones and real ones, round by round."""
    found = {
        (form, dry_run): Creations(form=form, dry_run=dry_run, milliseconds=[], cpu=[])
        for dry_run in (True, False)
        for form in FORMS
    }
    for number in range(sizes.rounds):
        _say(f"creations, round {number + 1} of {sizes.rounds}")
        for _ in range(sizes.blocks):
            for (form, dry_run), known in found.items():
                one = forms.create(form, sizes.creations, dry_run=dry_run)
                known.milliseconds.extend(one.milliseconds)
                known.cpu.extend(one.cpu)
    return list(found.values())


def _say(what: str) -> None:
    print(f"benchmarks: {what}", flush=True)
