"""A short seed of the soak: pods that come and go leave nothing behind."""

from __future__ import annotations

from soak.play import play
from unit.asynchronous import driven

PODS = 1_500
"""Of one part; each has several texts that no other pod has, and caches hold 4,096."""


@driven
async def test_pods_that_come_and_go_leave_nothing_behind() -> None:
    _, warm, then = await play(3 * PODS, 3)
    assert then.blocks - warm.blocks < PODS / 2
