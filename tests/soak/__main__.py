"""Let a million short-lived pods come and go, and print what is left; exit status 1 if it grows."""

from __future__ import annotations

import argparse
import asyncio
import sys

from soak.play import Part, play

GROWTH = 8.0
"""MiB. A million pods that leave 10 bytes each behind would exceed it."""
PARTS = 20
WARM = 2
"""Parts after which every cache is full."""


def main() -> int:
    """Parse the command line, run, print."""
    parser = argparse.ArgumentParser("python -m soak", description=__doc__)
    parser.add_argument("--pods", type=int, default=1_000_000)
    options = parser.parse_args()
    print(f"Python {sys.version.split()[0]}\n     pods memory/MiB    blocks", flush=True)
    weighed = asyncio.run(play(options.pods, PARTS, _show))
    growth = max(part.memory for part in weighed[WARM:]) - weighed[WARM - 1].memory
    print(f"memory grew by {growth:.1f} MiB, at most {GROWTH:.0f} are allowed")
    print("good" if growth <= GROWTH else "NOT GOOD")
    return 0 if growth <= GROWTH else 1


def _show(part: Part) -> None:
    print(f"{part.pods:>9} {part.memory:>10.1f} {part.blocks:>9}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
