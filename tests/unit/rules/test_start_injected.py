"""What admission changes in a pod that Istio has injected already."""

from __future__ import annotations

import base64
import json
from typing import Any

import jsonpatch
import pytest
from istio_aux.model import pod as pods
from istio_aux.model.annotations import INJECTED, STARTED_WITH
from istio_aux.model.pod import PROXY
from istio_aux.model.policy import Start, StartMode
from istio_aux.start.plan import before_injection
from unit.rules.mesh import RECORDS
from unit.rules.pods import document
from unit.rules.starting import CONFIG, HOLD, STATUS, annotations_of, patched, planned

MARK = {STATUS: "{}"}
WAIT = {"postStart": {"exec": {"command": ["pilot-agent", "wait"]}}}
WAITS = {PROXY: {"lifecycle": WAIT}}


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


@pytest.mark.parametrize("case", ["hold", "native"])
def test_a_pod_that_istio_started_in_order_stays(case: str) -> None:
    """A second call, after Istio, finds nothing to do."""
    assert planned(recording(case)).ops == ()


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


def test_a_gateway_is_left_alone() -> None:
    """Its only container is the proxy, so there is no payload to hold back."""
    assert planned(injected(PROXY)).ops == ()


@pytest.mark.parametrize(
    "spelling", ["holdApplicationUntilProxyStarts", "hold_application_until_proxy_starts"]
)
def test_an_author_who_refused_hold_keeps_the_order(spelling: str) -> None:
    """T32: an explicit false, in either spelling, is also about what hold would have done."""
    assert planned(injected(annotations={CONFIG: f"{spelling}: false"})).ops == ()


def test_the_proxy_moves_before_a_container_that_was_added_later() -> None:
    """Another webhook put its sidecar first: order is restored, and nothing else is changed."""
    before = injected("vault", PROXY, "main", annotations={CONFIG: HOLD}, details=WAITS)
    found = patched(before)
    assert names(found) == [PROXY, "vault", "main"]
    assert annotations_of(found) == {
        **annotations_of(before),
        STARTED_WITH: "hold",
    }


def test_a_mark_without_a_proxy_changes_nothing() -> None:
    """Somebody copied the annotation."""
    assert planned(injected("main")).ops == ()


def test_start_mode_off_keeps_the_order() -> None:
    """start-mode applies here, too."""
    assert planned(injected(), Start(mode=StartMode.OFF)).ops == ()


@pytest.mark.parametrize("case", ["classic", "native", "hold"])
def test_the_next_pod_of_a_controller_is_this_one_without_what_istio_added(case: str) -> None:
    """`check` judges by it how a pod would start."""
    pod = before_injection(pods.convert(recording(case)))
    assert [container.name for container in pod.containers] == ["main"]
    assert pod.init_containers == ()
    assert INJECTED not in (pod.metadata.annotations or {})
