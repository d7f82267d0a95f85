"""In which order, and how fast, unmeshed pods are restarted: stories of one controller."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from istio_aux.core.rollout import (
    Hold,
    Moment,
    Next,
    Replica,
    Rollout,
    Sidecar,
    Stop,
    refused,
    replica,
    restored,
    superseded,
)
from unit.core.pods import RUNNING
from unit.core.restart_story import LIMITS, Story, bare, going, meshed
from unit.core.unmeshed import NO, REPORT, RESTART, STATEFUL, UNKNOWN, YES, decide, job, unmeshed

NOW = Moment(1000.0, 1e9)


def test_a_stateful_set_is_restarted_from_its_highest_ordinal() -> None:
    """One after another, each after the last one's replacement; 10 comes after 9, not after 1."""
    names = [f"web-{place}" for place in range(11)]
    story = Story(*(bare(name) for name in names))
    order: list[str] = []
    for _ in names:
        order.append(story.evict())
        story.see(*(meshed(name) if name in order else bare(name) for name in names))
    assert order == names[::-1]
    assert story.next is None


def test_the_next_pod_waits_until_the_replacement_is_ready_with_a_sidecar() -> None:
    """T41: gone, not made yet, not ready yet: each of these is a reason to wait."""
    story = Story(bare("web-0"), bare("web-1"))
    story.evict()
    for pods in (
        [bare("web-0"), bare("web-1")],
        [bare("web-0"), going(bare("web-1"))],
        [bare("web-0")],
        [bare("web-0"), meshed("web-1", ready=False)],
        [bare("web-0"), going(meshed("web-1"))],
    ):
        held = story.see(*pods)
        assert isinstance(held, Hold), pods
        assert held.until == 1060.0
        assert held.reason.startswith("web-1 was evicted, and no replacement is Ready")
    story.see(bare("web-0"), meshed("web-1"))
    assert story.evict() == "web-0"


def test_a_replacement_without_a_sidecar_stops_the_loop_for_a_day() -> None:
    """T41: another restart would help as little, whatever else becomes of the pods."""
    story = Story(bare("a"), bare("b"))
    assert story.evict() == "a"
    reason = "c, made after a was evicted, has no sidecar either"
    day = LIMITS.memory
    assert story.see(bare("b"), bare("c")) == Stop(reason, until=1001.0 + day, uid="old-c")
    assert isinstance(story.see(bare("b"), meshed("d")), Stop)
    assert isinstance(story.see(bare("b"), after=day - 2), Stop)
    assert isinstance(story.see(bare("b"), after=1), Next)


def test_a_later_pod_with_a_sidecar_shows_that_a_restart_helps_again() -> None:
    """Whoever made it; one that was there before shows nothing, nor does one on its way out."""
    story = Story(bare("a"), bare("b"), meshed("old", created=5.0))
    story.evict()
    pods = (bare("b"), bare("c", created=10.0), meshed("old", created=5.0))
    assert isinstance(story.see(*pods), Stop)
    assert isinstance(story.see(*pods, meshed("as-old", created=10.0)), Stop)
    assert isinstance(story.see(*pods, going(meshed("new", created=11.0))), Stop)
    story.see(*pods, meshed("new", created=11.0))
    assert story.evict() == "b"


def test_what_did_not_help_is_not_tried_by_the_next_leader() -> None:
    """It knows when the pod was made that showed it, and nothing else."""
    story = Story(bare("b"), bare("c", created=10.0), meshed("old", created=5.0), wall=100.0)
    story.rollout = restored(Rollout(), datetime(1970, 1, 1, 0, 0, 10, tzinfo=UTC))
    reason = "a pod made at 1970-01-01 00:00:10Z, after another was evicted, has no sidecar either"
    stopped = story.see(*story.pods)
    assert isinstance(stopped, Stop)
    assert stopped.reason == reason
    assert isinstance(story.see(*story.pods, meshed("new", created=11.0)), Next)


def test_who_leads_next_waits_for_a_replacement_that_is_not_ready() -> None:
    """Nothing is known of the restart that it comes from; as long as one waits for any other."""
    story = Story(bare("b"), meshed("c", ready=False, created=5000.0), wall=5010.0)
    assert story.next == Hold(reason="c has its sidecar and is not Ready yet", until=1590.0)
    assert isinstance(story.see(bare("b"), meshed("c", created=5000.0)), Next)
    story = Story(bare("b"), meshed("c", ready=False, created=5000.0), wall=5600.0)
    assert story.evict() == "b"


def test_a_new_course_gives_a_stopped_controller_another_try() -> None:
    """For example because the injector has changed since."""
    story = Story(bare("a"))
    story.evict()
    assert isinstance(story.see(bare("b")), Stop)
    story.rollout = Rollout()
    assert story.evict() == "b"


def test_a_replacement_of_which_too_little_is_known_is_waited_for() -> None:
    """Unknown is never healthy, and no reason to stop for good."""
    story = Story(bare("a"), bare("b"))
    story.evict()
    unknown = bare("c", sidecar=Sidecar.UNKNOWN, restart=False)
    assert isinstance(story.see(bare("b"), unknown), Hold)
    story.see(bare("b"), meshed("c", "old-c"))
    assert story.evict() == "b"


def test_a_replacement_that_is_to_have_no_sidecar_is_as_good_as_one() -> None:
    """Its author may have opted out since."""
    story = Story(bare("a"), bare("b"))
    story.evict()
    story.see(bare("b"), bare("c", sidecar=Sidecar.UNWANTED, restart=False))
    assert story.evict() == "b"


def test_the_pods_that_were_there_already_are_no_replacement() -> None:
    story = Story(bare("a"), bare("b"), meshed("c"))
    story.evict()
    assert isinstance(story.see(bare("b"), meshed("c")), Hold)


def test_a_new_pod_of_another_ordinal_is_no_replacement() -> None:
    """A StatefulSet that is scaled up while its pod is on the way out."""
    story = Story(bare("web-0"), bare("web-1"))
    assert story.evict() == "web-1"
    assert isinstance(story.see(bare("web-0"), going(bare("web-1")), meshed("web-2")), Hold)
    assert isinstance(story.see(bare("web-0"), meshed("web-2")), Hold)


def test_a_replacement_that_never_comes_stops_the_loop_until_it_does() -> None:
    """No node has room for it, for example."""
    story = Story(bare("a"), bare("b"))
    story.evict()
    assert isinstance(story.see(bare("b"), after=599), Hold)
    stopped = story.see(bare("b"), after=1)
    assert stopped == Stop(
        reason="a was evicted, and no replacement is Ready with a sidecar after 600 s"
    )
    assert isinstance(story.see(bare("b"), meshed("c")), Next)


def test_a_refused_eviction_is_tried_again_ever_later() -> None:
    """A PodDisruptionBudget may allow it at any time, so it is never given up."""
    story = Story(bare("a"))
    waits: list[float] = []
    for _ in range(7):
        assert story.evict() == "a"
        story.refuse("429: it would violate the pod's disruption budget")
        held = story.next
        assert isinstance(held, Hold)
        assert held.until is not None
        assert "429: it would violate the pod's disruption budget" in held.reason
        waits.append(held.until - story.now.steady)
        assert isinstance(story.see(bare("a"), after=waits[-1] - 0.1), Hold)
        story.see(bare("a"), after=0.1)
    assert waits == [10, 20, 40, 80, 160, 300, 300]


def test_what_the_api_server_asks_for_is_respected() -> None:
    """Retry-After, when it is longer than the pause that is due anyway."""
    assert refused(Rollout(), "429", NOW, LIMITS, asked=30.0).retry_at == 1030.0
    assert refused(Rollout(), "429", NOW, LIMITS, asked=1.0).retry_at == 1010.0


def test_a_pod_that_has_changed_since_is_looked_at_again_soon() -> None:
    """409 is no refusal: nobody waits longer for it the next time."""
    story = Story(bare("a"))
    for _ in range(3):
        story.evict()
        story.rollout = superseded(story.rollout, "409", story.now, LIMITS)
        assert isinstance(story.next, Hold)
        assert isinstance(story.see(bare("a")), Next)
    assert story.rollout.refusals == 0


def test_ten_thousand_refusals_are_no_problem() -> None:
    rollout = Rollout(refusals=10_000)
    assert refused(rollout, "429", NOW, LIMITS).retry_at == 1300.0


def test_a_success_forgets_the_refusals() -> None:
    story = Story(bare("a"), bare("b"))
    story.evict()
    story.refuse("429")
    story.see(bare("a"), bare("b"), after=10)
    story.evict()
    story.see(bare("b"), meshed("c"))
    assert story.evict() == "b"
    story.refuse("429")
    assert story.rollout.retry_at == story.now.steady + 10


def test_an_eviction_that_nobody_answered_is_awaited_if_it_happened() -> None:
    story = Story(bare("a"), bare("b"))
    story.evict()
    assert isinstance(story.see(going(bare("a")), bare("b"), after=61), Hold)
    assert story.rollout.replacing is not None


def test_an_eviction_that_nobody_answered_is_tried_again_if_it_did_not_happen() -> None:
    """For as long as the API server may still work on it, nobody can tell."""
    story = Story(bare("a"), bare("b"))
    story.evict()
    assert isinstance(story.see(bare("a"), bare("b"), after=59), Hold)
    assert story.rollout.replacing is not None
    held = story.see(bare("a"), bare("b"), after=1)
    reason = "not restarted: a is still there; tried again later"
    assert held == Hold(reason=reason, until=1070.0)
    story.see(bare("a"), bare("b"), after=10)
    assert story.evict() == "a"


def test_of_a_deployment_a_pod_that_is_not_ready_goes_first() -> None:
    """Nobody is served by it."""
    story = Story(bare("a"), bare("b"), bare("c", ready=False))
    assert story.evict() == "c"


def test_of_a_stateful_set_a_pod_that_is_not_ready_goes_first() -> None:
    """Else a StatefulSet would make no pod after it: the set would lose a second one."""
    story = Story(bare("web-0", ready=False), bare("web-1", ready=False), bare("web-2"))
    assert story.evict() == "web-0"


def test_no_pod_is_evicted_behind_one_that_is_not_ready_for_another_reason() -> None:
    """The StatefulSet would not make it again."""
    broken = meshed("web-1", ready=False)
    story = Story(broken, bare("web-2"))
    assert story.next == Hold(reason="web-1 is not Ready, and comes before the others")
    assert isinstance(story.see(meshed("web-1"), bare("web-2")), Next)
    story = Story(bare("web-0"), broken, bare("web-2"))
    assert story.evict() == "web-0"


def test_only_pods_that_may_be_restarted_are() -> None:
    story = Story(bare("a", restart=False), meshed("b"))
    assert story.next is None


READY = {"ready": True}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (
            replica(unmeshed(owner=STATEFUL, name="web-3"), decide(unmeshed(owner=STATEFUL))),
            {"sidecar": Sidecar.MISSING, "restart": True, "ordinal": 3, **READY},
        ),
        (
            replica(unmeshed(ready=False), decide(unmeshed(ready=False), REPORT)),
            {"sidecar": Sidecar.MISSING},
        ),
        (
            replica(unmeshed(), decide(unmeshed(), RESTART, UNKNOWN)),
            {"sidecar": Sidecar.UNKNOWN, **READY},
        ),
        (
            replica(unmeshed(), decide(unmeshed(), RESTART, NO)),
            {"sidecar": Sidecar.UNWANTED, **READY},
        ),
        (
            replica(
                unmeshed({"istio-proxy": RUNNING}), decide(unmeshed({"istio-proxy": RUNNING}))
            ),
            {"sidecar": Sidecar.PRESENT, **READY},
        ),
        (
            replica(unmeshed(deleting=True), decide(unmeshed(deleting=True), RESTART, YES)),
            {"sidecar": Sidecar.UNWANTED, "deleting": True},
        ),
    ],
)  # fmt: skip
def test_a_pod_as_its_rollout_sees_it(found: Replica, expected: dict[str, Any]) -> None:
    assert found == Replica(name=found.name, uid="pod-1", **expected)


@pytest.mark.parametrize(
    ("containers", "ready"), [({"main": RUNNING, "istio-proxy": RUNNING}, True), (None, False)]
)
def test_a_job_s_pod_with_its_sidecar_proves_as_much_as_a_ready_one(
    containers: Any, ready: bool
) -> None:
    """It may be over before it is Ready, or before anybody looks."""
    for phase in ("Pending", "Running", "Succeeded"):
        pod = job(containers, phase=phase, ready=False)
        assert replica(pod, decide(pod)).ready is ready
    assert not replica(unmeshed(containers, ready=False), decide(pod)).ready
    assert not replica(job(containers, deleting=True), decide(pod)).ready
