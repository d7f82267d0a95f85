"""When the stand-in makes sidecars native: by default, on request, or never."""

from __future__ import annotations

import dataclasses

import pytest
from lab.istio import decision, sidecar
from unit.lab.test_istio_injector import NATIVE, TEMPLATE, a_pod, names, patched, review


@pytest.mark.parametrize(
    ("world", "kubelets", "expected"),
    [
        ("never", ["v1.36.3"], False),
        ("on request", ["v1.36.3"], False),
        ("default", [], True),
        ("default", ["v1.33.0", "v1.36.3"], True),
        ("default", ["v1.32.9", "v1.36.3"], False),
        ("default", ["v0.0.0-master"], False),
    ],
)
def test_sidecars_are_native_by_default_once_every_kubelet_is_new_enough(
    world: sidecar.World, kubelets: list[str], expected: bool
) -> None:
    assert decision.native_by_default(world, kubelets) is expected


@pytest.mark.parametrize(
    ("world", "unasked", "asked"),
    [("default", True, True), ("on request", False, True), ("never", False, False)],
)
def test_each_world_makes_native_sidecars_unasked_or_on_request_or_never(
    world: sidecar.World, unasked: bool, asked: bool
) -> None:
    template = dataclasses.replace(TEMPLATE, native=world)
    native = decision.native_by_default(world, ["v1.36.3"])

    for pod, expected in ((a_pod(), unasked), (a_pod(annotations=NATIVE), asked)):
        answer, _ = decision.answer(review(pod), template, native=native)
        injected = patched(pod, answer)
        found = sidecar.PROXY in names(injected["spec"].get("initContainers", []))
        assert found is expected


@pytest.mark.parametrize(
    ("wish", "default", "expected"),
    [(None, True, True), (None, False, False), ("false", True, False), ("1", False, True)],
)
def test_the_annotation_decides_over_the_installation(
    wish: str | None, default: bool, expected: bool
) -> None:
    annotations = {sidecar.NATIVE_ANNOTATION: wish} if wish else {}

    assert sidecar.is_native(annotations, default) is expected
