"""What holds for every pod, not only for those that somebody thought of."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from istio_aux.core import pod as pods
from istio_aux.core import quit as quitting
from istio_aux.core.policy import Policy
from istio_aux.core.wishes import IGNORE_CONTAINERS, QUIT
from unit.core.pods import State, document

CODES = st.sampled_from([0, 1, 42, 137])
POLICIES = st.sampled_from(["Always", "OnFailure", "Never", None])
STATES = st.one_of(
    st.none(),
    st.just({}),
    st.just({"running": {}}),
    st.sampled_from(["CrashLoopBackOff", "ImagePullBackOff", ""]).map(
        lambda reason: {"waiting": {"reason": reason}}
    ),
    CODES.map(lambda code: {"terminated": {"exitCode": code}}),
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
        annotations=draw(st.sampled_from([{}, {IGNORE_CONTAINERS: "dind"}, {QUIT: "false"}])),
        details={name: draw(DETAILS) for name in names if draw(st.booleans())},
        deleting=draw(st.booleans()),
    )


def may_run_again(container: dict[str, Any], state: State, restart: str | None) -> bool:
    """The kubelet's rule once more, written independently: False only where it is certain."""
    if not state or "terminated" not in state:
        return True
    code = state["terminated"]["exitCode"]
    own = container.get("restartPolicy")
    if own is not None:
        for rule in container.get("restartPolicyRules") or []:
            hit = code in rule["exitCodes"]["values"]
            if hit if rule["exitCodes"]["operator"] == "In" else not hit:
                if rule["action"].startswith("Restart"):
                    return True
                break
    policy = own or restart or "Always"
    return policy == "Always" or (policy == "OnFailure" and code != 0)


@given(documents())
def test_decide_is_total(found: dict[str, Any]) -> None:
    """Every pod gets one of the four answers, with a reason and a verdict on each container."""
    decision = quitting.decide(pods.convert(found), Policy(), None)
    assert isinstance(decision, quitting.Action)
    assert decision.reason
    assert set(decision.containers) >= {entry["name"] for entry in found["spec"]["containers"]}


@given(documents())
def test_a_proxy_never_quits_while_a_payload_may_run(found: dict[str, Any]) -> None:
    """The one mistake that must not happen (T2, T4, T5, T6, T12)."""
    decision = quitting.decide(pods.convert(found), Policy(), None)
    if not isinstance(decision, quitting.Quit):
        return
    states = {entry["name"]: entry["state"] for entry in found["status"]["containerStatuses"]}
    ignored = found["metadata"]["annotations"].get(IGNORE_CONTAINERS)
    spec = found["spec"]
    payload = [c for c in spec["containers"] if c["name"] not in {"istio-proxy", ignored}]
    assert payload
    assert not any(may_run_again(c, states.get(c["name"]), spec["restartPolicy"]) for c in payload)
    assert "running" in states["istio-proxy"]


@given(documents(), st.randoms(use_true_random=False))
def test_the_order_of_statuses_and_containers_does_not_matter(
    found: dict[str, Any], random: Any
) -> None:
    """The API server sorts statuses by name; nobody promises that (T8, T9)."""
    before = quitting.decide(pods.convert(found), Policy(), None)
    random.shuffle(found["status"]["containerStatuses"])
    assert quitting.decide(pods.convert(found), Policy(), None) == before
    random.shuffle(found["spec"]["containers"])
    after = quitting.decide(pods.convert(found), Policy(), None)
    assert type(after) is type(before)
    assert after.containers == before.containers


@given(documents())
def test_bytes_and_parsed_documents_are_the_same_pod(found: dict[str, Any]) -> None:
    """Both doors lead to one decision."""
    by_document = quitting.decide(pods.convert(found), Policy(), None)
    assert quitting.decide(pods.decode(msgspec.json.encode(found)), Policy(), None) == by_document
