"""What is changed in a pod at admission, and in which pods nothing is."""

from __future__ import annotations

import copy
from typing import Any

import jsonpatch
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from istio_aux.core import patch
from istio_aux.core import pod as pods
from istio_aux.core.policy import Capability
from istio_aux.core.start import INJECT, MIRROR, NATIVE_SIDECAR, START, Plan, plan
from unit.core.pods import RUNNING, document, recorded

CONFIG = "proxy.istio.io/config"
HOLD = "holdApplicationUntilProxyStarts: true"


def new_pod(**fields: Any) -> dict[str, Any]:
    return document({"main": None}, phase="Pending", **fields)


def planned(found: dict[str, Any], capability: Capability = Capability.CLASSIC) -> Plan:
    return plan(pods.decode(msgspec.json.encode(found)), capability)


def patched(found: dict[str, Any], capability: Capability = Capability.CLASSIC) -> dict[str, Any]:
    """The pod after the plan, applied by a library that is not ours."""
    ops = patch.encode(planned(found, capability).ops)
    return jsonpatch.apply_patch(found, ops.decode())


def annotations_of(found: dict[str, Any]) -> dict[str, str]:
    return found["metadata"].get("annotations") or {}


@pytest.mark.parametrize(
    "before", [None, {}, {"a/b~c": "d"}], ids=["absent", "empty", "with another annotation"]
)
def test_a_pod_gets_hold(before: dict[str, str] | None) -> None:
    """Whether it has annotations or not, the patch applies and keeps what is there."""
    found = patched(new_pod(annotations=before))
    assert annotations_of(found) == {**(before or {}), CONFIG: HOLD}


def test_annotations_that_are_null_are_made() -> None:
    """Go clients send null for an empty map; adding into it would fail and refuse the pod."""
    found = new_pod()
    found["metadata"]["annotations"] = None
    assert annotations_of(patched(found)) == {CONFIG: HOLD}


def test_hold_is_merged_into_an_existing_annotation() -> None:
    """proxyMetadata above all must survive (T32)."""
    text = "proxyMetadata:\n  AT: 12:30:45\n"
    found = patched(new_pod(annotations={CONFIG: text}))
    assert annotations_of(found)[CONFIG] == f"{text}{HOLD}\n"


def test_an_unreadable_annotation_is_kept_and_reported() -> None:
    """The user learns of it when the pod is created (T32)."""
    result = planned(new_pod(annotations={CONFIG: "- a"}))
    assert result.ops == ()
    assert result.warnings == (f"annotation {CONFIG} is left alone: it is not a mapping",)


def test_where_native_sidecars_work_a_job_gets_one() -> None:
    """Then no hold is needed, and no quit."""
    found = patched(new_pod(restart="OnFailure"), Capability.NATIVE)
    assert annotations_of(found) == {NATIVE_SIDECAR: "true"}


@pytest.mark.parametrize("restart", ["Always", None])
def test_a_pod_that_runs_for_ever_gets_hold_even_then(restart: str | None) -> None:
    """How a Deployment's sidecar ends is not ours to change."""
    found = patched(new_pod(restart=restart), Capability.NATIVE)
    assert annotations_of(found) == {CONFIG: HOLD}


def test_an_author_who_refuses_native_gets_hold() -> None:
    """The annotation of the user is not overwritten."""
    found = patched(new_pod(annotations={NATIVE_SIDECAR: "false"}), Capability.NATIVE)
    assert annotations_of(found) == {NATIVE_SIDECAR: "false", CONFIG: HOLD}


@pytest.mark.parametrize(
    ("wish", "capability", "key"),
    [
        ("hold", Capability.NATIVE, CONFIG),
        ("native", Capability.CLASSIC, NATIVE_SIDECAR),
        ("auto", Capability.NATIVE, NATIVE_SIDECAR),
        ("auto", Capability.CLASSIC, CONFIG),
    ],
)
def test_the_annotation_of_a_pod_wins(wish: str, capability: Capability, key: str) -> None:
    """`istio-aux.io/start` beats what the cluster can do."""
    assert annotations_of(patched(new_pod(annotations={START: wish}), capability)).keys() == {
        START,
        key,
    }


def test_an_unknown_wish_is_reported_and_ignored() -> None:
    """The line names the annotation, its value and what is allowed."""
    result = planned(new_pod(annotations={START: "later"}))
    assert result.warnings == (
        f'annotation {START}: "later": expected native, hold or off; ignored',
    )
    assert result.ops


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
            new_pod(annotations={"sidecar.istio.io/status": "{}"}), "injected", id="an injected pod"
        ),
        pytest.param({"kind": "Pod", "spec": {}}, "no metadata", id="an object without metadata"),
    ],
)
def test_left_alone(found: dict[str, Any], because: str, capability: Capability) -> None:
    """Where Istio gives no sidecar, or the author wants us away, nothing is changed (T35)."""
    result = planned(found, capability)
    assert result.ops == ()
    assert because in result.reason


def test_for_injection_the_label_beats_the_annotation() -> None:
    """As Istio has it: label "true" and annotation "false" mean a sidecar (T35)."""
    found = new_pod(labels={INJECT: "true"}, annotations={INJECT: "false"})
    assert CONFIG in annotations_of(patched(found))


@pytest.mark.parametrize(
    "record", ["pod-hold.json", "pod-native.json", "pod-classic-before-quit.json"]
)
def test_a_recorded_pod_that_is_injected_is_left_alone(record: str) -> None:
    """A second call after Istio changes nothing."""
    assert plan(recorded(record), Capability.CLASSIC).ops == ()


@given(
    st.none()
    | st.dictionaries(
        st.sampled_from([CONFIG, NATIVE_SIDECAR, START, INJECT, "a/b~c", ""]),
        st.sampled_from(
            ["true", "false", "off", "hold", "native", "a: b", "{a: b}", "- a", "", "{"]
        ),
    ),
    st.sampled_from(["Always", "OnFailure", "Never"]),
    st.sampled_from(list(Capability)),
)
def test_every_patch_applies_adds_one_annotation_and_is_complete(
    before: dict[str, str] | None, restart: str, capability: Capability
) -> None:
    """A patch that fails would refuse the pod; one that is not idempotent would never settle."""
    found = new_pod(annotations=before, restart=restart)
    after = patched(copy.deepcopy(found), capability)
    changed = {
        key for key, value in annotations_of(after).items() if value != (before or {}).get(key)
    }
    assert changed <= {CONFIG, NATIVE_SIDECAR}
    assert len(changed) == len(planned(found, capability).ops) <= 1
    assert planned(after, capability).ops == ()
    after["metadata"].pop("annotations", None)
    found["metadata"].pop("annotations", None)
    assert after == found


@given(
    st.dictionaries(st.text("ab/~1", max_size=5), st.text(max_size=5)), st.text("ab/~1", max_size=5)
)
def test_our_own_application_agrees_with_the_library(before: dict[str, str], key: str) -> None:
    """`mutate` shows what the API server would make of the patch, escapes included."""
    found = {"metadata": {"annotations": before}}
    ops = (patch.Add(patch.pointer("metadata", "annotations", key), "new"),)
    expected = jsonpatch.apply_patch(found, patch.encode(ops).decode())
    patch.apply(ops, found)
    assert found == expected


def test_a_user_container_called_like_the_proxy_does_not_count_as_injected() -> None:
    """Authors may write that container to customise it (istio: proxy.istio.io/overrides)."""
    found = document({"istio-proxy": None, "main": RUNNING})
    assert CONFIG in annotations_of(patched(found))
