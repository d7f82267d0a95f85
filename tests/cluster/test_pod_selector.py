"""Chosen pods only, by their labels, at a real API server and past Istio, in both forms.

Option `pod-selector` for start, quit and repair, and `inject-selector` for sidecars.
"""

from __future__ import annotations

from typing import Any

import lab
import lab.istio
import pytest
from istio_aux.model.annotations import INJECT, STARTED_WITH
from lab import meshed
from lab.meshed import has_sidecar
from lab.scene import Scene
from lab.served import Programs, Stages
from lab.versions import POLICY
from lab.workload import Workload
from lightkube.resources.core_v1 import Namespace, Pod

# Kubeflow Pipelines writes both into each step (pipelines argocompiler/argo.go, pipelines#14468).
STEP = {"pipelines.kubeflow.org/v2_component": "true"}
NO = {INJECT: "false"}
SETTINGS = {
    "pod-selector": "team in (a,b),!hands-off",
    "inject-selector": "pipelines.kubeflow.org/v2_component=true",
}
CHOSEN = {"team": "b"}
OTHERS: list[dict[str, str]] = [{}, {"team": "c"}, {"team": "a", "hands-off": ""}]


@pytest.fixture(scope="module", params=["webhook", pytest.param("policy", marks=POLICY.needed)])
def choosy(istio: lab.istio.Istio, programs: Programs, request: pytest.FixtureRequest) -> Workload:
    """A workload with the selectors, and its admission."""
    form = request.param
    return programs(f"choosy-{form}", SETTINGS, publish=True, admission=form)


@pytest.fixture(scope="module")
def scene(choosy: Workload, stages: Stages) -> Scene:
    """The namespace that it serves."""
    scene = stages(choosy)
    probe = labelled(scene, "probe", CHOSEN, sidecar=None)
    lab.until(
        lambda: STARTED_WITH in meshed.annotations_of(scene.client.create(probe, dry_run=True)),
        timeout=30,
        what="admission to be in force",
    )
    return scene


def labelled(scene: Scene, name: str, labels: dict[str, str], **what: Any) -> Pod:
    pod = meshed.pod(scene.namespace, name, **what)
    assert pod.metadata
    pod.metadata.labels = dict(labels)
    return pod


def run(scene: Scene, name: str, labels: dict[str, str], **what: Any) -> Pod:
    """A pod that runs."""
    pod = scene.client.create(labelled(scene, name, labels, **what))
    scene.kubelet.run(pod)
    return pod


def relabel(scene: Scene, name: str, labels: dict[str, str | None]) -> None:
    change = {"metadata": {"labels": labels}}
    scene.client.patch(Pod, name, change, namespace=scene.namespace)


def test_only_chosen_pods_are_freed_and_another_one_once_it_is_chosen(scene: Scene):
    """Labels may change while a pod runs. `test_start_cases.py` has who starts after its proxy."""
    others = [run(scene, f"other-{n}", labels) for n, labels in enumerate(OTHERS)]
    for pod in others:
        scene.kubelet.finish(pod, "main")
    chosen = run(scene, "chosen", CHOSEN)
    scene.kubelet.finish(chosen, "main")
    scene.await_phase(chosen, "Succeeded")
    assert not any(scene.kubelet.execs_of(pod) for pod in others)

    relabel(scene, "other-2", {"hands-off": None})

    scene.await_phase(others[2], "Succeeded")
    assert not any(scene.kubelet.execs_of(pod) for pod in others[:2])


def test_a_step_whose_annotation_says_no_gets_its_sidecar_and_others_do_not(scene: Scene):
    asked = [{**CHOSEN, **STEP}, CHOSEN, STEP, {**CHOSEN, **STEP, INJECT: "false"}]
    new = [labelled(scene, "new", labels, sidecar=None, annotations=NO) for labels in asked]

    made = [scene.client.create(pod, dry_run=True) for pod in new]

    assert [has_sidecar(pod) for pod in made] == [True, False, False, False]
    assert [STARTED_WITH in meshed.annotations_of(pod) for pod in made] == [True] + [False] * 3
    assert all(meshed.annotations_of(pod)[INJECT] == "false" for pod in made)


def test_only_chosen_pods_are_unmeshed(scene: Scene, choosy: Workload):
    for number, labels in enumerate((CHOSEN, *OTHERS)):
        run(scene, f"bare-{number}", labels, sidecar=None, restart_policy="Always")

    injected = {"metadata": {"labels": {"istio-injection": "enabled"}}}
    scene.client.patch(Namespace, scene.namespace, injected)

    def unmeshed() -> list[str]:
        found = choosy.status()["unmeshed-pods"]
        return sorted(pod["name"] for pod in found if pod["namespace"] == scene.namespace)

    lab.until(lambda: unmeshed() == ["bare-0"], timeout=60, what="one unmeshed pod")
    relabel(scene, "bare-1", {"team": "a"})
    lab.until(lambda: unmeshed() == ["bare-0", "bare-1"], timeout=60, what="two of them")
