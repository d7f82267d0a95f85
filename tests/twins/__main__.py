"""Play pairs in each world of Istio; exit 1 if a pair is worse off with istio-aux."""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import lab.istio
from lab.nightly import NIGHT

from twins import judge, manifests, player
from twins.judge import Again, Count, Half, losses, verdict
from twins.manifests import Moment, Pair

BATCH = 40
AGAIN = 5
"""How often a pair that was worse off is played again."""
RESULTS = Path(__file__).parents[2] / "test-results" / "twins.txt"
Batch = tuple[Moment, Sequence[Pair]]
_show = partial(print, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser("python -m twins", description=__doc__)
    parser.add_argument("--seed", type=int, default=NIGHT)
    parser.add_argument("--pairs", type=int, default=100, help="of each world")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no batch later")
    parser.add_argument("--world", choices=manifests.WORLDS, action="append")
    parser.add_argument("--cni", action="store_true", help="beside istio-cni")
    options = parser.parse_args()
    named = "".join(f" --world {name}" for name in options.world or ())
    named += " --cni" * options.cni
    again = f"--pairs {options.pairs} --seed {options.seed}{named}"
    _show(f"again: {again}")
    RESULTS.parent.mkdir(exist_ok=True)
    counts = dict[str, Count]()
    played, start = options.world or manifests.WORLDS, time.monotonic()
    with lab.cluster("node") as cluster, tempfile.TemporaryDirectory() as folder:
        player.load(cluster)
        if options.cni:
            lab.istio.install_cni(cluster, ambient=False)
        for at, name in enumerate(played, 1):
            counts[name] = count = Count()
            began = time.monotonic()
            with player.world(cluster, name, cni=options.cni) as beside:
                for batch in batches(name, options.seed, options.pairs):
                    if time.monotonic() > start + 60 * options.minutes * at / len(played):
                        _show(f"{name}: no time for {len(batch[1])} pairs, {batch[0]}")
                        continue
                    _play(beside, Path(folder), batch, count)
                    count.seconds = time.monotonic() - began
            _show(judge.table(counts))
        cluster.keep_logs = False
    worse = sum(count.verdicts["worse"] for count in counts.values())
    _show(judge.table(counts))
    _show(f"{'NOT GOOD' if worse else 'good'}: {again}")
    return 1 if worse else 0


def batches(world: str, seed: int, pairs: int) -> Iterable[Batch]:
    """The pairs that are written by hand, then those of the seed."""
    yield manifests.USUAL, manifests.BY_HAND
    yield Moment(quit="dry-run"), manifests.LEFT_RUNNING
    for at, start in enumerate(range(0, pairs, BATCH)):
        numbers = range(start, min(start + BATCH, pairs))
        drawn = [manifests.pair(f"p{n}", manifests.draw(seed, world, n)) for n in numbers]
        yield manifests.moment(seed, world, at), drawn


def _play(beside: player.World, folder: Path, batch: Batch, count: Count) -> None:
    """Play a batch, and what was worse off in it again."""
    moment, pairs = batch
    began = time.monotonic()
    played = player.play(beside, folder, pairs, moment)
    seconds = time.monotonic() - began
    doubtful = [pair for pair, ours, twin in played if losses(ours, twin)]
    found = _again(beside, folder, doubtful, moment)
    _show(
        f"{beside.name}: {len(played)} pairs in {seconds:.0f} s, {moment}: {len(doubtful)} worse"
        f" off, {sum(again.worse for again in found.values())} of them again"
    )
    for pair, ours, twin in played:
        seen = verdict(ours, twin)
        if again := found.get(pair.name):
            _show(judge.told(pair, ours, twin, again))
            seen = "worse" if again.worse else "same"
        count.add(ours, twin, seen)
        with RESULTS.open("a") as file:
            file.write(f"{judge.line(beside.name, moment, pair, ours, twin)}\n")


def _again(
    beside: player.World, folder: Path, doubtful: Sequence[Pair], moment: Moment
) -> dict[str, Again]:
    """Play these pairs five times more, side by side; returns the counts by their names."""
    copies = [pair.copy(f"{pair.name}-{n}") for pair in doubtful for n in range(AGAIN)]
    plays: dict[str, list[tuple[Half, Half]]] = {pair.name: [] for pair in doubtful}
    for start in range(0, len(copies), BATCH):
        for copy, ours, twin in player.play(beside, folder, copies[start : start + BATCH], moment):
            plays[copy.name.rpartition("-")[0]].append((ours, twin))
    return {name: judge.again(found) for name, found in plays.items()}


if __name__ == "__main__":
    sys.exit(main())
