"""Play seeds, and say which properties did not hold; exit 1 if there was one.

`--seed K --trace` tells the story of one. `--deaths` lets a unit die at each request of a run
without faults, and `--breaks` shows that faults of the product are found.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from functools import partial

from lab.nightly import NIGHT

from simulation import deaths
from simulation.deaths import Death
from simulation.exhaustive import LIVES, search
from simulation.play import Result, play, shrink


def main() -> int:
    parser = argparse.ArgumentParser("python -m simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds to play")
    parser.add_argument("--from", type=int, default=400 * NIGHT, dest="begin", help="the first")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seed", type=int, help="play this one")
    parser.add_argument("--trace", action="store_true", help="tell the story of --seed")
    parser.add_argument("--off", default="", help="faults that are switched off, with commas")
    parser.add_argument("--ambient", action="store_true", help="with an ambient mesh")
    parser.add_argument(
        "--breaks", action="store_true", help="break the product, and see that it is found"
    )
    parser.add_argument(
        "--complete", action="store_true", help="visit every state of one pod's quit"
    )
    parser.add_argument("--deaths", action="store_true", help="let a unit die at each request")
    parser.add_argument("--death", type=Death.read, help="play this one, as 17:at; with --trace")
    options = parser.parse_args()
    if options.death:
        return _told(deaths.play(options.death, trace=options.trace)[0])
    if options.complete:
        return _complete()
    if options.deaths:
        return _deaths(options.jobs)
    if options.breaks:
        from simulation import breaks  # noqa: PLC0415  (it changes the product)

        return breaks.main()
    if options.seed is not None:
        off = frozenset(filter(None, options.off.split(",")))
        return _told(play(options.seed, off=off, trace=options.trace, meshed=options.ambient))
    return _many(
        range(options.begin, options.begin + options.seeds), options.jobs, meshed=options.ambient
    )


def _told(result: Result) -> int:
    print("\n".join(result.story))
    print(f"seed {result.seed}: {result.seconds:.0f} s; faults: {', '.join(sorted(result.faults))}")
    for violation in result.violations:
        print(violation)
    return 1 if result.violations else 0


def _play(seed: int, *, meshed: bool = False) -> Result:
    try:
        return play(seed, meshed=meshed)
    except Exception as error:  # Not all errors pass from one process to another.
        raise RuntimeError(f"seed {seed}: {error!r}") from None


def _die(death: Death) -> Result:
    return deaths.play(death)[0]


def _deaths(jobs: int) -> int:
    """Play each death at each request."""
    began, found = time.monotonic(), deaths.deaths()
    with multiprocessing.Pool(jobs) as pool:
        results = dict(zip(found, pool.map(_die, found), strict=True))
    bad = {death: result for death, result in results.items() if result.violations}
    for death, result in bad.items():
        print(f"--death {death} --trace: {str(result.violations[0])[:400]}")
    print(f"{len(found)} deaths, {time.monotonic() - began:.0f} s")
    print("good" if not bad else f"NOT GOOD: {len(bad)} deaths")
    return 1 if bad else 0


def _complete() -> int:
    """Visit every state of each life."""
    bad, visited = 0, 0
    for life in LIVES:
        found = search(life)
        visited, bad = visited + found.states, bad + bool(found.broken)
        print(f"{found.states:8,} states  {life.name}: {found.broken or 'good'}", flush=True)
        print("".join(f"          {step}\n" for step in found.story), end="")
    print(f"{visited:8,} states  {f'NOT GOOD: {bad}' if bad else 'good'}")
    return 1 if bad else 0


def _many(seeds: range, jobs: int, *, meshed: bool) -> int:
    one = partial(_play, meshed=meshed)
    began, kinds, bad = time.monotonic(), Counter[str](), list[Result]()
    simulated, counts = 0.0, Counter[int]()
    with multiprocessing.Pool(jobs) as pool:
        results = pool.imap_unordered(one, seeds, chunksize=5) if jobs > 1 else map(one, seeds)
        for number, result in enumerate(results, 1):
            simulated += result.seconds
            counts.update(dict(enumerate(result.counts)))
            if result.violations:
                kinds.update(result.kinds)
                bad.append(result)
                print(f"seed {result.seed}: {str(result.violations[0])[:400]}", flush=True)
            if number % 1000 == 0:
                print(f"{number} seeds, {time.monotonic() - began:.0f} s", flush=True)
    took = time.monotonic() - began
    print(f"{len(seeds)} seeds, {simulated / 3600:.1f} simulated hours, {took:.0f} s")
    print(f"{counts[0]} writes, {counts[1]} requests to exit ({counts[2]} in the last second)")
    for kind, number in kinds.most_common():
        examples = sorted(result.seed for result in bad if kind in result.kinds)[:8]
        print(f"{number:6} {kind}: seeds {', '.join(map(str, examples))}")
    for result in sorted(bad, key=lambda result: result.seed)[: 0 if meshed else 3]:
        needed = shrink(result.seed, result.violations[0].kind)
        print(f"seed {result.seed} needs only: {', '.join(sorted(needed)) or 'no fault'}")
    print("good" if not bad else f"NOT GOOD: {len(bad)} seeds")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
