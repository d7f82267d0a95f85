"""Show generated pods to three kubelets and to `istio-aux explain`; exit 1 where they disagree."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import msgspec
from lab.nightly import NIGHT

from oracle.comparison import CAUTIONS, KUBELETS, Explained, Kubelet, Verdict, compare, explain
from oracle.pods import pod

BATCH = 5_000
SHOWN = 5
"""Disagreements that are kept of each kubelet."""
_COUNTED = ("pods", "refused", "agreed", "cautious", "disagreed")
_ACTIONS = ("quit", "wait", "report", "ignore")
_STEP = 100_000


@dataclass
class Tally:
    """The answers about the pods of one kubelet."""

    # How many pods there were, were refused by the API server, and are agreed, more cautious and
    # disagreed about; and how often there was each action and each caution.
    counts: Counter[str] = field(default_factory=Counter[str])
    # The first ones, with the pod, and with what both say.
    disagreements: list[str] = field(default_factory=list[str])

    def add(self, other: Tally) -> None:
        """Count what another one counted, too."""
        self.counts += other.counts
        self.disagreements = [*self.disagreements, *other.disagreements][:SHOWN]


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
    # Kubelets and workload are processes of their own; the threads wait for them.
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for tallies in threads.map(lambda numbers: _part(kubelets, seed, numbers), parts):
            for kubelet, tally in tallies.items():
                total[kubelet].add(tally)
            show(total[kubelets[0]].counts["pods"])
    return total


def _answers(
    kubelet: Kubelet, documents: Sequence[bytes]
) -> Iterator[tuple[Verdict, Explained | None, str]]:
    """What kubelet and workload say about each pod, and what the workload complains of."""
    verdicts = kubelet.judge(documents)
    explained, complaints = explain(verdict.pod for verdict in verdicts if not verdict.refused)
    answered = {each.uid: each for each in explained}
    for verdict, document in zip(verdicts, documents, strict=True):
        uid = msgspec.json.decode(document)["metadata"]["uid"]
        yield verdict, answered.get(uid), complaints


def _part(kubelets: Sequence[Kubelet], seed: int, numbers: range) -> dict[Kubelet, Tally]:
    documents = [msgspec.json.encode(pod(seed, number)) for number in numbers]
    return {kubelet: _tally(kubelet, numbers, documents) for kubelet in kubelets}


def _tally(kubelet: Kubelet, numbers: range, documents: Sequence[bytes]) -> Tally:
    tally, said = Tally(), _answers(kubelet, documents)
    for number, (verdict, ours, complaints) in zip(numbers, said, strict=True):
        tally.counts["pods"] += 1
        if verdict.refused:
            tally.counts["refused"] += 1
            continue
        if ours is None:
            wrong = (f"explain: {complaints}",)
        else:
            found = compare(kubelet, verdict, ours)
            wrong = found.disagreements
            tally.counts.update((ours.action, *found.cautions))
            if not wrong:
                tally.counts["cautious" if found.cautions else "agreed"] += 1
        if wrong:
            tally.counts["disagreed"] += 1
            if len(tally.disagreements) < SHOWN:
                what = f"{kubelet.title}, pod {number}: {'; '.join(wrong)}"
                tally.disagreements.append(f"{what}\n{_told(verdict, ours)}")
    return tally


def _told(verdict: Verdict, ours: Explained | None) -> str:
    rest = msgspec.structs.replace(verdict, pod=msgspec.Raw(b"null"))
    said = (msgspec.json.encode(each).decode() for each in (verdict.pod, rest, ours))
    return "pod:     {}\nkubelet: {}\nexplain: {}".format(*said)


def main() -> int:
    parser = argparse.ArgumentParser("python -m oracle.play", description=__doc__)
    parser.add_argument("--pods", type=int, default=1_000_000, help="for each kubelet")
    parser.add_argument("--seed", type=int, default=NIGHT)
    options = parser.parse_args()
    print(f"again: --pods {options.pods} --seed {options.seed}", flush=True)
    started = time.monotonic()

    def show(done: int) -> None:
        if done % _STEP == 0 or done == options.pods:
            print(f"{time.monotonic() - started:>6.0f} s {done:>9} pods", flush=True)

    tallies = play(KUBELETS, options.seed, options.pods, show)
    print("\n" + "  ".join(f"{kubelet.title:>34}" for kubelet in KUBELETS))
    reasons = {caution.what: f": {caution.reason}" for caution in CAUTIONS}
    for name in (*_COUNTED, *_ACTIONS, *reasons):
        counts = "  ".join(f"{tally.counts[name]:>34}" for tally in tallies.values())
        print(f"{counts}  {name}{reasons.get(name, '')}")
    for tally in tallies.values():
        for found in tally.disagreements:
            print(f"\n{found}")
    good = not any(tally.counts["disagreed"] for tally in tallies.values())
    print("\ngood" if good else "\nNOT GOOD")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
