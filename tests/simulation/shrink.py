"""Which faults a violation needs: all others are switched off, one by one."""

from __future__ import annotations

from simulation.play import Result, play


def shrink(result: Result) -> frozenset[str]:
    """Return faults with which the first violation of a seed still happens, and no fewer of them.

    Each fault has its own chance, so what is left happens as before, as far as it can.
    """
    kind, off = result.violations[0].kind, frozenset[str]()
    for fault in sorted(result.faults):
        if kind in play(result.seed, off=off | {fault}).kinds:
            off |= {fault}
    return result.faults - off
