"""In which order, and how fast, the unmeshed pods of one controller are restarted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import product
from typing import Any

import pytest
from istio_aux.model.election import Replaced
from istio_aux.model.moment import Moment
from istio_aux.repair import rollout as rollouts
from istio_aux.repair.rollout import (
    Defer,
    Next,
    Replica,
    Rollout,
    RolloutLimits,
    Sidecar,
    Step,
    Stop,
    accepted,
    first_in_line,
    next_step,
    observed,
    recalled,
    refused,
    replica,
    restored,
    started,
)
from istio_aux.repair.rules import Candidate
from msgspec import structs
from unit.rules.pods import NO, REPORT, RESTART, RUNNING, STATEFUL, UNKNOWN, decide_repair, unmeshed

LIMITS = RolloutLimits(
    at_once=2, patience=600.0, unconfirmed=60.0, first_retry=10.0, last_retry=300.0
)


def bare(name: str, uid: str = "", *, ready: bool = True, **more: Any) -> Replica:
    """A pod without a sidecar that may be restarted."""
    place = name.removeprefix("web-")
    details = {"sidecar": Sidecar.MISSING, "restart": True} | more
    return Replica(
        name=name,
        uid=uid or f"old-{name}",
        ready=ready,
        ordinal=int(place) if place.isdigit() else -1,
        **details,
    )


def meshed(name: str, uid: str = "", **more: Any) -> Replica:
    """A pod with a sidecar."""
    return bare(name, uid or f"new-{name}", sidecar=Sidecar.PRESENT, restart=False, **more)


def going(pod: Replica) -> Replica:
    """The same pod with a deletionTimestamp."""
    sidecar = Sidecar.PRESENT if pod.sidecar is Sidecar.PRESENT else Sidecar.UNWANTED
    return structs.replace(pod, sidecar=sidecar, ready=False, deleting=True, restart=False)


class Story:
    """What happens to one controller."""

    def __init__(self, *pods: Replica, wall: float = 1e9) -> None:
        self.pods, self.rollout = pods, Rollout()
        self.now = Moment(1000.0, wall)
        self.gone: dict[str, float] = {}

    @property
    def next(self) -> Step | None:
        return next_step(self.rollout, self.pods, self.now, LIMITS)

    def evict(self) -> str:
        """Do what is next; returns the name of the pod."""
        found = self.next
        assert isinstance(found, Next), found
        self.rollout = started(self.rollout, self.pods, found.pod, self.now)
        return found.pod.name

    def left(self) -> Replaced:
        """Do what is next; returns what the next leader reads about it."""
        self.evict()
        assert self.rollout.replacing
        return self.rollout.replacing.old

    def refuse(self, why: str) -> None:
        self.rollout = refused(self.rollout, why, self.now, LIMITS)

    def see(self, *pods: Replica, after: float = 1.0) -> Step | None:
        """Some time later the controller has these pods; returns what is next."""
        self.now = Moment(self.now.monotonic + after, self.now.wall + after)
        self.pods = pods
        self.rollout = observed(self.rollout, pods, self.now, LIMITS, self.gone)
        return self.next


NOW = Moment(1000.0, 1e9)
DELETED = datetime(2026, 11, 21, 8, 17, tzinfo=UTC).timestamp()


def test_a_stateful_set_is_restarted_from_its_highest_ordinal() -> None:
    """One after another, each after the last one's replacement; 10 comes after 9, not after 1."""
    names = [f"web-{place}" for place in range(11)]
    story = Story(*(bare(name) for name in names))
    for place in range(10, -1, -1):
        assert story.evict() == f"web-{place}"
        story.see(*map(bare, names[:place]), *map(meshed, names[place:]))
    assert story.next is None


def test_the_next_pod_waits_until_the_replacement_is_ready_with_a_sidecar() -> None:
    """istio#15873; a pod of another ordinal is new where the set is scaled up meanwhile."""
    story = Story(bare("web-0"), bare("web-1"))
    assert story.evict() == "web-1"
    held = Defer("web-1 was evicted, and no replacement is Ready in the mesh yet", until=1060.0)
    for pods in (
        [bare("web-1")],
        [going(bare("web-1"))],
        [],
        [meshed("web-1", ready=False)],
        [going(meshed("web-1"))],
        [going(bare("web-1")), meshed("web-2")],
        [meshed("web-2")],
    ):
        assert story.see(bare("web-0"), *pods) == held, pods
    story.see(bare("web-0"), meshed("web-1"))
    assert story.evict() == "web-0"


def test_a_replacement_without_a_sidecar_stops_the_loop_for_a_day() -> None:
    """istio#15873: another restart would help as little, whatever else happens to the pods."""
    story = Story(bare("a"), bare("b"))
    assert story.evict() == "a"
    reason = "c, made after a was evicted, is not in the mesh either"
    assert story.see(bare("b"), bare("c")) == Stop(reason, until=87401.0, uid="old-c")
    assert isinstance(story.see(bare("b"), meshed("d")), Stop)


def test_a_later_pod_with_a_sidecar_shows_that_a_restart_helps_again() -> None:
    """A pod that was there before, or is terminating, shows nothing."""
    story = Story(bare("a"), bare("b"), meshed("old", created=5.0))
    story.evict()
    pods = (bare("b"), bare("c", created=10.0), meshed("old", created=5.0))
    assert isinstance(story.see(*pods), Stop)
    assert isinstance(story.see(*pods, meshed("as-old", created=10.0)), Stop)
    assert isinstance(story.see(*pods, going(meshed("new", created=11.0))), Stop)
    story.see(*pods, meshed("new", created=11.0))
    assert story.evict() == "b"


def test_a_replacement_that_istios_cni_captures_late_has_not_failed() -> None:
    """The next leader knows only when it was created; a pod of that second may be outside."""
    story = Story(bare("a"), bare("b"))
    story.evict()
    assert isinstance(story.see(bare("b"), bare("c", created=10.0)), Stop)
    assert isinstance(story.see(bare("b"), meshed("x"), bare("c", created=10.0)), Stop)
    assert isinstance(story.see(bare("b"), meshed("c", "old-c", created=10.0)), Next)
    story.rollout = Rollout(failure=recalled(datetime.fromtimestamp(10, UTC), NOW, LIMITS))
    both = bare("b"), meshed("c", created=10.0), bare("d", created=10.0)
    assert isinstance(story.see(*both), Stop)
    assert isinstance(story.see(*both[:2]), Next)


@pytest.mark.parametrize("ahead", [-3600.0, 0.0, 601.0, 1e8])
def test_who_leads_next_waits_for_a_replacement_that_is_not_ready(ahead: float) -> None:
    """Nothing is known of the restart that it comes from, and the unit's clock may be wrong."""
    pods = bare("b"), meshed("c", ready=False, created=5000.0)
    story = Story(*pods, wall=5010.0 + ahead)
    assert story.see(*pods, after=0) == Defer(
        reason="c is in the mesh and is not Ready yet", until=1600.0
    )
    assert isinstance(story.see(bare("b"), meshed("c", created=5000.0)), Next)


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        ([bare("c", sidecar=Sidecar.UNKNOWN, restart=False)], Defer),
        ([bare("c", sidecar=Sidecar.UNWANTED, restart=False)], Next),
        ([going(bare("a")), bare("c")], Stop),
        ([going(bare("a"))], Defer),
        ([], Defer),
    ],
    ids=["unknown is never healthy", "opted out since", "too early", "it goes", "the others"],
)
def test_what_came_of_a_restart(pods: list[Replica], expected: type[Step]) -> None:
    """The pods that were there already show nothing, and a replacement counts at once."""
    story = Story(bare("a"), bare("b"), meshed("x"))
    assert story.evict() == "a"
    assert isinstance(story.see(bare("b"), meshed("x"), *pods, after=61), expected)


def test_whose_controller_became_smaller_meanwhile_goes_on_after_a_while() -> None:
    """Or whose node is lost; each time later, for a quota may forbid new pods."""
    story = Story(*(bare(f"web-{place}") for place in range(4)))
    forgotten = 599 + 2 * LIMITS.patience  # Since it was first seen without a pod.
    for left, wait in ((3, 7200.0), (2, 14400.0), (1, 28800.0), (0, forgotten)):
        assert story.evict() == f"web-{left}"
        pods = [bare(f"web-{place}") for place in range(left)]
        began = story.now.monotonic
        assert isinstance(story.see(*pods, after=599), Defer)
        held = story.see(*pods, after=1)
        assert isinstance(held, Stop)
        why = "was evicted, and no replacement is Ready in the mesh after 600 s"
        assert held.reason == f"web-{left} {why}"
        while isinstance(held, Defer | Stop) and held.until:
            held = story.see(*pods, after=held.until - story.now.monotonic)
        assert story.now.monotonic - began == wait


@pytest.mark.parametrize(
    ("pods", "gone", "reason", "wait"),
    [
        ([bare("web-0"), going(meshed("web-1"))], {}, "web-1 is being deleted", 600),
        ([bare("web-0")], {"web-1": 1000.0}, "web-1 is gone, and not back yet", 600),
        ([bare("web-0"), meshed("web-2")], {}, "there is no pod with the ordinal 1", 60),
    ],
)
def test_a_pod_that_somebody_else_restarts_is_waited_for_but_not_for_ever(
    pods: list[Replica], gone: dict[str, float], reason: str, wait: float
) -> None:
    """A drain, or a new revision of the template."""
    story = Story(*pods)
    story.gone = gone
    assert story.see(*pods, after=0) == Defer(reason, until=1000.0 + wait)
    assert isinstance(story.see(*pods, after=wait - 1), Defer)
    assert isinstance(story.see(*pods, after=1), Next)


@pytest.mark.parametrize("step", [-1e8, 0.0, 1e8])
def test_a_clock_that_steps_makes_no_wait_longer_or_shorter(step: float) -> None:
    """A failed restart is remembered for a day, an unready pod waited for for 10 minutes."""
    story = Story(bare("a"), bare("b"))
    story.evict()
    story.see(bare("b"), bare("c"))
    story.now = story.now._replace(wall=story.now.wall + step)
    assert isinstance(story.see(bare("b"), bare("c"), after=LIMITS.memory - 1), Stop)
    assert isinstance(story.see(bare("b"), bare("c"), after=1), Next)
    pods = bare("a"), meshed("c", ready=False, created=story.now.wall)
    story.rollout = Rollout()
    assert isinstance(story.see(*pods, after=0), Defer)
    story.now = story.now._replace(wall=story.now.wall + step)
    assert isinstance(story.see(*pods, after=599), Defer)
    assert isinstance(story.see(*pods, after=1), Next)


@pytest.mark.parametrize(
    ("created", "left"),
    [
        (datetime.fromtimestamp(NOW.wall + 1e8, UTC), 86400.0),
        (datetime.fromtimestamp(NOW.wall, UTC), 86400.0),
        (datetime.fromtimestamp(NOW.wall - 80_000, UTC), 6400.0),
        (datetime.fromtimestamp(NOW.wall - 86_000, UTC), 3600.0),
        (datetime.fromtimestamp(NOW.wall - 1e8, UTC), 3600.0),
        # Whoever may write the Lease may write a time that does not exist in UTC.
        (datetime.fromisoformat("0001-01-01T00:00:00+14:00"), 3600.0),
        (datetime.fromisoformat("9999-12-31T23:59:59-14:00"), 86400.0),
    ],
)
def test_what_an_earlier_leader_saw_fail_counts_for_an_hour_to_a_day(
    created: datetime, left: float
) -> None:
    """Whatever its clock showed, and ours."""
    assert recalled(created, NOW, LIMITS).until == NOW.monotonic + left


def test_the_next_leader_waits_for_the_pod_that_the_last_one_evicted() -> None:
    """Also if it evicts the same pods later: who leads again has seen older restarts."""
    story = Story(bare("web-0"), bare("web-1"), bare("web-2"))
    left = story.left()
    pods = bare("web-0"), bare("web-1")
    for own in (Rollout(), story.rollout, started(Rollout(), pods, pods[1], story.now)):
        story.rollout = restored(own, pods, story.now, left)
        assert isinstance(story.see(*pods), Defer)
        assert isinstance(story.see(*pods, going(bare("web-2"))), Defer)
        assert isinstance(story.see(*pods, meshed("web-2", "another", ready=False)), Defer)
        assert isinstance(story.see(*pods, meshed("web-2", "another")), Next)


def test_who_leads_again_knows_that_its_eviction_was_accepted_however_late_its_watch_is() -> None:
    """Else the pod that its watch still shows was refused, and the next leader repeats all."""
    story = Story(bare("web-0"), bare("web-1"))
    left = story.left()
    pods = bare("web-0"), bare("web-1")
    for evicted, expected in ((True, left), (False, None)):
        own = accepted(story.rollout) if evicted else story.rollout
        late = story.now._replace(monotonic=story.now.monotonic + LIMITS.unconfirmed)
        seen = observed(restored(own, pods, story.now, left), pods, late, LIMITS).replacing
        assert (seen and seen.old) == expected


def test_the_next_leader_knows_which_pods_were_made_since() -> None:
    """By the times of the API server; a bare pod that was there before shows nothing."""
    story = Story(bare("a", created=10.0), bare("b", created=10.0))
    left = story.left()
    for new, expected in ((meshed("c", created=10.0), Next), (bare("c", created=10.0), Stop)):
        story.rollout = restored(Rollout(), (bare("b", created=10.0), new), story.now, left)
        assert isinstance(story.see(bare("b", created=10.0), new), expected)
    many = Story(*(bare(f"p{number}", created=10.0) for number in range(6))).left()
    assert (many.newest, many.same) == (10.0, ())
    assert many.knew("old-p5", 10.0)


def test_of_two_failures_the_later_one_counts_and_a_later_eviction_is_not_forgotten() -> None:
    """Who led before may know of an older one, and the leader may have gone on since."""
    more = bare("b", created=20.0), meshed("x", created=20.0)
    story = Story(bare("a", created=20.0), *more)
    early, late = (recalled(datetime.fromtimestamp(at, UTC), NOW, LIMITS) for at in (10.0, 30.0))
    left = story.left()
    assert restored(Rollout(failure=early), (), NOW, late) == Rollout(failure=late)
    assert restored(Rollout(failure=late), (), NOW, early) == Rollout(failure=late)
    assert restored(story.rollout, (), NOW, late) == Rollout(failure=late)
    story.rollout = restored(Rollout(failure=early), story.pods, story.now, left)
    assert isinstance(story.see(*more), Defer)
    assert isinstance(story.see(*more, meshed("c", created=40.0)), Next)


def test_a_refused_eviction_is_tried_again_ever_later() -> None:
    """A PodDisruptionBudget may allow it at any time, so it is never given up."""
    story = Story(bare("a"))
    why = "429: it would violate the pod's disruption budget"
    reason = f"not restarted: {why}; tried again later"
    for wait in (10, 20, 40, 80, 160, 300, 300):
        assert story.evict() == "a"
        story.refuse(why)
        assert story.next == Defer(reason, until=story.now.monotonic + wait)
        assert isinstance(story.see(bare("a"), after=wait - 0.1), Defer)
        story.see(bare("a"), after=0.1)
    story.evict()
    story.see(meshed("b"))
    story.see(meshed("b"), bare("c"))
    assert story.evict() == "c"
    story.refuse("429")
    assert story.rollout.retry_at == story.now.monotonic + 10, "a success forgets the refusals"
    for refusals, retry_after, retry_at in ((0, 1.0, 1010.0), (9999, 0.0, 1300.0)):
        after = refused(Rollout(refusals=refusals), "429", NOW, LIMITS, retry_after=retry_after)
        assert after.retry_at == retry_at, "a shorter Retry-After, and many refusals"


BROKEN = meshed("web-1", ready=False)


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        ([bare("a"), bare("b"), bare("c", ready=False)], "c"),
        ([bare("a", restart=False), meshed("b")], None),
        ([bare("web-0", ready=False), bare("web-1", ready=False), bare("web-2")], "web-0"),
        ([bare("web-0"), BROKEN, bare("web-2")], "web-0"),
        ([BROKEN, bare("web-2")], Defer("web-1 is not Ready, and comes before the others")),
    ],
    ids=["Deployment", "none", "the gap first", "before the gap", "never behind the gap"],
)
def test_a_pod_that_is_not_ready_goes_first(
    pods: list[Replica], expected: str | Defer | None
) -> None:
    """It serves nobody, and a StatefulSet makes no pod behind it."""
    found = Story(*pods).next
    assert (found.pod.name if isinstance(found, Next) else found) == expected


@pytest.mark.parametrize(
    ("fields", "context", "expected"),
    [
        (
            {"owner": STATEFUL, "name": "web-3"}, (RESTART,),
            {"sidecar": Sidecar.MISSING, "restart": True, "ordinal": 3, "ready": True},
        ),
        *(
            ({"owner": owner, "name": name}, (REPORT,), {"sidecar": Sidecar.MISSING, "ready": True})
            for owner, name in (
                (STATEFUL, "web"), (None, "web-3"), (("kubeflow.org/v1", "TFJob"), "web-3"),
                (("example.org/v1", "StatefulSet"), "web-3"),
            )
        ),
        ({"ready": False}, (REPORT,), {"sidecar": Sidecar.MISSING}),
        ({}, (RESTART, UNKNOWN), {"sidecar": Sidecar.UNKNOWN, "ready": True}),
        ({}, (RESTART, NO), {"sidecar": Sidecar.UNWANTED, "ready": True}),
        (
            {"containers": {"istio-proxy": RUNNING}}, (RESTART,),
            {"sidecar": Sidecar.PRESENT, "ready": True},
        ),
        (
            {"deleting": True}, (RESTART,),
            {"sidecar": Sidecar.UNWANTED, "deleting": True, "deleted": DELETED - 30},
        ),
        (
            {"deleting": True, "grace": 0}, (RESTART,),
            {"sidecar": Sidecar.UNWANTED, "deleting": True},
        ),
    ],
)  # fmt: skip
def test_a_pod_as_its_rollout_sees_it(
    fields: dict[str, Any], context: tuple[Any, ...], expected: dict[str, Any]
) -> None:
    found = unmeshed(**fields)
    expected = {"name": found.metadata.name, "uid": "pod-1", **expected}
    assert replica(Candidate.of(found), decide_repair(found, *context)) == Replica(**expected)


OLD = bare("old", created=5.0)


def test_a_pod_that_was_made_before_the_eviction_does_not_show_its_result() -> None:
    """A watch shows it late: it stands in the place of a pod that somebody else drained."""
    story = Story(OLD)
    story.evict()
    at = story.now.wall
    evicted = structs.replace(going(OLD), deleted=at + 60)
    before, after = bare("before", created=at + 59), bare("after", created=at + 61)

    assert isinstance(story.see(evicted, before, after=0), Defer)
    assert isinstance(story.see(before, after=0), Defer)
    stopped = story.see(before, after, after=0)
    assert isinstance(stopped, Stop)
    assert stopped.uid == after.uid


def test_a_pod_that_is_shown_before_the_deletion_begins_is_not_its_replacement() -> None:
    """Though made in the same second, or known only to the leader that evicted: a watch shows
    changes in their order."""
    story = Story(OLD, bare("b"))
    before = meshed("before", created=story.now.wall)
    ending = structs.replace(going(OLD), deleted=story.now.wall)
    for rollout in (started(Rollout(), story.pods, OLD, story.now), story.rollout):
        left = Replaced(OLD.name, OLD.uid, story.now.wall, (before.uid,))
        story.rollout = rollout if rollout.replacing else restored(rollout, [OLD], story.now, left)
        for pods in ((OLD, before), (ending, before), (before,)):
            assert isinstance(story.see(*pods, bare("b"), after=0), Defer), pods
        assert isinstance(story.see(before, meshed("after", created=2e9), bare("b")), Next)


def test_a_replacement_is_one_also_where_the_old_pod_takes_long_to_end() -> None:
    """Its deletionTimestamp moves to the present in the end (apiserver rest.BeforeDelete)."""
    story = Story(OLD)
    story.evict()
    at, new = story.now.wall, meshed("new", created=story.now.wall)
    story.see(structs.replace(going(OLD), deleted=at), structs.replace(new, ready=False))
    story.see(structs.replace(going(OLD), deleted=at + 30), new)

    assert story.next is None


def test_a_pod_that_somebody_else_deletes_before_us_is_no_restart_of_ours() -> None:
    new = bare("new", created=NOW.wall + 1)
    rollout = started(Rollout(), [OLD], OLD, NOW, sent=False)
    rollout = observed(rollout, [OLD, new], NOW, LIMITS)
    assert (rollout.failure, rollout.replacing is None) == (None, False)
    assert observed(rollout, [new], NOW, LIMITS).replacing is None


SEEN = ((OLD,), (), (bare("new", created=9.0),), (meshed("good", created=11.0),))
PAUSES = (0.0, LIMITS.unconfirmed, LIMITS.least_memory, LIMITS.unreplaced)


def state(rollout: Rollout) -> str:
    """The name of its state in the table."""
    if rollout.failure:
        return "failed"
    if rollout.replacing:
        return "replacing"
    return "backing off" if rollout.refusals else "idle"


def steps(rollout: Rollout, now: Moment) -> Iterator[tuple[str, Rollout, Moment]]:
    """Everything that may happen next to the rollout of a controller with one pod."""
    soon = Moment(now.monotonic + LIMITS.last_retry, now.wall + LIMITS.last_retry)
    if isinstance(next_step(rollout, (OLD,), soon, LIMITS), Next):
        yield "started", started(rollout, (OLD,), OLD, soon), soon
    if state(rollout) == "replacing":
        yield "refused", refused(rollout, "429", now, LIMITS), now
    if state(rollout) != "backing off":  # A process that does not lead forgets refusals.
        failed = recalled(datetime.fromtimestamp(5, UTC), now, LIMITS)
        for left in (failed, Replaced("old", "old-old", 5.0)):
            yield "restored", restored(rollout, (OLD,), now, left), now
    for pause, pods in product(PAUSES, SEEN):
        later = Moment(now.monotonic + pause, now.wall + pause)
        yield "observed", observed(rollout, pods, later, LIMITS), later


def test_the_table_of_a_rollout_s_states_is_true() -> None:
    assert rollouts.__doc__
    row = r"(\w+(?: off)?) +`(\w+)`.*  (\w+(?: off)?)"
    rows = (re.fullmatch(row, line) for line in rollouts.__doc__.splitlines())
    table = {(found[1], found[2], found[3]) for found in rows if found}
    happened = set[tuple[str, str, str]]()
    reached = [(Rollout(), NOW)]
    for _ in range(3):
        following = [(before, *step) for before, now in reached for step in steps(before, now)]
        happened |= {(state(before), how, state(after)) for before, how, after, _ in following}
        reached = [(after, now) for *_, after, now in following]

    assert {each for each in happened if each[0] != each[2]} == {
        each for each in table if each[0] != each[2]
    }


# Of which controllers a pod is restarted next, when there are many.


AGO = dict[str, float]


def chosen(waiting: AGO, begun: AGO | None = None, served: AGO | None = None) -> list[str]:
    """Which controllers are next, if all this was so many seconds ago."""
    since, busy, last = (
        {key: NOW.monotonic - ago for key, ago in (each or {}).items()}
        for each in (waiting, begun, served)
    )
    return first_in_line(since, busy, last, NOW, structs.replace(LIMITS, at_once=5, share=3))


def ago(seconds: float, names: str) -> AGO:
    """A controller in each of these namespaces."""
    return {f"{name}/1": seconds for name in names}


@pytest.mark.parametrize(
    ("begun", "order"),
    [
        ({}, "abcde"),
        (ago(1, "xyz"), "ab"),
        (ago(1, "vwxyz"), ""),
        # A replacement that never comes must not keep all others waiting.
        (ago(1, "xyz") | ago(600, "vw"), "ab"),
        (ago(600, "vwxyz"), "abcde"),
    ],
)
def test_no_more_than_so_many_are_under_way_at_once(begun: AGO, order: str) -> None:
    assert chosen(ago(1, "abcdefg"), begun) == [f"{name}/1" for name in order]


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
    assert chosen({**bad, "good/1": 595.5}, begun, served) == ["bad-0/0", "bad-1/0"]
    later = {**served, "bad-0": 0.0, "bad-1": 0.0}
    assert chosen({**bad, "good/1": 598.5}, begun, later) == ["good/1", "bad-2/0"]
