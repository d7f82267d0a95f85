"""What admission changes in a pod: its start, before Istio and after it, and its label."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any

import jsonpatch
import msgspec
import pytest
from istio_aux.model import pod as pods
from istio_aux.model.annotations import (
    DATAPLANE,
    INJECT,
    INJECTED,
    MIRROR,
    STARTED_WITH,
)
from istio_aux.model.pod import PROXY
from istio_aux.model.policy import Start, StartMode
from istio_aux.start import patch
from istio_aux.start.plan import Plan, before_injection, effective_start, plan_label
from lab.start_cases import CASES, Case, outcome
from unit.rules.mesh import RECORDS
from unit.rules.pods import RUNNING, document, job
from unit.rules.starting import CONFIG, HOLD, STATUS, UNKNOWN, annotations_of, patched, planned

WITH_HOLD = {CONFIG: HOLD, STARTED_WITH: "hold"}


def new_pod(**fields: Any) -> dict[str, Any]:
    return document({"main": None}, phase="Pending", **fields)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_pod_becomes_what_the_table_says(case: Case) -> None:
    """T32, T35 and everything else that both forms of admission share."""
    made = copy.deepcopy(case.pod)

    plan = planned(made, case.setting)
    patch.apply(plan.ops, made)

    assert outcome(annotations_of(made), made["spec"]["containers"]) == case.expected
    assert made["metadata"]["labels"] == case.labelled
    assert case.warns in " ".join(plan.warnings)
    assert bool(plan.warnings) is bool(case.warns)


@pytest.mark.parametrize("spare", [0, 1])
def test_a_pod_is_not_made_too_big_to_be_accepted(spare: int) -> None:
    """The API server refuses pods with more than 256 KiB of annotations."""
    ours = sum(len(key) + len(value) for key, value in WITH_HOLD.items())
    room = (256 << 10) - ours - len("é".encode()) - 1 + spare
    result = planned(new_pod(annotations={"é": "x" * room, "a": ""}))
    assert bool(result.ops) == (spare == 0)
    assert bool(result.warnings) == (spare == 1)


def test_a_user_container_called_like_the_proxy_does_not_count_as_injected() -> None:
    """Authors may write that container to customise it (istio: proxy.istio.io/overrides)."""
    found = document({"istio-proxy": None, "main": RUNNING})
    assert CONFIG in annotations_of(patched(found))


HELD_BY_US, NATIVE_BY_US = ({"istio-aux.io/started-with": way} for way in ("hold", "native"))
WAIT = {"postStart": {"exec": {"command": ["pilot-agent", "wait"]}}}
HELD = {PROXY: {"lifecycle": WAIT}}
DRAINED = {"istio-proxy": {"lifecycle": {"preStop": {"exec": {"command": ["sleep", "5"]}}}}}
NO_EFFECT = "hold has no effect: istio-proxy has a lifecycle of its own, without postStart"
MAIN, SIDECAR = {"main": RUNNING}, {PROXY: RUNNING}


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (job(SIDECAR | MAIN, details=HELD), None),
        (job(SIDECAR | MAIN, details=HELD, annotations={STARTED_WITH: "luck"}), None),
        (job(SIDECAR | MAIN, details=HELD, annotations=HELD_BY_US), "hold"),
        (job(MAIN, sidecars=SIDECAR, annotations=NATIVE_BY_US), "native"),
        (
            job(SIDECAR | MAIN, details=DRAINED, annotations=HELD_BY_US),
            f"asked for hold, but {NO_EFFECT}",
        ),
        (
            job(MAIN | SIDECAR, details=HELD, annotations=HELD_BY_US),
            "asked for hold, but istio-proxy does not hold the payload back",
        ),
        (
            job(SIDECAR | MAIN, annotations=HELD_BY_US),
            "asked for hold, but istio-proxy does not hold the payload back",
        ),
        (
            job(MAIN, sidecars=SIDECAR, annotations=HELD_BY_US),
            "asked for hold, but the sidecar is a native one",
        ),
        (
            job(MAIN, annotations=HELD_BY_US),
            "asked for hold, but no container is called istio-proxy",
        ),
        (
            job(SIDECAR | MAIN, details=HELD, annotations=NATIVE_BY_US),
            "asked for native, but the sidecar is a classic one",
        ),
        (
            job(MAIN, annotations=NATIVE_BY_US),
            "asked for native, but no container is called istio-proxy",
        ),
    ],
)
def test_the_start_says_what_admission_asked_for_and_whether_it_took_effect(
    pod: Any, expected: str | None
) -> None:
    """T31: hold has no effect beside hooks of the mesh and in native mode."""
    assert effective_start(pod) == expected


def labelled(**metadata: Any) -> tuple[dict[str, Any], Plan]:
    """A pod after the patch of its label, and the plan."""
    found: dict[str, Any] = {**new_pod(), "metadata": {"generateName": "web-", **metadata}}
    planned = plan_label(pods.decode(msgspec.json.encode(found)))
    return jsonpatch.apply_patch(found, patch.encode(planned.ops).decode()), planned


@pytest.mark.parametrize("labels", [None, {}, {"a/b~c": "d"}, {DATAPLANE: "none"}], ids=str)
def test_a_pod_without_a_wish_gets_the_label(labels: dict[str, str] | None) -> None:
    """Go clients send null for an empty map; adding into it would fail and refuse the pod.

    T34: data plane "none" keeps a pod of an ambient namespace out of the mesh, and says no more.
    """
    after, _ = labelled(labels=labels)
    assert after["metadata"]["labels"] == {**(labels or {}), INJECT: "true"}
    assert labelled()[0]["metadata"]["labels"] == {INJECT: "true"}
    assert labelled(**after["metadata"])[1].ops == ()


@pytest.mark.parametrize("value", ["true", "false", "", "yes"])
@pytest.mark.parametrize("source", ["label", "annotation"])
def test_a_pod_with_a_wish_of_its_own_keeps_it(source: str, value: str) -> None:
    """T35: a label beside the annotation would beat it."""
    _, plan = labelled(**{f"{source}s": {INJECT: value}})
    assert plan == Plan(ops=(), reason=f'{source} {INJECT}: "{value}"')


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (new_pod(spec={"hostNetwork": True}), "hostNetwork: Istio gives it no sidecar"),
        (new_pod(annotations={MIRROR: "x"}), "the pod mirrors a static pod"),
        (new_pod(annotations={INJECTED: "{}"}), "the sidecar is already injected"),
        (new_pod(labels={DATAPLANE: "ambient"}), f'label {DATAPLANE}: "ambient"'),
        ({"kind": "Pod", "spec": {}}, "the object has no metadata"),
    ],
    ids=["hostNetwork", "mirror", "injected", "ambient", "no metadata"],
)
def test_a_pod_that_istio_does_not_inject_is_left_alone(found: dict[str, Any], reason: str) -> None:
    """T34."""
    pod = pods.decode(msgspec.json.encode(found))
    assert plan_label(pod) == Plan(ops=(), reason=reason)
    assert planned(found).ops == ()


MARK = {STATUS: "{}"}


def injected(
    *containers: str, annotations: dict[str, str] | None = None, **fields: Any
) -> dict[str, Any]:
    """A pod with the mark of the injector; where nothing else is said, it holds nothing back."""
    named = dict.fromkeys(containers or ("main", PROXY))
    return document(named, annotations={**MARK, **(annotations or {})}, phase=None, **fields)


def recording(case: str) -> dict[str, Any]:
    """The pod that a real istiod made."""
    record = json.loads((RECORDS / f"inject-{case}.json").read_text())
    pod = record["request"]["request"]["object"]
    # istiod compares with the pod as Go writes it.
    pod["spec"]["containers"][0]["resources"] = {}
    answer = json.loads(base64.b64decode(record["response"]["response"]["patch"]))
    return jsonpatch.apply_patch(pod, answer)


def names(found: dict[str, Any]) -> list[str]:
    return [container["name"] for container in found["spec"]["containers"]]


def without_environment(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in container.items() if key != "env"}
        for container in found["spec"]["containers"]
    ]


def test_it_starts_as_if_istio_had_been_asked_for_hold() -> None:
    """The same containers, in the same order, with the same hooks as in the recording of hold."""
    found = patched(recording("classic"))
    assert without_environment(found) == without_environment(recording("hold"))
    assert annotations_of(found)[CONFIG] == HOLD
    assert annotations_of(found)[STARTED_WITH] == "hold"


@pytest.mark.parametrize(
    ("found", "how"),
    [
        (recording("hold"), UNKNOWN),
        (recording("native"), UNKNOWN),
        (injected(PROXY), UNKNOWN),
        (injected("main"), UNKNOWN),
        (injected(annotations={CONFIG: "hold_application_until_proxy_starts: false"}), UNKNOWN),
        (injected(), Start(mode=StartMode.OFF)),
    ],
    ids=["held by Istio", "native", "a gateway", "only its mark", "hold refused", "off"],
)
def test_a_pod_that_is_to_stay_as_istio_made_it_stays(found: dict[str, Any], how: Start) -> None:
    """T32: an explicit false is also about what hold would have done."""
    assert planned(found, how).ops == ()


@pytest.mark.parametrize(
    "containers", [(PROXY, "main"), ("main", PROXY), ("a", PROXY, "b"), ("a", "b", "c", PROXY)]
)
def test_the_proxy_becomes_the_first_and_the_others_keep_their_order(
    containers: tuple[str, ...],
) -> None:
    """The kubelet starts them one after another."""
    found = patched(injected(*containers))
    assert names(found) == [PROXY, *(name for name in containers if name != PROXY)]
    assert found["spec"]["containers"][0]["lifecycle"] == WAIT


@pytest.mark.parametrize("lifecycle", [None, {}, {"postStart": None, "preStop": None}])
def test_an_empty_lifecycle_counts_as_none(lifecycle: dict[str, Any] | None) -> None:
    """However the JSON spells it."""
    found = patched(injected(details={PROXY: {"lifecycle": lifecycle}}))
    assert found["spec"]["containers"][0]["lifecycle"]["postStart"] == WAIT["postStart"]


def test_a_hook_of_somebody_else_is_kept() -> None:
    """The mesh may have given the proxy another way to wait (Helm global.proxy.lifecycle)."""
    own = {
        "postStart": {"exec": {"command": ["wait-for-it"]}},
        "preStop": {"sleep": {"seconds": 3}},
    }
    found = patched(injected(details={PROXY: {"lifecycle": own}}))
    assert names(found) == [PROXY, "main"]
    assert found["spec"]["containers"][0]["lifecycle"] == own


@pytest.mark.parametrize(
    "lifecycle", [{"preStop": {"exec": {"command": ["x"]}}}, {"stopSignal": "SIGINT"}]
)
def test_hold_is_not_claimed_where_the_mesh_replaced_its_hook(lifecycle: dict[str, Any]) -> None:
    """T31: with a lifecycle from the mesh Istio adds no hook, so nothing holds the payload back."""
    result = planned(injected(details={PROXY: {"lifecycle": lifecycle}}))
    assert (result.ops, result.started_with) == ((), None)
    assert "hold has no effect" in result.reason


def test_the_proxy_moves_before_a_container_that_was_added_later() -> None:
    """Another webhook put its sidecar first: order is restored, and nothing else is changed."""
    before = injected("vault", PROXY, "main", annotations={CONFIG: HOLD}, details=HELD)
    found = patched(before)
    assert names(found) == [PROXY, "vault", "main"]
    assert annotations_of(found) == {
        **annotations_of(before),
        STARTED_WITH: "hold",
    }


@pytest.mark.parametrize("case", ["classic", "native", "hold"])
def test_the_next_pod_of_a_controller_is_this_one_without_what_istio_added(case: str) -> None:
    """`check` judges by it how a pod would start."""
    pod = before_injection(pods.convert(recording(case)))
    assert [container.name for container in pod.containers] == ["main"]
    assert pod.init_containers == ()
    assert INJECTED not in (pod.metadata.annotations or {})
