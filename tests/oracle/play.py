"""Generate pods, ask kubelets and workload about each, and count where they agree."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import msgspec

from oracle.comparison import Comparison, compare
from oracle.kubelets import Explained, Kubelet, Verdict, explain
from oracle.pods import pod

BATCH = 5_000
_SHOWN = 5
"""Disagreements that are kept of each kubelet."""


@dataclass(frozen=True)
class Disagreement:
    """One pod about which workload and kubelet disagree, and what both say, as JSON."""

    number: int
    what: str
    pod: str
    kubelets: str
    ours: str


@dataclass
class Tally:
    """The answers about the pods of one kubelet.

    Attributes:
        pods: all of them; `agreed`, `cautious` and `disagreed` are those that are not `refused`.
        refused: its API server stores no such pod.
        cautious: the workload takes something for unfinished that is finished.
        unchecked: quits of pods with a phase that no kubelet reports beside their statuses.
        cautions: how often, by the reason.
        actions: what the workload does, and how often.
        seconds: of kubelet and workload together.
    """

    pods: int = 0
    refused: int = 0
    agreed: int = 0
    cautious: int = 0
    disagreed: int = 0
    unchecked: int = 0
    seconds: float = 0
    cautions: Counter[str] = field(default_factory=Counter[str])
    actions: Counter[str] = field(default_factory=Counter[str])
    disagreements: list[Disagreement] = field(default_factory=list["Disagreement"])

    def add(self, other: Tally) -> None:
        """Count what another one counted, too."""
        for name in ("pods", "refused", "agreed", "cautious", "disagreed", "unchecked", "seconds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.cautions.update(other.cautions)
        self.actions.update(other.actions)
        self.disagreements.extend(other.disagreements[: _SHOWN - len(self.disagreements)])

    def count(self, number: int, verdict: Verdict, ours: Explained, found: Comparison) -> None:
        """Count one pod that was compared."""
        self.actions[ours.action] += 1
        self.unchecked += found.unchecked
        self.cautions.update(found.cautions)
        if found.disagreements:
            self.disagree(number, "; ".join(found.disagreements), verdict, ours)
        elif found.cautions:
            self.cautious += 1
        else:
            self.agreed += 1

    def disagree(self, number: int, what: str, verdict: Verdict, ours: Explained | None) -> None:
        """Count one disagreement, and keep the first ones."""
        self.disagreed += 1
        if len(self.disagreements) < _SHOWN:
            stored = bytes(verdict.pod).decode()
            rest = msgspec.structs.replace(verdict, pod=msgspec.Raw(b"null"))
            said = (msgspec.json.encode(each).decode() for each in (rest, ours))
            self.disagreements.append(Disagreement(number, what, stored, *said))


def play(
    kubelets: Sequence[Kubelet],
    seed: int,
    pods: int,
    show: Callable[[int], None] = lambda _: None,
) -> dict[Kubelet, Tally]:
    """Compare so many pods of a seed; ``show`` gets how many are done."""
    for kubelet in kubelets:
        _ = kubelet.program  # Built now rather than by one of the threads below.
    total = {kubelet: Tally() for kubelet in kubelets}
    parts = [range(first, min(first + BATCH, pods)) for first in range(0, pods, BATCH)]
    done = 0
    # Kubelets and workload are processes of their own; the threads wait for them.
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for tallies in threads.map(lambda numbers: _part(kubelets, seed, numbers), parts):
            for kubelet, tally in tallies.items():
                total[kubelet].add(tally)
            done += tallies[kubelets[0]].pods
            show(done)
    return total


def answers(
    kubelet: Kubelet, documents: Sequence[bytes]
) -> Iterator[tuple[Verdict, Explained | None, str]]:
    """What kubelet and workload say about each pod, and what the workload complains of."""
    verdicts = kubelet.judge(documents)
    explained, complaints = explain(verdict.pod for verdict in verdicts if not verdict.refused)
    answered = {each.uid: each for each in explained}
    for verdict, document in zip(verdicts, documents, strict=True):
        uid = msgspec.json.decode(document, type=_Pod).metadata.uid
        yield verdict, answered.get(uid), complaints


class _Metadata(msgspec.Struct):
    uid: str


class _Pod(msgspec.Struct):
    metadata: _Metadata


def _part(kubelets: Sequence[Kubelet], seed: int, numbers: range) -> dict[Kubelet, Tally]:
    documents = [msgspec.json.encode(pod(seed, number)) for number in numbers]
    return {kubelet: _tally(kubelet, numbers, documents) for kubelet in kubelets}


def _tally(kubelet: Kubelet, numbers: range, documents: Sequence[bytes]) -> Tally:
    tally, started = Tally(pods=len(documents)), time.monotonic()
    said = answers(kubelet, documents)
    for number, (verdict, ours, complaints) in zip(numbers, said, strict=True):
        if verdict.refused:
            tally.refused += 1
        elif ours is None:
            tally.disagree(number, f"explain: {complaints}", verdict, ours)
        else:
            tally.count(number, verdict, ours, compare(kubelet, verdict, ours))
    tally.seconds = time.monotonic() - started
    return tally
