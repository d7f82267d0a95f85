"""Show generated pods to three kubelets and to `istio-aux explain`; exit 1 where they disagree."""

from __future__ import annotations

import argparse
import secrets
import sys
import time

from oracle.comparison import CAUTIONS
from oracle.kubelets import KUBELETS
from oracle.play import play

_COUNTED = ("pods", "refused", "agreed", "cautious", "disagreed")
_ACTIONS = ("quit", "wait", "report", "ignore")
_STEP = 100_000


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser("python -m oracle", description=__doc__)
    parser.add_argument("--pods", type=int, default=1_000_000, help="for each kubelet")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
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
