"""How many controllers have a restart under way at once, and whose turn it is."""

from __future__ import annotations

from istio_aux.core.pacing import Course, Group, Next, begun, due, step
from unit.core.restart_story import PACE, Story, bare, meshed

NOW = 1000.0


def group(*, served: float | None = None) -> Group:
    """A controller with a pod to be restarted."""
    return Group((bare("a"), bare("b")), Course(served=served))


def restarting(since: float) -> Group:
    """A controller with a restart under way."""
    fresh = group()
    return Group(fresh.members[1:], begun(fresh, fresh.members[0], since))


def chosen(groups: dict[str, Group]) -> set[str]:
    """Whose turn it is among these controllers."""
    waiting = {
        owner: group.course
        for owner, group in groups.items()
        if isinstance(step(group, NOW, PACE), Next)
    }
    under_way = [group.course for group in groups.values() if group.course.victim]
    return set(due(waiting, under_way, NOW, PACE))


def test_only_those_that_wait_get_a_turn() -> None:
    groups = {
        "one": group(),
        "two": restarting(NOW - 1),
        "three": Group((meshed("a"),)),
        "four": Group((bare("a"),), Course(stopped="it did not help")),
    }
    assert chosen(groups) == {"one"}


def test_no_more_than_so_many_are_begun_at_once() -> None:
    assert chosen({name: group() for name in "abc"}) == {"a", "b"}


def test_those_under_way_count() -> None:
    assert chosen({"a": restarting(NOW - 1), "b": group(), "c": group()}) == {"b"}
    assert chosen({"a": restarting(NOW - 1), "b": restarting(NOW - 2), "c": group()}) == set()
    many = {name: restarting(NOW - 1) for name in "abc"}
    assert chosen({**many, "d": group(), "e": group()}) == set()


def test_those_that_were_given_up_do_not_count() -> None:
    """A replacement that never comes must not keep all others waiting."""
    assert chosen({"a": restarting(NOW - 600), "b": group(), "c": group()}) == {"b", "c"}


def test_those_that_waited_longest_come_first() -> None:
    """One with a thousand pods keeps nobody waiting; 0 is a time like any other."""
    groups = {
        "a": group(served=NOW - 1),
        "b": group(served=0.0),
        "c": group(served=-1.0),
        "d": group(),
    }
    assert chosen(groups) == {"c", "d"}


def test_who_was_served_goes_behind_the_others_even_after_a_success() -> None:
    story = Story(bare("a"), bare("b"))
    story.evict()
    story.see(bare("b"), meshed("c"))
    mine = Group(story.members, story.course)
    assert chosen({"mine": mine, "x": group(served=NOW - 1), "y": group()}) == {"x", "y"}
