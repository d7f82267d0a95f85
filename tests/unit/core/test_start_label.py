"""Which pods ask for a sidecar after admission, and which keep what they say."""

from __future__ import annotations

from typing import Any

import jsonpatch
import msgspec
import pytest
from istio_aux.core import patch
from istio_aux.core import pod as pods
from istio_aux.core.start import DATAPLANE, INJECT, INJECTED, MIRROR, Plan, plan_label


def new_pod(**metadata: Any) -> dict[str, Any]:
    spec = {"containers": [{"name": "main", "image": "none"}]}
    return {"kind": "Pod", "metadata": {"generateName": "web-", **metadata}, "spec": spec}


def planned(found: dict[str, Any]) -> Plan:
    return plan_label(pods.decode(msgspec.json.encode(found)))


def patched(found: dict[str, Any]) -> dict[str, Any]:
    return jsonpatch.apply_patch(found, patch.encode(planned(found).ops).decode())


@pytest.mark.parametrize(
    "before",
    [{}, {"labels": None}, {"labels": {}}, {"labels": {"a/b~c": "d"}}],
    ids=["absent", "null", "empty", "with another label"],
)
def test_a_pod_that_says_nothing_asks_for_a_sidecar(before: dict[str, Any]) -> None:
    """Go clients send null for an empty map; adding into it would fail and refuse the pod."""
    labels = before.get("labels") or {}

    after = patched(new_pod(**before))

    assert after == new_pod(labels={**labels, INJECT: "true"})


def test_a_second_time_changes_nothing() -> None:
    assert planned(patched(new_pod())).ops == ()


@pytest.mark.parametrize("value", ["true", "false", "", "yes"])
@pytest.mark.parametrize("source", ["label", "annotation"])
def test_a_pod_that_says_anything_itself_keeps_its_word(source: str, value: str) -> None:
    """T35: a label beside the annotation would beat it."""
    plan = planned(new_pod(**{f"{source}s": {INJECT: value}}))

    assert plan == Plan(ops=(), reason=f'{source} {INJECT}: "{value}"')


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (
            {**new_pod(), "spec": {"hostNetwork": True, "containers": []}},
            "hostNetwork: Istio gives it no sidecar",
        ),
        (new_pod(annotations={MIRROR: "x"}), "the pod mirrors a static pod"),
        (new_pod(annotations={INJECTED: "{}"}), "the sidecar is already injected"),
        (new_pod(labels={DATAPLANE: "ambient"}), f'label {DATAPLANE}: "ambient"'),
        ({"kind": "Pod", "spec": {}}, "the object has no metadata"),
    ],
    ids=["hostNetwork", "mirror", "injected", "ambient", "no metadata"],
)
def test_a_pod_to_which_istio_gives_no_sidecar_is_left_alone(
    found: dict[str, Any], reason: str
) -> None:
    assert planned(found) == Plan(ops=(), reason=reason)


def test_a_dataplane_mode_of_none_is_no_obstacle() -> None:
    """T34: it keeps a pod of an ambient namespace out of the mesh, and says nothing else."""
    assert planned(new_pod(labels={DATAPLANE: "none"})).ops
