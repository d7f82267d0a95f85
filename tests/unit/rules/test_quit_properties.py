"""What holds for every pod, not only for those that somebody thought of."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from istio_aux.model import pod as pods
from istio_aux.model.annotations import IGNORE_CONTAINERS, QUIT, QUIT_AFTER, QUIT_GRACE, STATUS_PORT
from istio_aux.model.moment import Moment
from istio_aux.model.policy import DeadProxy, Policy
from istio_aux.quit import rules as quitting
from istio_aux.quit.facts import PodFacts
from unit.rules.pods import document, exited, moment
from unit.rules.table import decide

CODES = st.sampled_from([0, 1, 42, 137])
POLICIES = st.sampled_from(["Always", "OnFailure", "Never", None])
ENDS = st.sampled_from(
    ["2026-11-21T08:16:29Z", "2026-11-21T08:16:29", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"]
)
TIMES = st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1), timezones=st.just(UTC)).map(moment)
POLICIES_OF_ADMINS = st.builds(
    Policy,
    ignore_containers=st.sampled_from([frozenset[str](), frozenset({"main"})]),
    grace=st.sampled_from([0.0, 5.0, 1e300]),
    dead_proxy=st.sampled_from(DeadProxy),
)
STATES = st.one_of(
    st.none(),
    st.just({}),
    st.just({"running": {}}),
    st.sampled_from(["CrashLoopBackOff", "ImagePullBackOff", ""]).map(
        lambda reason: {"waiting": {"reason": reason}}
    ),
    st.builds(exited, CODES, st.sampled_from(["", "Error", "RestartingAllContainers"]), at=ENDS),
)
RULES = st.fixed_dictionaries(
    {
        "action": st.sampled_from(["Restart", "RestartAllContainers", "Unheard"]),
        "exitCodes": st.fixed_dictionaries(
            {
                "operator": st.sampled_from(["In", "NotIn"]),
                "values": st.lists(CODES, max_size=2),
            }
        ),
    }
)
DETAILS = st.fixed_dictionaries(
    {"restartPolicy": POLICIES, "restartPolicyRules": st.lists(RULES, max_size=2)}
)
ANNOTATIONS = st.just({}) | st.dictionaries(
    st.sampled_from([QUIT, IGNORE_CONTAINERS, QUIT_AFTER, QUIT_GRACE, STATUS_PORT]),
    st.sampled_from(["true", "false", "dind", "main,wait", "30", "1m", "0"]) | st.text(max_size=8),
    max_size=3,
)
NAMES = ["istio-proxy", "main", "wait", "dind"]


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Pods of one to four containers in any state, with any restart rules."""
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=4))
    sidecars = draw(st.sampled_from([{}, {"vault-agent": {"running": {}}}]))
    return document(
        {name: draw(STATES) for name in names},
        sidecars=sidecars,
        restart=draw(POLICIES),
        phase=draw(st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown", None])),
        annotations=draw(ANNOTATIONS),
        details={name: draw(DETAILS) for name in names if draw(st.booleans())},
        deleting=draw(st.booleans()),
    )


@given(documents(), POLICIES_OF_ADMINS, st.none() | TIMES)
def test_decide_is_total(found: dict[str, Any], policy: Policy, now: Moment | None) -> None:
    """Every pod gets one of the four answers, with a reason and a verdict on each container."""
    pod = pods.convert(found)
    decision, verdicts = decide(pod, policy, now), PodFacts(pod, policy).containers
    assert isinstance(decision, quitting.Action)
    assert decision.reason
    assert "\n" not in decision.reason
    assert verdicts.keys() >= {entry["name"] for entry in found["spec"]["containers"]}


@given(documents(), POLICIES_OF_ADMINS, TIMES)
def test_asking_twice_changes_nothing(found: dict[str, Any], policy: Policy, now: Moment) -> None:
    """The decision depends on the pod, the policy and the time alone, and it keeps its word."""
    pod = pods.convert(found)
    decision = decide(pod, policy, now)
    assert decide(pods.convert(found), policy, now) == decision
    if isinstance(decision, quitting.Wait) and decision.until is not None:
        assert decision.until.monotonic > now.monotonic
        assert isinstance(decide(pod, policy, None), quitting.Quit)


@given(documents(), st.randoms(use_true_random=False))
def test_the_order_of_statuses_and_containers_does_not_matter(
    found: dict[str, Any], random: Any
) -> None:
    """The API server sorts statuses by name; nobody promises that (T8, T9)."""
    pod = pods.convert(found)
    before = decide(pod)
    listed = found["status"]["containerStatuses"] + found["status"]["initContainerStatuses"]
    random.shuffle(listed)
    half = random.randrange(len(listed) + 1)
    found["status"]["containerStatuses"] = listed[:half]
    found["status"]["initContainerStatuses"] = listed[half:]
    assert decide(pods.convert(found)) == before
    random.shuffle(found["spec"]["containers"])
    shuffled = pods.convert(found)
    assert type(decide(shuffled)) is type(before)
    assert PodFacts(shuffled, Policy()).containers == PodFacts(pod, Policy()).containers
