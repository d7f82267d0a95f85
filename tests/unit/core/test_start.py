"""What is changed in a pod at admission, and in which pods nothing is."""

from __future__ import annotations

from typing import Any

import pytest
from istio_aux.core.policy import Capability, Start, StartMode
from istio_aux.core.start import (
    INJECT,
    MIRROR,
    NATIVE_SIDECAR,
    START,
    STARTED_WITH,
)
from unit.core.pods import RUNNING, document
from unit.core.starting import CONFIG, HOLD, annotations_of, patched, planned

NATIVE = Start(capability=Capability.NATIVE)
WITH_HOLD = {CONFIG: HOLD, STARTED_WITH: "hold"}
WITH_NATIVE = {NATIVE_SIDECAR: "true", STARTED_WITH: "native"}


def new_pod(**fields: Any) -> dict[str, Any]:
    return document({"main": None}, phase="Pending", **fields)


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


@pytest.mark.parametrize("spare", [0, 1])
def test_a_pod_is_not_made_too_big_to_be_accepted(spare: int) -> None:
    """The API server refuses pods with more than 256 KiB of annotations."""
    ours = sum(len(key) + len(value) for key, value in WITH_HOLD.items())
    room = (256 << 10) - ours - len("é".encode()) - 1 + spare
    result = planned(new_pod(annotations={"é": "x" * room, "a": ""}))
    assert bool(result.ops) == (spare == 0)
    assert bool(result.warnings) == (spare == 1)


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
def test_a_pod_that_never_ends_gets_hold_even_then(restart: str | None) -> None:
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


def test_the_annotation_native_applies_to_a_pod_that_never_ends() -> None:
    """Modes are for whole clusters; an annotation is about the pod at hand."""
    found = patched(new_pod(annotations={START: "native"}, restart="Always"))
    assert annotations_of(found) == {START: "native", **WITH_NATIVE}


@pytest.mark.parametrize("mode", [StartMode.AUTO, StartMode.NATIVE, StartMode.HOLD])
def test_nothing_is_added_to_a_sidecar_that_will_be_native(mode: StartMode) -> None:
    """T31: hold has no effect on it, so nobody may say that it starts with hold."""
    found = new_pod(annotations={NATIVE_SIDECAR: "true"}, restart="Always")
    assert planned(found, Start(mode=mode, capability=Capability.NATIVE)).ops == ()


def test_an_unknown_value_is_reported_and_ignored() -> None:
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
    """Where Istio gives no sidecar, or the author wants us away, nothing is changed (T34, T35)."""
    result = planned(found, Start(capability=capability))
    assert result.ops == ()
    assert because in result.reason


def test_for_injection_the_label_beats_the_annotation() -> None:
    """As Istio has it: label "true" and annotation "false" mean a sidecar (T35)."""
    found = new_pod(labels={INJECT: "true"}, annotations={INJECT: "false"})
    assert CONFIG in annotations_of(patched(found))


def test_a_user_container_called_like_the_proxy_does_not_count_as_injected() -> None:
    """Authors may write that container to customise it (istio: proxy.istio.io/overrides)."""
    found = document({"istio-proxy": None, "main": RUNNING})
    assert CONFIG in annotations_of(patched(found))
