"""Show generated pods to three kubelets and to `istio-aux explain`; exit 1 where they disagree."""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections.abc import Sequence

from oracle.comparison import CAUTIONS
from oracle.kubelets import KUBELETS, Kubelet
from oracle.play import play

_COUNTED = ("pods", "refused", "agreed", "cautious", "disagreed")
_ACTIONS = ("quit", "wait", "report", "ignore")
_STEP = 100_000


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser("python -m oracle", description=__doc__)
    parser.add_argument("--pods", type=int, default=1_000_000, help="for each kubelet")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    parser.add_argument("--version", action="append", help="only this one; may be repeated")
    options = parser.parse_args()
    known = [kubelet.version for kubelet in KUBELETS]
    kubelets = [each for each in KUBELETS if each.version in (options.version or known)]
    if not kubelets:
        parser.error(f"--version {options.version[0]}: expected {', '.join(known)}")
    print(f"again: --pods {options.pods} --seed {options.seed}", flush=True)
    return _play(kubelets, options.seed, options.pods)


def _play(kubelets: Sequence[Kubelet], seed: int, pods: int) -> int:
    started = time.monotonic()

    def show(done: int) -> None:
        if done % _STEP == 0 or done == pods:
            print(f"{time.monotonic() - started:>6.0f} s {done:>9} pods", flush=True)

    tallies = play(kubelets, seed, pods, show)
    columns = [kubelet.title for kubelet in kubelets]
    print("\n" + "  ".join(f"{column:>34}" for column in columns))
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
