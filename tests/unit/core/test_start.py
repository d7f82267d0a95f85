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
from istio_aux.core.policy import Capability, Start, StartMode
from istio_aux.core.start import (
    INJECT,
    MIRROR,
    NATIVE_SIDECAR,
    START,
    STARTED_WITH,
    Plan,
    plan,
)
from unit.core.pods import RUNNING, document

CONFIG = "proxy.istio.io/config"
HOLD = "holdApplicationUntilProxyStarts: true"
CLASSIC, NATIVE = Start(capability=Capability.CLASSIC), Start(capability=Capability.NATIVE)
WITH_HOLD = {CONFIG: HOLD, STARTED_WITH: "hold"}
WITH_NATIVE = {NATIVE_SIDECAR: "true", STARTED_WITH: "native"}


def new_pod(**fields: Any) -> dict[str, Any]:
    return document({"main": None}, phase="Pending", **fields)


def planned(found: dict[str, Any], how: Start = CLASSIC) -> Plan:
    return plan(pods.decode(msgspec.json.encode(found)), how)


def patched(found: dict[str, Any], how: Start = CLASSIC) -> dict[str, Any]:
    """The pod after the plan, applied by a library that is not ours."""
    ops = patch.encode(planned(found, how).ops)
    return jsonpatch.apply_patch(found, ops.decode())


def annotations_of(found: dict[str, Any]) -> dict[str, str]:
    return found["metadata"].get("annotations") or {}


@pytest.mark.parametrize(
    "before", [None, {}, {"a/b~c": "d"}], ids=["absent", "empty", "with another annotation"]
)
def test_a_pod_gets_hold(before: dict[str, str] | None) -> None:
    """Whether it has annotations or not, the patch applies and keeps what is there."""
    found = patched(new_pod(annotations=before))
    assert annotations_of(found) == {**(before or {}), **WITH_HOLD}


def test_annotations_that_are_null_are_made() -> None:
    """Go clients send null for an empty map; adding into it would fail and refuse the pod."""
    found = new_pod()
    found["metadata"]["annotations"] = None
    assert annotations_of(patched(found)) == WITH_HOLD


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
    found = patched(new_pod(restart="OnFailure"), NATIVE)
    assert annotations_of(found) == WITH_NATIVE


@pytest.mark.parametrize("restart", ["Always", None])
def test_a_pod_that_runs_for_ever_gets_hold_even_then(restart: str | None) -> None:
    """How a Deployment's sidecar ends is not ours to change."""
    found = patched(new_pod(restart=restart), NATIVE)
    assert annotations_of(found) == WITH_HOLD


def test_an_author_who_refuses_native_gets_hold() -> None:
    """The annotation of the user is not overwritten."""
    found = patched(new_pod(annotations={NATIVE_SIDECAR: "false"}), NATIVE)
    assert annotations_of(found) == {NATIVE_SIDECAR: "false", **WITH_HOLD}


@pytest.mark.parametrize("capability", Capability)
@pytest.mark.parametrize("restart", ["Never", "OnFailure", "Always", None])
@pytest.mark.parametrize("mode", StartMode)
def test_what_each_mode_means(mode: StartMode, restart: str | None, capability: Capability) -> None:
    """Native is for pods that end, and only `auto` waits until it is known to work."""
    native = mode is StartMode.NATIVE or (
        mode is StartMode.AUTO and capability is Capability.NATIVE
    )
    expected = WITH_NATIVE if native and restart in {"Never", "OnFailure"} else WITH_HOLD
    found = patched(new_pod(restart=restart), Start(mode=mode, capability=capability))
    assert annotations_of(found) == ({} if mode is StartMode.OFF else expected)


@pytest.mark.parametrize("mode", StartMode)
@pytest.mark.parametrize(
    ("wish", "capability", "expected"),
    [
        ("hold", Capability.NATIVE, WITH_HOLD),
        ("native", Capability.CLASSIC, WITH_NATIVE),
        ("auto", Capability.NATIVE, WITH_NATIVE),
        ("auto", Capability.UNKNOWN, WITH_HOLD),
        ("off", Capability.NATIVE, {}),
    ],
)
def test_the_annotation_of_a_pod_wins(
    wish: str, capability: Capability, expected: dict[str, str], mode: StartMode
) -> None:
    """`istio-aux.io/start` beats the cluster's mode, whichever it is."""
    how = Start(mode=mode, capability=capability)
    found = patched(new_pod(annotations={START: wish}), how)
    assert annotations_of(found) == {START: wish, **expected}


def test_an_author_who_asks_for_native_gets_it_for_a_pod_that_runs_for_ever() -> None:
    """Modes are for whole clusters; an annotation is about the pod at hand."""
    found = patched(new_pod(annotations={START: "native"}, restart="Always"))
    assert annotations_of(found) == {START: "native", **WITH_NATIVE}


@pytest.mark.parametrize("mode", [StartMode.AUTO, StartMode.NATIVE, StartMode.HOLD])
def test_nothing_is_added_to_a_sidecar_that_will_be_native(mode: StartMode) -> None:
    """T31: hold has no effect on it, so nobody may say that it starts with hold."""
    found = new_pod(annotations={NATIVE_SIDECAR: "true"}, restart="Always")
    assert planned(found, Start(mode=mode, capability=Capability.NATIVE)).ops == ()


def test_an_unknown_wish_is_reported_and_ignored() -> None:
    """The line names the annotation, its value and what is allowed."""
    result = planned(new_pod(annotations={START: "later"}))
    assert result.warnings == (
        f'annotation {START}: "later": expected auto, native, hold or off; ignored',
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
            new_pod(labels={"istio.io/dataplane-mode": "ambient"}), "ambient", id="an ambient pod"
        ),
        pytest.param(
            new_pod(annotations={"sidecar.istio.io/status": "{}"}), "injected", id="an injected pod"
        ),
        pytest.param({"kind": "Pod", "spec": {}}, "no metadata", id="an object without metadata"),
    ],
)
def test_left_alone(found: dict[str, Any], because: str, capability: Capability) -> None:
    """Where Istio gives no sidecar, or the author wants us away, nothing is changed (T35)."""
    result = planned(found, Start(capability=capability))
    assert result.ops == ()
    assert because in result.reason


def test_for_injection_the_label_beats_the_annotation() -> None:
    """As Istio has it: label "true" and annotation "false" mean a sidecar (T35)."""
    found = new_pod(labels={INJECT: "true"}, annotations={INJECT: "false"})
    assert CONFIG in annotations_of(patched(found))


@given(
    st.none()
    | st.dictionaries(
        st.sampled_from([CONFIG, NATIVE_SIDECAR, START, INJECT, "a/b~c", ""]),
        st.sampled_from(
            ["true", "false", "off", "hold", "native", "a: b", "{a: b}", "- a", "", "{"]
        ),
    ),
    st.sampled_from(["Always", "OnFailure", "Never"]),
    st.builds(Start, mode=st.sampled_from(StartMode), capability=st.sampled_from(Capability)),
)
def test_every_patch_applies_adds_what_it_says_and_is_complete(
    before: dict[str, str] | None, restart: str, how: Start
) -> None:
    """A patch that fails would refuse the pod; one that is not idempotent would never settle."""
    found = new_pod(annotations=before, restart=restart)
    after = patched(copy.deepcopy(found), how)
    changed = {
        key for key, value in annotations_of(after).items() if value != (before or {}).get(key)
    }
    assert changed in (set(), set(WITH_HOLD), set(WITH_NATIVE))
    assert bool(changed) == bool(planned(found, how).ops)
    assert planned(after, how).ops == ()
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
