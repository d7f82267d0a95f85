"""Feed the program what tenants write, in reviews and stored pods; exit 1 on a finding."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from functools import partial
from pathlib import Path

from lab.nightly import NIGHT

from fuzz import stored
from fuzz.play import play, serving


def main() -> int:
    parser = argparse.ArgumentParser("python -m fuzz", description=__doc__)
    parser.add_argument("--bodies", type=int, default=200_000, help="of each target")
    parser.add_argument("--seed", type=int, default=NIGHT)
    parser.add_argument("--target", choices=[*_TARGETS], action="append")
    options = parser.parse_args()
    findings = list[str]()
    for target in options.target or _TARGETS:
        _show(f"again: --target {target} --bodies {options.bodies} --seed {options.seed}")
        findings += asyncio.run(_TARGETS[target](options.bodies, options.seed))
    print("\n".join([*findings, "NOT GOOD" if findings else "good"]))
    return 1 if findings else 0


async def _reviews(count: int, seed: int) -> list[str]:
    """Send the webhook valid and invalid reviews, and judge its answers."""
    with tempfile.TemporaryDirectory() as folder:
        async with serving(Path(folder)) as server:
            findings, _ = await play(server, count, seed, _show)
            return findings


async def _pods(count: int, seed: int) -> list[str]:
    return await stored.play(count, seed, _show)


_TARGETS = {"reviews": _reviews, "pods": _pods}
_show = partial(print, flush=True)


if __name__ == "__main__":
    sys.exit(main())
