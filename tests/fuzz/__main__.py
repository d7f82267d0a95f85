"""Feed the program what tenants write, in reviews and stored pods; exit 1 on a finding."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import tempfile
from functools import partial
from pathlib import Path

from fuzz import stored
from fuzz.play import PARTS, Part, Verdict, play
from fuzz.server import serving

GROWTH = 10.0
"""MiB. 200,000 bodies that leave 60 bytes each behind would exceed it."""
ENOUGH = 100_000
"""Bodies. With fewer, the first large ones may come late, and with them their buffers."""


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser("python -m fuzz", description=__doc__)
    parser.add_argument("--bodies", type=int, default=200_000, help="of each target")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    parser.add_argument("--target", choices=[*_TARGETS], action="append")
    options = parser.parse_args()
    good = True
    for target in options.target or _TARGETS:
        print(f"again: --target {target} --bodies {options.bodies} --seed {options.seed}")
        good &= _TARGETS[target](options.bodies, options.seed)
    print("good" if good else "NOT GOOD")
    return 0 if good else 1


def _reviews(count: int, seed: int) -> bool:
    """Send the webhook valid and invalid reviews, and judge its answers."""
    print("seconds memory/MiB  answers, by status", flush=True)
    verdict = asyncio.run(_fuzz(count, seed))
    for finding in verdict.findings:
        print(f"{finding.case}: {finding.what} (kept as {finding.keep()})")
    seconds, name = verdict.slowest
    print(f"the slowest answer took {seconds * 1000:.1f} ms of CPU: {name}")
    whole = len(verdict.parts) == PARTS and count >= ENOUGH
    grown = whole and verdict.growth > GROWTH
    if grown:
        print(f"memory grew by {verdict.growth:.1f} MiB, at most {GROWTH:.0f} are allowed")
    return not (grown or verdict.findings)


def _pods(count: int, seed: int) -> bool:
    """Read stored pods, decide about them and show them."""
    findings = asyncio.run(stored.play(count, seed, partial(print, flush=True)))
    for finding in findings:
        print(finding)
    return not findings


_TARGETS = {"reviews": _reviews, "pods": _pods}


async def _fuzz(count: int, seed: int) -> Verdict:
    with tempfile.TemporaryDirectory() as folder:
        async with serving(Path(folder)) as server:
            return await play(server, count, seed, _show)


def _show(part: Part) -> None:
    answers = "  ".join(f"{status}: {count}" for status, count in sorted(part.answers.items()))
    print(f"{part.seconds:>7.1f} {part.memory:>10.1f}  {answers}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
