"""For pods of any shape: the patch applies, changes what it says, and twice is once."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any

import jsonpatch
from hypothesis import given
from hypothesis import strategies as st
from istio_aux.model.annotations import INJECT, NATIVE_SIDECAR, START, STARTED_WITH
from istio_aux.model.pod import PROXY
from istio_aux.model.policy import Capability, Start, StartMode
from istio_aux.start import patch
from lab.istio import decision, sidecar
from unit.rules.starting import CONFIG, STATUS, patched, planned

HOLD = "holdApplicationUntilProxyStarts"
TEMPLATE = sidecar.Template("istio-system", "proxyv2")

ANNOTATIONS = st.fixed_dictionaries(
    {},
    optional={
        CONFIG: st.sampled_from(
            [
                "a: b",
                "{a: b}",
                "- a",
                "",
                "{",
                f"{HOLD}: false",
                f"{HOLD}: true",
                f'{{"{HOLD}": 1}}',
            ]
        ),
        NATIVE_SIDECAR: st.sampled_from(["true", "false", "yes"]),
        START: st.sampled_from(["auto", "native", "hold", "off", "later"]),
        STARTED_WITH: st.sampled_from(["native", "hold"]),
        INJECT: st.sampled_from(["true", "false"]),
        "a/b~c": st.just("d"),
        "": st.just("é"),
    },
)
STRINGS = st.none() | st.dictionaries(st.text("ab/~1é", max_size=3), st.text(max_size=3))
LIFECYCLES = st.sampled_from(
    [None, {}, {"postStart": None}, {"preStop": {}}, {"postStart": {"exec": None}, "preStop": None}]
)
NAMES = st.lists(st.sampled_from(["main", "aux", "vault", PROXY]), max_size=4, unique=True)


@st.composite
def containers(draw: st.DrawFn, *, native: bool) -> Any:
    """A list of containers, or what stands for an empty one."""
    found = []
    for name in draw(NAMES):
        container: dict[str, Any] = {"name": name, "image": "x"}
        if draw(st.booleans()):
            container["lifecycle"] = draw(LIFECYCLES)
        if native and draw(st.booleans()):
            container["restartPolicy"] = "Always"
        found.append(container)
    return found or draw(st.sampled_from([None, []]))


def maybe(
    draw: st.DrawFn, target: dict[str, Any], key: str, values: st.SearchStrategy[Any]
) -> None:
    if draw(st.booleans()):
        target[key] = draw(values)


@st.composite
def documents(draw: st.DrawFn, *, injected: bool | None = None) -> dict[str, Any]:
    """A pod as anybody may send it; injected or not, or either."""
    metadata: dict[str, Any] = {"namespace": "training"}
    annotations = draw(ANNOTATIONS)
    if injected is None:
        maybe(draw, annotations, STATUS, st.just("{}"))
    maybe(draw, metadata, "labels", STRINGS | st.just({INJECT: "false"}))
    if annotations:
        metadata["annotations"] = annotations
    else:
        maybe(draw, metadata, "annotations", st.sampled_from([None, {}]))
    spec: dict[str, Any] = {}
    maybe(draw, spec, "restartPolicy", st.sampled_from(["Always", "OnFailure", "Never", None]))
    maybe(draw, spec, "hostNetwork", st.sampled_from([True, False, None]))
    maybe(draw, spec, "containers", containers(native=False))
    maybe(draw, spec, "initContainers", containers(native=True))
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


HOWS = st.builds(Start, mode=st.sampled_from(StartMode), capability=st.sampled_from(Capability))


def bare(found: dict[str, Any]) -> dict[str, Any]:
    """The pod without what we may change."""
    rest = copy.deepcopy(found)
    annotations = rest["metadata"].pop("annotations", None) or {}
    for container in (listed := rest["spec"].get("containers") or []):
        if container["name"] == PROXY:
            container.pop("lifecycle", None)
    listed.sort(key=lambda container: container["name"] == PROXY)
    ours = {CONFIG, NATIVE_SIDECAR, STARTED_WITH}
    return {**rest, "kept": {key: annotations[key] for key in annotations.keys() - ours}}


@given(documents(), HOWS)
def test_every_patch_applies_and_changes_nothing_but_the_start(
    found: dict[str, Any], how: Start
) -> None:
    """A patch that fails would refuse the pod, even with failurePolicy Ignore."""
    assert bare(patched(found, how)) == bare(found)


@given(documents(), HOWS)
def test_twice_is_once(found: dict[str, Any], how: Start) -> None:
    """The API server calls again whenever another webhook changed something."""
    assert planned(patched(found, how), how).ops == ()


@given(documents(injected=False), HOWS, st.booleans())
def test_once_is_enough_also_when_istio_was_called_in_between(
    found: dict[str, Any], how: Start, native: bool
) -> None:
    """Only a claim of hold, which a native sidecar makes untrue, is corrected; then all is said."""
    found["spec"]["containers"] = [{"name": "main", "image": "x"}, {"name": "aux", "image": "x"}]
    once = patched(found, how)
    request = {"request": {"uid": "1", "namespace": "training", "object": once}}
    answer, _ = decision.answer(request, TEMPLATE, native=native)
    if "patch" not in answer["response"]:
        return
    between = jsonpatch.apply_patch(once, json.loads(base64.b64decode(answer["response"]["patch"])))
    again = patched(between, how)
    assert bare(again) == bare(between)
    assert again["spec"] == between["spec"]
    assert planned(again, how).ops == ()


KEYS = st.text("ab/~1é", max_size=4)


@given(
    st.dictionaries(KEYS, st.text(max_size=2), max_size=3),
    st.lists(st.integers(), min_size=1, max_size=4),
    KEYS,
    st.data(),
)
def test_our_own_application_of_any_patch_agrees_with_the_library(
    found: dict[str, Any], items: list[int], key: str, data: st.DataObject
) -> None:
    """Also for keys that must be escaped, and for items that move."""
    place, source = data.draw(st.tuples(*[st.integers(0, len(items) - 1)] * 2))
    document = {"map": found, "list": items}
    ops = (
        patch.Add(patch.pointer("map", key), "new"),
        patch.Move(patch.pointer("list", place), patch.pointer("list", source)),
    )
    expected = jsonpatch.apply_patch(document, patch.encode(ops).decode())
    patch.apply(ops, document)
    assert document == expected
    assert document["map"][key] == "new"
