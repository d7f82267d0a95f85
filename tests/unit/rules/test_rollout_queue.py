"""Of which controllers a pod is restarted next, when there are many."""

from __future__ import annotations

from istio_aux.model.moment import Moment
from istio_aux.repair.rollout import first_in_line
from msgspec import structs
from unit.rules.restart_story import LIMITS

NOW = Moment(1000.0, 1e9)
FIVE = structs.replace(LIMITS, at_once=5, share=3)
AGO = dict[str, float]


def chosen(waiting: AGO, begun: AGO | None = None, served: AGO | None = None) -> list[str]:
    """Which controllers are next, if all this was so many seconds ago."""
    found = [
        {key: NOW.monotonic - ago for key, ago in (each or {}).items()}
        for each in (waiting, begun, served)
    ]
    return first_in_line(found[0], found[1], found[2], NOW, FIVE)


def test_no_more_than_so_many_are_under_way_at_once() -> None:
    """A replacement that never comes must not keep all others waiting."""
    waiting = {f"{name}/1": 1.0 for name in "abcdefg"}
    assert chosen(waiting) == ["a/1", "b/1", "c/1", "d/1", "e/1"]
    begun = {f"{name}/1": 1.0 for name in "xyz"}
    assert chosen(waiting, begun) == ["a/1", "b/1"]
    assert chosen(waiting, {**begun, "v/1": 1.0, "w/1": 1.0}) == []
    given_up = {f"{name}/1": 600.0 for name in "vwxyz"}
    assert chosen(waiting, {**begun, **given_up}) == ["a/1", "b/1", "c/1", "d/1", "e/1"]


def test_pods_that_never_get_ready_delay_only_their_own_namespace() -> None:
    bad = {f"bad/{number}": 9000.0 for number in range(100)}
    waiting = {**bad, "good/1": 1.0}
    assert chosen(waiting) == ["bad/0", "good/1", "bad/1", "bad/10"]
    begun = {f"bad/{number}": 1.0 for number in range(3)}
    assert chosen(waiting, begun, {"bad": 1.0}) == ["good/1"]


def test_namespaces_take_turns_however_many_of_them_are_bad() -> None:
    """Those that were served since another began to wait come after it."""
    bad = {f"bad-{name}/{number}": 9000.0 for name in range(9) for number in range(100)}
    begun = {f"bad-{name}/x": 600.0 for name in range(4)} | {"z/1": 1.0, "z/2": 1.0, "z/3": 1.0}
    served = {f"bad-{name}": 600.0 - name for name in range(9)}
    order = chosen({**bad, "good/1": 595.5}, begun, served)
    assert order == ["bad-0/0", "bad-1/0"]
    later = {**served, "bad-0": 0.0, "bad-1": 0.0}
    order = chosen({**bad, "good/1": 598.5}, begun, later)
    assert order == ["good/1", "bad-2/0"]
