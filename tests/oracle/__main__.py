"""Show generated pods to three kubelets and to `istio-aux explain`; exit 1 where they disagree."""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from oracle.comparison import CAUTIONS, compare
from oracle.kubelets import KUBELETS, Kubelet
from oracle.play import Tally, answers, play
from oracle.pods import pod

_COLUMNS = "{:<34} {:>9} {:>9} {:>9} {:>14} {:>13} {:>8}"
_STEP = 100_000


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser("python -m oracle", description=__doc__)
    parser.add_argument("--pods", type=int, default=1_000_000, help="for each kubelet")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    parser.add_argument("--version", action="append", help="only this one; may be repeated")
    parser.add_argument("--only", type=int, metavar="N", help="show what all say about pod N")
    options = parser.parse_args()
    versions = options.version or [kubelet.version for kubelet in KUBELETS]
    kubelets = [kubelet for kubelet in KUBELETS if kubelet.version in versions]
    if not kubelets:
        parser.error(f"--version {versions[0]}: expected {', '.join(k.version for k in KUBELETS)}")
    if options.only is not None:
        return _explain(kubelets, options.seed, options.only)
    print(f"again: --pods {options.pods} --seed {options.seed}", flush=True)
    started = time.monotonic()
    tallies = play(kubelets, options.seed, options.pods, _progress(options.pods, started))
    print(f"{options.pods} pods in {time.monotonic() - started:.0f} s")
    return _report(tallies, options.seed)


def _progress(pods: int, started: float) -> Callable[[int], None]:
    def show(done: int) -> None:
        if done % _STEP == 0 or done == pods:
            print(f"{time.monotonic() - started:>6.0f} s {done:>9} pods", flush=True)

    return show


def _report(tallies: Mapping[Kubelet, Tally], seed: int) -> int:
    header = ("kubelet", "pods", "refused", "agree", "more cautious", "disagree", "seconds")
    print("\n" + _COLUMNS.format(*header))
    for kubelet, tally in tallies.items():
        counted = (tally.pods, tally.refused, tally.agreed, tally.cautious, tally.disagreed)
        print(_COLUMNS.format(kubelet.title, *counted, round(tally.seconds)))
    print("\nmore cautious, by reason")
    for caution in CAUTIONS:
        counts = " ".join(f"{tally.cautions[caution.what]:>8}" for tally in tallies.values())
        print(f"{counts}  {caution.what}: {caution.reason}")
    counts = " ".join(f"{tally.unchecked:>8}" for tally in tallies.values())
    print(f"\n{counts}  quits beside a phase that no kubelet reports: asked only for restarts")
    for action in ("quit", "wait", "report", "ignore"):
        print(" ".join(f"{tally.actions[action]:>8}" for tally in tallies.values()), f" {action}")
    for kubelet, tally in tallies.items():
        for found in tally.disagreements:
            print(f"\n{kubelet.title}, pod {found.number}: {found.what}")
            print(f"again: --version {kubelet.version} --seed {seed} --only {found.number}")
            print(f"pod:     {found.pod}\nkubelet: {found.kubelets}\nexplain: {found.ours}")
    good = not any(tally.disagreed for tally in tallies.values())
    print("\ngood" if good else "\nNOT GOOD")
    return 0 if good else 1


def _explain(kubelets: Sequence[Kubelet], seed: int, number: int) -> int:
    """Show what each kubelet and the workload say about one pod."""
    document = msgspec.json.encode(pod(seed, number))
    print(document.decode())
    found = False
    for kubelet in kubelets:
        for verdict, ours, complaints in answers(kubelet, [document]):
            print(f"\n{kubelet.title}\nkubelet: {msgspec.json.encode(verdict).decode()}")
            if verdict.refused:
                continue
            if ours is None:
                print(f"explain: {complaints}")
                found = True
                continue
            print(f"explain: {msgspec.json.encode(ours).decode()}")
            comparison = compare(kubelet, verdict, ours)
            found = found or bool(comparison.disagreements)
            for line in (*comparison.disagreements, *sorted(comparison.cautions)):
                print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
