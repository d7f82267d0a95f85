"""What admission changes in a pod: its start (`start.plan`), and its label (`plan_label`)."""

from __future__ import annotations

import copy
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
    NATIVE_SIDECAR,
    START,
    STARTED_WITH,
)
from istio_aux.model.policy import Capability, Start, StartMode
from istio_aux.start import patch
from istio_aux.start.plan import Plan, effective_start, plan_label
from lab.start_cases import CASES, Case, outcome
from unit.rules.pods import RUNNING, document, job
from unit.rules.starting import CONFIG, HOLD, annotations_of, patched, planned

WITH_HOLD = {CONFIG: HOLD, STARTED_WITH: "hold"}
WITH_NATIVE = {NATIVE_SIDECAR: "true", STARTED_WITH: "native"}


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


def test_a_null_map_of_annotations_is_replaced() -> None:
    """Go clients send null for an empty map; adding into it would fail and refuse the pod."""
    found = new_pod()
    found["metadata"]["annotations"] = None
    assert annotations_of(patched(found)) == WITH_HOLD


@pytest.mark.parametrize("spare", [0, 1])
def test_a_pod_is_not_made_too_big_to_be_accepted(spare: int) -> None:
    """The API server refuses pods with more than 256 KiB of annotations."""
    ours = sum(len(key) + len(value) for key, value in WITH_HOLD.items())
    room = (256 << 10) - ours - len("é".encode()) - 1 + spare
    result = planned(new_pod(annotations={"é": "x" * room, "a": ""}))
    assert bool(result.ops) == (spare == 0)
    assert bool(result.warnings) == (spare == 1)


@pytest.mark.parametrize("capability", Capability)
@pytest.mark.parametrize("restart", ["Never", "OnFailure", "Always", None])
@pytest.mark.parametrize("mode", StartMode)
def test_each_start_mode(mode: StartMode, restart: str | None, capability: Capability) -> None:
    """Native is for pods that end, and only `auto` waits until it is known to work."""
    native = mode is StartMode.NATIVE or (
        mode is StartMode.AUTO and capability is Capability.NATIVE
    )
    expected = WITH_NATIVE if native and restart in {"Never", "OnFailure"} else WITH_HOLD
    found = patched(new_pod(restart=restart), Start(mode=mode, capability=capability))
    assert annotations_of(found) == ({} if mode is StartMode.OFF else expected)


@pytest.mark.parametrize("capability", Capability)
@pytest.mark.parametrize(
    ("found", "because"),
    [
        pytest.param(new_pod(annotations={START: "off"}), START, id="an opt-out"),
        pytest.param(new_pod(spec={"hostNetwork": True}), "hostNetwork", id="a host-network pod"),
        pytest.param(new_pod(annotations={MIRROR: "x"}), "static", id="a mirror pod"),
        pytest.param(new_pod(annotations={INJECT: "false"}), "annotation", id="no sidecar wanted"),
        pytest.param(new_pod(labels={INJECT: "false"}), "label", id="no sidecar, by label"),
        pytest.param(
            new_pod(labels={INJECT: "false"}, annotations={INJECT: "true"}),
            "label",
            id="no sidecar by label although the annotation wants one",
        ),
        pytest.param(
            new_pod(labels={"istio.io/dataplane-mode": "ambient"}), "ambient", id="an ambient pod"
        ),
        pytest.param(
            new_pod(annotations={"sidecar.istio.io/status": "{}"}), "injected", id="an injected pod"
        ),
        pytest.param({"kind": "Pod", "spec": {}}, "no metadata", id="an object without metadata"),
    ],
)
def test_left_alone(found: dict[str, Any], because: str, capability: Capability) -> None:
    """Where Istio gives no sidecar, or the author wants us away, nothing is changed (T34, T35)."""
    result = planned(found, Start(capability=capability))
    assert result.ops == ()
    assert because in result.reason


def test_a_user_container_called_like_the_proxy_does_not_count_as_injected() -> None:
    """Authors may write that container to customise it (istio: proxy.istio.io/overrides)."""
    found = document({"istio-proxy": None, "main": RUNNING})
    assert CONFIG in annotations_of(patched(found))


HELD_BY_US, NATIVE_BY_US = ({"istio-aux.io/started-with": way} for way in ("hold", "native"))
HELD = {"istio-proxy": {"lifecycle": {"postStart": {"exec": {"command": ["pilot-agent", "wait"]}}}}}
DRAINED = {"istio-proxy": {"lifecycle": {"preStop": {"exec": {"command": ["sleep", "5"]}}}}}
NO_EFFECT = "hold has no effect: istio-proxy has a lifecycle of its own, without postStart"
MAIN, PROXY = {"main": RUNNING}, {"istio-proxy": RUNNING}


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (job(PROXY | MAIN, details=HELD, annotations=HELD_BY_US), "hold"),
        (job(MAIN, sidecars=PROXY, annotations=NATIVE_BY_US), "native"),
        (
            job(PROXY | MAIN, details=DRAINED, annotations=HELD_BY_US),
            f"asked for hold, but {NO_EFFECT}",
        ),
        (
            job(MAIN | PROXY, details=HELD, annotations=HELD_BY_US),
            "asked for hold, but istio-proxy does not hold the payload back",
        ),
        (
            job(PROXY | MAIN, annotations=HELD_BY_US),
            "asked for hold, but istio-proxy does not hold the payload back",
        ),
        (
            job(MAIN, sidecars=PROXY, annotations=HELD_BY_US),
            "asked for hold, but the sidecar is a native one",
        ),
        (
            job(MAIN, annotations=HELD_BY_US),
            "asked for hold, but no container is called istio-proxy",
        ),
        (
            job(PROXY | MAIN, details=HELD, annotations=NATIVE_BY_US),
            "asked for native, but the sidecar is a classic one",
        ),
        (
            job(MAIN, annotations=NATIVE_BY_US),
            "asked for native, but no container is called istio-proxy",
        ),
    ],
)
def test_the_start_says_what_admission_asked_for_and_whether_it_took_effect(
    pod: Any, expected: str
) -> None:
    """T31: hold has no effect beside hooks of the mesh and in native mode."""
    assert effective_start(pod) == expected


@pytest.mark.parametrize("annotations", [{}, {"istio-aux.io/started-with": "luck"}])
def test_a_pod_that_admission_did_not_change_has_no_start(
    annotations: dict[str, str],
) -> None:
    assert effective_start(job(PROXY | MAIN, details=HELD, annotations=annotations)) is None


def bare_pod(**metadata: Any) -> dict[str, Any]:
    spec = {"containers": [{"name": "main", "image": "none"}]}
    return {"kind": "Pod", "metadata": {"generateName": "web-", **metadata}, "spec": spec}


def labelled(found: dict[str, Any]) -> Plan:
    return plan_label(pods.decode(msgspec.json.encode(found)))


@pytest.mark.parametrize(
    "before",
    [{}, {"labels": None}, {"labels": {}}, {"labels": {"a/b~c": "d"}}],
    ids=["absent", "null", "empty", "with another label"],
)
def test_a_pod_without_a_wish_gets_the_label(before: dict[str, Any]) -> None:
    """Go clients send null for an empty map; adding into it would fail and refuse the pod."""
    labels = before.get("labels") or {}

    found = bare_pod(**before)
    after = jsonpatch.apply_patch(found, patch.encode(labelled(found).ops).decode())

    assert after == bare_pod(labels={**labels, INJECT: "true"})
    assert labelled(after).ops == ()


@pytest.mark.parametrize("value", ["true", "false", "", "yes"])
@pytest.mark.parametrize("source", ["label", "annotation"])
def test_a_pod_with_a_wish_of_its_own_keeps_it(source: str, value: str) -> None:
    """T35: a label beside the annotation would beat it."""
    plan = labelled(bare_pod(**{f"{source}s": {INJECT: value}}))

    assert plan == Plan(ops=(), reason=f'{source} {INJECT}: "{value}"')


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (
            {**bare_pod(), "spec": {"hostNetwork": True, "containers": []}},
            "hostNetwork: Istio gives it no sidecar",
        ),
        (bare_pod(annotations={MIRROR: "x"}), "the pod mirrors a static pod"),
        (bare_pod(annotations={INJECTED: "{}"}), "the sidecar is already injected"),
        (bare_pod(labels={DATAPLANE: "ambient"}), f'label {DATAPLANE}: "ambient"'),
        ({"kind": "Pod", "spec": {}}, "the object has no metadata"),
    ],
    ids=["hostNetwork", "mirror", "injected", "ambient", "no metadata"],
)
def test_a_pod_that_istio_does_not_inject_gets_no_label(found: dict[str, Any], reason: str) -> None:
    assert labelled(found) == Plan(ops=(), reason=reason)


def test_a_pod_with_dataplane_mode_none_gets_the_label() -> None:
    """T34: it keeps a pod of an ambient namespace out of the mesh, and says nothing else."""
    assert labelled(bare_pod(labels={DATAPLANE: "none"})).ops
