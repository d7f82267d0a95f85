"""Whole lives of pods: in every order of events, the proxy is told to exit at the right moment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from istio_aux.model import pod as pods
from istio_aux.model.annotations import IGNORE_CONTAINERS, QUIT_AFTER
from istio_aux.model.policy import DeadProxy, Policy
from istio_aux.quit import rules as quitting
from unit.rules.pods import document
from unit.rules.table import decide
from unit.rules.tinykubelet import CODES, PROXY, TinyKubelet

RULES = st.builds(
    lambda action, operator, values: {
        "action": action,
        "exitCodes": {"operator": operator, "values": values},
    },
    st.sampled_from(["Restart", "RestartAllContainers", "RestartAllContainers", "Unheard"]),
    st.sampled_from(["In", "NotIn"]),
    st.lists(st.sampled_from(sorted(CODES)), max_size=2),
)
DETAILS = st.builds(
    lambda policy, rules: {"restartPolicy": policy, "restartPolicyRules": rules},
    st.sampled_from([None, "Never", "OnFailure", "Always"]),
    st.lists(RULES, max_size=2),
)
PAYLOADS = st.sampled_from([["main"], ["main"], ["main", "dind"], ["main", "wait", "dind"]])
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["exit", "exit", "exit", "exit", "start", "remove", "sync"]),
        st.sampled_from(["main", "main", "main", "wait", "dind", "watcher", PROXY]),
        st.sampled_from([0, 0, 0, *sorted(CODES)]),
    ),
    min_size=4,
    max_size=10,
)
WISHES = st.sampled_from([{}, {IGNORE_CONTAINERS: "dind"}, {QUIT_AFTER: "main"}])


class Life(NamedTuple):
    """A pod, the containers that count, and what happens to it."""

    kubelet: TinyKubelet
    payload: set[str]
    events: list[tuple[str, str, int]]

    def moments(self) -> Iterator[TinyKubelet]:
        """The pod at first, and after each event."""
        yield self.kubelet
        for what, name, code in self.events:
            if name not in self.kubelet.names:
                continue
            match what:
                case "start":
                    self.kubelet.start(name)
                case "exit":
                    self.kubelet.exit(name, code)
                case "remove":
                    self.kubelet.remove(name)
                case _:
                    self.kubelet.sync()
            yield self.kubelet


@st.composite
def lives(draw: st.DrawFn) -> Life:
    """Pods of any containers, rules and wishes; in most, every container runs at first."""
    payload = draw(PAYLOADS)
    names = draw(st.permutations([*payload, PROXY]))
    wishes = draw(WISHES)
    found = document(
        dict.fromkeys(names),
        sidecars={"watcher": None} if draw(st.integers(0, 3)) == 1 else {},
        restart=draw(st.sampled_from(["Never", "OnFailure"])),
        annotations=wishes,
        details={name: draw(DETAILS) for name in names if draw(st.booleans())}
        | {"watcher": {"restartPolicyRules": draw(st.lists(RULES, max_size=1))}},
        owner=draw(st.sampled_from([None, ("batch/v1", "Job")])),
    )
    counting = {"main"} if QUIT_AFTER in wishes else set(payload) - {wishes.get(IGNORE_CONTAINERS)}
    kubelet = TinyKubelet(found)
    if draw(st.integers(0, 4)):
        kubelet.settle()
    return Life(kubelet, counting, draw(EVENTS))


def decided(report: dict[str, Any]) -> quitting.Action:
    return decide(pods.convert(report), Policy(dead_proxy=DeadProxy.DELETE), None)


def runs_blind(kubelet: TinyKubelet, payload: set[str]) -> bool:
    """Whether a payload container runs, or will, beside a proxy that never will again."""
    return not kubelet.returns(PROXY) and any(kubelet.returns(name) for name in payload)


def all_futures(kubelet: TinyKubelet) -> Iterator[TinyKubelet]:
    """The states of the pod if running containers go on, or end with one code or another."""
    for code in (None, *sorted(CODES)):
        future = kubelet.copy()
        for name in tuple(future.running):
            if code is not None:
                future.exit(name, code)
        future.settle()
        yield future


@settings(max_examples=200)
@given(lives(), st.sets(st.sampled_from(["main", "wait", "dind", "watcher", PROXY]), max_size=2))
def test_a_proxy_never_quits_while_a_payload_may_run(life: Life, hidden: set[str]) -> None:
    """The one mistake that must not happen, also where some statuses are missing (T2, T6, T12)."""
    for kubelet in life.moments():
        for without in ((), hidden):
            if isinstance(decided(kubelet.report(without=without)), quitting.Quit):
                after = kubelet.copy()
                after.exit(PROXY, 0)
                assert PROXY in kubelet.running
                assert not any(kubelet.returns(name) for name in life.payload)
                assert not any(runs_blind(future, life.payload) for future in all_futures(after))


@settings(max_examples=200)
@given(lives())
def test_a_proxy_quits_as_soon_as_no_payload_may_run(life: Life) -> None:
    """Nor is any proxy left behind: the decision is exact, not careful (T1, T6, T12)."""
    for kubelet in life.moments():
        over = not any(kubelet.returns(name) for name in life.payload)
        # A proxy that its own rules start again would be told to exit again and again.
        ends = PROXY in kubelet.running and 0 not in kubelet.again[PROXY]
        expected = over and ends and kubelet.phase() == "Running"
        assert isinstance(decided(kubelet.report()), quitting.Quit) is expected


@settings(max_examples=200)
@given(lives())
def test_a_proxy_that_quit_is_left_in_peace(life: Life) -> None:
    """Whatever phase is reported until all has settled, nothing is quit or reported (T22)."""
    for kubelet in life.moments():
        if isinstance(decided(kubelet.report()), quitting.Quit):
            after = kubelet.copy()
            after.exit(PROXY, 0)
            for phase in ("Running", None):
                decision = decided(after.report(phase=phase))
                assert isinstance(decision, quitting.Ignore | quitting.Wait), decision


@settings(max_examples=200)
@given(lives())
def test_a_proxy_is_called_lost_exactly_when_a_payload_runs_blind(life: Life) -> None:
    """A payload that may run beside a proxy that never will is reported, and nothing else (T30)."""
    for kubelet in life.moments():
        decision = decided(kubelet.report())
        assert isinstance(decision, quitting.Report) is runs_blind(kubelet, life.payload), decision
