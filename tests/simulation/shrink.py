"""Which faults a violation needs: all others are switched off, one by one."""

from __future__ import annotations

from simulation import faults
from simulation.play import play


def shrink(seed: int, kind: str) -> frozenset[str]:
    """Return faults of a seed with which it still breaks the property ``kind``, and no fewer.

    Each fault has its own chance, so what is left happens as before, as far as it can.
    """
    off = frozenset[str]()
    for fault in sorted(faults.choose(seed)):
        if kind in play(seed, off=off | {fault}).kinds:
            off |= {fault}
    return faults.choose(seed) - off
