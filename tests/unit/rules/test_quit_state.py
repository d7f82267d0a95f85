"""The states of a pod's quit: what is next after each observation, without an event loop."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from istio_aux.model import pod as pods
from istio_aux.model.kubelet import OBEYS, Kubelet
from istio_aux.model.moment import Moment
from istio_aux.model.pod import Key, Pod
from istio_aux.model.policy import QuitMode, QuitPolicy
from istio_aux.model.sidecars import AttemptResult
from istio_aux.quit.attempt import (
    Action,
    End,
    Look,
    PodState,
    QuitLimits,
    QuitOutcome,
    QuitScope,
    Retry,
    Send,
    Sleep,
    Task,
)
from istio_aux.quit.facts import PodFacts
from istio_aux.quit.rules import Way
from unit.rules.pods import RUNNING, State, document, exited, moment

NOW = moment(datetime(2026, 11, 21, 8, 16, 40, tzinfo=UTC))
DONE, ENDED = exited(0), exited(0, at="2026-11-21T08:16:30Z")
JUST_DONE = exited(0, at="2026-11-21T08:16:40Z")
WELL, DOUBTFUL = (
    AttemptResult(True, True, "exit code 0"),
    AttemptResult(False, True, "no exit code"),
)
FINISHED = "every payload container is finished"
EXITED = End(QuitOutcome.EXITED, "istio-proxy exited with 0", 1.0)
GONE = End(QuitOutcome.GONE, "the pod is gone")


def after(seconds: float) -> Moment:
    return Moment(NOW.monotonic + seconds, NOW.wall + seconds)


def superseded(reason: str) -> End:
    return End(QuitOutcome.SUPERSEDED, reason)


def pod(
    main: State = DONE, proxy: State = RUNNING, version: int = 0, created: str = "", **more: Any
) -> Pod:
    body = document({"istio-proxy": proxy, "main": main}, **more)
    about = {"resourceVersion": str(version or ""), "creationTimestamp": created or None}
    body["metadata"] |= about | {"labels": {}}
    return pods.convert(body)


class Story:
    """One pod and its task, from the moment it is due."""

    def __init__(self, first: Pod | None = None, *, due: bool = True, **scope: Any) -> None:
        self.scope = QuitScope(namespaces={"training"}, **scope)
        self.kubelet: Kubelet | None = None
        self.state = PodState(Key("training", "job", "u-1"))
        self.watched(first or pod())
        found = self.state.due(self.scope)
        assert bool(found) is due
        if found:
            self.task = self.state.task = Task(self.state, found)

    def becomes(self, **scope: Any) -> None:
        """What this process may do, and to which pods, changes."""
        for name, value in scope.items():
            setattr(self.scope, name, value)

    def awake(self, seconds: float = 0) -> Action:
        return self.task.awake(self.scope, after(seconds))

    def watched(self, seen: Pod, now: Moment = NOW) -> None:
        self.state.decide_on(self.facts(seen), self.scope, now)

    def looked(self, seen: Pod | None = None, seconds: float = 0, *, gone: bool = False) -> Action:
        facts = None if gone else self.facts(seen or pod())
        return self.task.looked(facts, self.scope, after(seconds))

    def facts(self, seen: Pod) -> PodFacts:
        return PodFacts(seen, self.scope.policy, self.kubelet)

    def answered(self, answer: AttemptResult = WELL, way: Way = Way.EXEC) -> Action:
        return self.task.answered(way, answer, self.scope)

    def failed(self, **how: Any) -> Action:
        return self.task.failed("503: busy", self.scope, **how)

    def told(self, answer: AttemptResult = WELL) -> Story:
        """The same pod once its proxy was told to exit."""
        assert self.awake() == Look()
        send = self.looked()
        assert isinstance(send, Send)
        self.answered(answer, send.way)
        return self


@pytest.mark.parametrize(
    ("seconds", "waited"), [(0.3, 0.3), (1.7, 1.7), (9.0, 2.0)], ids=["fast", "slow", "frozen"]
)
def test_the_wait_of_a_payload_whose_end_was_seen_has_fractions(
    seconds: float, waited: float
) -> None:
    """The kubelet's times are whole seconds: those of these exits are one second apart."""
    story = Story(pod(main=RUNNING), due=False)
    story.watched(pod())
    found = story.state.due(story.scope)
    assert found
    story.task = story.state.task = Task(story.state, found)
    story.told().watched(pod(proxy=ENDED), after(seconds))
    end = story.awake(seconds)
    assert isinstance(end, End)
    assert end.after_payload == pytest.approx(waited)
    assert end.reason == EXITED.reason


@pytest.mark.parametrize(
    ("payload", "proxy", "seconds"),
    [
        ("2026-11-21T08:16:29Z", "2026-11-21T08:16:33Z", 4.0),
        ("2026-11-21T08:16:33Z", "2026-11-21T08:16:29Z", 0.0),
        ("0001-01-01T00:00:00Z", "2026-11-21T08:16:33Z", 20.0),
        ("2026-11-21T08:16:29Z", "9999-12-31T23:59:59Z", 20.0),
    ],
    ids=["believed", "backwards", "before the pod was created", "in the future"],
)
def test_a_pod_was_not_kept_for_longer_than_it_has_existed(
    payload: str, proxy: str, seconds: float
) -> None:
    """Whatever the kubelet, or somebody in its place, writes. The pod is 20 s old."""
    ended = exited(0, at=payload), exited(0, at=proxy)
    story = Story().told()
    story.watched(pod(*ended, created="2026-11-21T08:16:20Z"))
    assert story.awake() == End(QuitOutcome.EXITED, EXITED.reason, seconds)


@pytest.mark.parametrize(
    ("answer", "seconds"),
    [(WELL, 8.0), (DOUBTFUL, 2.0), (AttemptResult(False, False, "403"), 0.0)],
    ids=["well", "doubtful", "refused"],
)
def test_how_long_the_exit_is_waited_for(answer: AttemptResult, seconds: float) -> None:
    """The status decides, not the answer. Istio up to 1.25 drains for 5 s.

    python#2156, uds-core#972.
    """
    story = Story()
    assert story.awake() == Look()
    story.looked()
    assert story.answered(answer) == Sleep(seconds)
    assert story.awake() == Look()
    assert story.looked(pod(proxy=exited(137))) == End(
        QuitOutcome.EXITED_NONZERO, "istio-proxy exited with 137", 0.0
    )


def test_a_proxy_that_runs_on_is_asked_by_one_rung_after_the_other() -> None:
    """It is stuck after three failures, and every way says why."""
    story, trouble = Story(), None
    for count, way in enumerate((Way.EXEC, Way.PORT_FORWARD, Way.ENVOY, Way.EXEC), 1):
        assert story.awake() == Look()
        assert story.looked() == Send(way, 15020)
        story.answered(WELL if way is Way.EXEC else DOUBTFUL, way)
        assert story.awake() == Look()
        assert story.looked() == Retry()
        trouble = story.state.trouble(story.scope, NOW)
        assert (trouble is not None) is (count >= 3)
    assert trouble
    assert (trouble.state, trouble.attempts) == ("stuck", 4)
    assert trouble.reason == (
        "exec: exit code 0, but istio-proxy still runs; exec-envoy: no exit code; "
        "port-forward: no exit code"
    )


@pytest.mark.parametrize(
    ("change", "seen", "outcome"),
    [
        ({"namespaces": set()}, pod(), superseded("namespace training is not selected")),
        ({"leading": False}, pod(), superseded("another process leads")),
        ({"stopping": True}, pod(), superseded("this process is stopping")),
        ({}, None, GONE),
        ({}, pod(main=RUNNING), superseded("not finished: main (running)")),
        ({}, pod(proxy=ENDED), superseded(f"{FINISHED}, and istio-proxy too")),
        ({}, pod(deleting=True), superseded(
            "the pod is being deleted since 2026-11-21 08:16Z; as the kubelet last said, not ended:"
            " istio-proxy (running); istio-proxy is left alone, as its payload may still need it"
        )),
    ],
    ids=["deselected", "deposed", "stopping", "gone", "restarted", "exited before", "deleted"],
)  # fmt: skip
def test_the_state_read_right_before_an_attempt_decides(
    change: dict[str, Any], seen: Pod | None, outcome: Any
) -> None:
    """kuma#13617: and an exit that nobody asked for is none of ours."""
    story = Story()
    assert story.awake() == Look()
    story.becomes(**change)
    assert story.looked(seen, gone=seen is None) == outcome
    assert story.task.attempts == 0


@pytest.mark.parametrize(
    ("change", "following"),
    [
        ({}, Look()),
        ({"namespaces": set()}, superseded("namespace training is not selected")),
        ({"leading": False}, superseded("another process leads")),
        ({"stopping": True}, End()),
    ],
    ids=["due", "deselected", "deposed", "stopping"],
)
def test_a_task_ends_between_attempts_once_nothing_is_due(
    change: dict[str, Any], following: Action
) -> None:
    story = Story().told()
    assert story.awake() == Look()
    assert story.looked() == Retry()
    story.becomes(**change)
    assert story.awake() == following


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (lambda story: story.looked(pod(proxy=ENDED, phase="Succeeded")), EXITED),
        (lambda story: story.looked(gone=True), GONE),
        (lambda story: story.looked(pod()), superseded(FINISHED)),
        (lambda story: story.failed(), superseded("not known: 503: busy")),
    ],
    ids=["exited", "gone", "an older state", "it cannot be read"],
)
def test_the_outcome_for_a_pod_that_left_the_watch(
    end: Callable[[Story], Action], outcome: Any
) -> None:
    story = Story().told()
    story.state.unwatched = True
    assert story.awake() == Look(), "the watch did not show the exit"
    assert end(story) == outcome


@pytest.mark.parametrize("step", [-3600, 3600])
def test_a_wall_clock_that_steps_changes_no_duration(step: int) -> None:
    """Grace periods, the second look at a dead proxy, the Event of a blocked pod, a watch's lag."""
    graced = Story(pod(main=JUST_DONE), policy=QuitPolicy(grace=30))
    lost, blocked, late = Story(TORN), Story(BLOCKED), Story(pod(version=20))
    stepped = Moment(NOW.monotonic + 1, NOW.wall + 1 + step)
    graced.watched(pod(main=JUST_DONE), stepped)
    assert graced.task.awake(graced.scope, stepped) == Sleep(29.0)
    assert graced.state.decision.reason == f"{FINISHED}; the grace period ends at 08:17:10"
    assert lost.task.awake(lost.scope, stepped) == Sleep(QuitLimits().lost_after - 1)
    assert blocked.task.awake(blocked.scope, stepped) == Sleep(QuitLimits().blocked_after - 1)
    late.watched(pod(main=RUNNING, version=19), stepped)
    assert late.state.decision.action == "quit"


@pytest.mark.parametrize(
    ("at", "created", "until"),
    [
        ("2026-11-21T08:16:30Z", "2026-11-21T08:00:00Z", after(20)),
        ("2026-11-21T08:16:10Z", "2026-11-21T08:00:00Z", None),
        ("2026-11-21T07:16:40Z", "2026-11-21T08:16:35Z", after(25)),
        ("2026-11-21T09:16:40Z", "2026-11-21T08:16:35Z", after(30)),
        (None, "2026-11-21T08:16:35Z", after(30)),
    ],
    ids=["10 s ago", "over", "before the pod was created", "in the future", "no time"],
)
def test_a_process_that_starts_later_believes_a_node_within_bounds(
    at: str | None, created: str, until: Moment | None
) -> None:
    """A grace period of 30 s goes on where it was, and does not begin again."""
    end = exited(0, at=at) if at else {"terminated": {"exitCode": 0}}
    story = Story(pod(end, created=created), policy=QuitPolicy(grace=30))
    assert story.state.until == until
    assert story.state.asks_for == "quit"


def test_a_grace_period_begins_once_the_kubelet_is_known_to_obey() -> None:
    details = {"main": {"restartPolicy": "Never"}}
    seen = pod(exited(1), restart="OnFailure", details=details, spec={"nodeName": "node-1"})
    story = Story(seen, policy=QuitPolicy(grace=30))
    assert story.awake() == Look(), "and the node is asked"
    story.kubelet = OBEYS
    for seconds in (20, 40):
        story.watched(seen, after(seconds))
        assert story.state.until == after(50)


def test_an_older_state_does_not_count_for_a_while() -> None:
    story = Story(pod(version=20))
    story.watched(pod(main=RUNNING, version=19))
    assert story.state.decision.action == "quit"
    assert story.awake() == Look()
    assert story.looked(pod(main=RUNNING, version=19)) == Retry()
    story.watched(pod(main=RUNNING, version=1), after(31))
    assert story.state.decision.action == "wait", "a restored etcd"


@pytest.mark.parametrize(
    ("mode", "older"),
    [(QuitMode.ENABLED, pod(main=RUNNING, version=7)), (QuitMode.DRY_RUN, pod(version=7))],
    ids=["before the payload ended", "in a dry run"],
)
def test_an_older_state_after_a_grace_period_is_not_read_again_without_a_pause(
    mode: QuitMode, older: Pod
) -> None:
    """A restored etcd has it for longer than a request takes."""
    story = Story(pod(main=JUST_DONE, version=8), policy=QuitPolicy(grace=10.0), mode=mode)
    assert story.awake() == Sleep(10.0)
    assert story.awake(10) == Look()
    assert isinstance(story.looked(older, 10), Retry)


TORN = pod(main=RUNNING, proxy=ENDED, owner=("batch/v1", "Job"), version=5)


@pytest.mark.parametrize(
    "seen", [pod(main=ENDED, proxy=ENDED, version=6), None], ids=["finished too", "gone"]
)
def test_a_pod_that_ends_with_its_proxy_is_not_reported(seen: Pod | None) -> None:
    story = Story(TORN)
    assert story.awake(2) == Look()
    assert story.looked(seen, gone=seen is None) == End()


BLOCKED = pods.convert(document({"istio-proxy": RUNNING, "main": DONE, "side": RUNNING}))


def test_a_blocked_pod_gets_one_event_after_a_while() -> None:
    story = Story(BLOCKED)
    story.watched(BLOCKED, after(45))
    assert story.awake(45) == Sleep(15.0), "from when it was first seen"
    lasting = [story.state.trouble(story.scope, after(seconds)) for seconds in (45, 60)]
    assert [pod.lasting for pod in filter(None, lasting)] == [False, True]
    assert story.awake(60) == End(QuitOutcome.BLOCKED, "not finished: side (running)")
    assert story.state.due(story.scope) is None
