"""How many controllers have a restart under way at once, and whose turn it is."""

from __future__ import annotations

from istio_aux.core.rollout import (
    Failure,
    Moment,
    Next,
    Replica,
    Rollout,
    first_in_line,
    next_step,
    started,
)
from unit.core.restart_story import LIMITS, Story, bare, meshed

NOW = Moment(1000.0, 1e9)
State = tuple[tuple[Replica, ...], Rollout]


def waiting(*, served: float | None = None) -> State:
    """A controller with a pod to be restarted."""
    return (bare("a"), bare("b")), Rollout(served=served)


def restarting(ago: float) -> State:
    """A controller with a restart under way."""
    (pod, *rest), rollout = waiting()
    since = Moment(NOW.steady - ago, NOW.wall - ago)
    return tuple(rest), started(rollout, (pod, *rest), pod, since)


def chosen(states: dict[str, State]) -> set[str]:
    """Which of these controllers are next."""
    found = {
        owner: rollout
        for owner, (pods, rollout) in states.items()
        if isinstance(next_step(rollout, pods, NOW, LIMITS), Next)
    }
    active = [rollout for _, rollout in states.values() if rollout.replacing]
    return set(first_in_line(found, active, NOW, LIMITS))


def test_only_those_that_wait_get_a_turn() -> None:
    states = {
        "one": waiting(),
        "two": restarting(1),
        "three": ((meshed("a"),), Rollout()),
        "four": ((bare("a"),), Rollout(failure=Failure("it did not help", 0.0, NOW.wall))),
    }
    assert chosen(states) == {"one"}


def test_no_more_than_so_many_are_under_way_at_once() -> None:
    assert chosen({name: waiting() for name in "abc"}) == {"a", "b"}
    assert chosen({"a": restarting(1), "b": waiting(), "c": waiting()}) == {"b"}
    assert chosen({"a": restarting(1), "b": restarting(2), "c": waiting()}) == set()
    many = {name: restarting(1) for name in "abc"}
    assert chosen({**many, "d": waiting(), "e": waiting()}) == set()


def test_those_that_were_given_up_do_not_count() -> None:
    """A replacement that never comes must not keep all others waiting."""
    assert chosen({"a": restarting(600), "b": waiting(), "c": waiting()}) == {"b", "c"}


def test_those_that_waited_longest_come_first() -> None:
    """One with a thousand pods keeps nobody waiting; 0 is a time like any other."""
    states = {
        "a": waiting(served=NOW.steady - 1),
        "b": waiting(served=0.0),
        "c": waiting(served=-1.0),
        "d": waiting(),
    }
    assert chosen(states) == {"c", "d"}


def test_who_was_served_goes_behind_the_others_even_after_a_success() -> None:
    story = Story(bare("a"), bare("b"))
    story.evict()
    story.see(bare("b"), meshed("c"))
    mine = (story.pods, story.rollout)
    assert chosen({"mine": mine, "x": waiting(served=NOW.steady - 1), "y": waiting()}) == {"x", "y"}
