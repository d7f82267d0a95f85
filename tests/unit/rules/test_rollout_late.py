"""What a watch shows late, and what others do meanwhile, is no result of a restart."""

from __future__ import annotations

from istio_aux.model.moment import Moment
from istio_aux.repair.rollout import Replica, Rollout, Sidecar, accepted, observed, started
from msgspec import structs
from unit.rules.restart_story import LIMITS

NOW = Moment(1000.0, 1e9)


def test_a_pod_that_was_made_before_the_eviction_does_not_show_its_result() -> None:
    """A watch shows it late: it stands in the place of a pod that somebody else drained."""
    rollout = started(Rollout(), [OLD], OLD, NOW)
    evicted = structs.replace(OLD, deleting=True, restart=False, deleted=NOW.wall + 60)
    before, after = made("before", NOW.wall + 59), made("after", NOW.wall + 61)

    rollout = observed(rollout, [evicted, before], NOW, LIMITS)
    assert (rollout.failure, rollout.replacing is None) == (None, False)
    rollout = observed(rollout, [before], NOW, LIMITS)
    assert rollout.failure is None
    rollout = observed(rollout, [before, after], NOW, LIMITS)
    assert rollout.failure
    assert rollout.failure.uid == "after"


def test_a_pod_that_somebody_else_deletes_before_us_is_no_restart_of_ours() -> None:
    rollout = started(Rollout(), [OLD], OLD, NOW, sent=False)
    new = made("new", NOW.wall + 1)

    rollout = observed(rollout, [OLD, new], NOW, LIMITS)
    assert (rollout.failure, rollout.replacing is None) == (None, False)
    assert observed(rollout, [new], NOW, LIMITS).replacing is None


def test_an_eviction_that_was_accepted_is_not_doubted() -> None:
    """A watch that has fallen silent shows the old pod, and then the new one without a sidecar."""
    rollout = accepted(started(Rollout(), [OLD], OLD, NOW), evicted=True)
    later = Moment(NOW.monotonic + LIMITS.unconfirmed, NOW.wall + LIMITS.unconfirmed)
    new = made("new", later.wall)

    rollout = observed(rollout, [OLD], later, LIMITS)
    assert rollout.replacing
    rollout = observed(rollout, [new], later, LIMITS)
    assert rollout.failure
    assert rollout.failure.uid == "new"


def made(uid: str, created: float) -> Replica:
    return Replica(uid, uid, Sidecar.MISSING, ready=True, restart=True, created=created)


OLD = made("old", NOW.wall - 1000)
