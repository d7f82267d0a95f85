"""Where Istio does nothing with hold, through a real API server: nobody says that it held a pod."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import lab
import lab.istio
import lightkube
import pytest
from lab import meshed
from lab.kubelet import ScriptedKubelet
from lab.meshed import annotations_of
from lab.scene import Scene
from lab.served import stage
from lab.versions import NATIVE
from lab.workload import Workload
from lightkube.resources.core_v1 import Namespace, Pod

STARTED_WITH = "istio-aux.io/started-with"
HOOKS = {"preStop": {"exec": {"command": ["sleep", "5"]}}}
# Revisions of Istio by what keeps hold from having an effect.
REVISIONS: dict[str, dict[str, Any]] = {
    "lifecycle": {"lifecycle": HOOKS},
    "native": {"native": "default"},
}


@pytest.fixture(scope="module")
def pods(
    cluster: lab.Cluster, client: lightkube.Client, kubelet: ScriptedKubelet, webhook: Workload
) -> Iterator[dict[str, Pod]]:
    """A pod of each revision, for which hold was asked before Istio was called."""
    installed = [
        lab.istio.install(cluster, revision=revision, **more)
        for revision, more in REVISIONS.items()
    ]
    with stage(client, kubelet, webhook) as scene:
        webhook.await_admission(scene.namespace)
        yield {revision: create(scene, revision) for revision in REVISIONS}
    for istio in installed:
        istio.remove()


def create(scene: Scene, revision: str) -> Pod:
    """A pod of the revision, once the API server has noticed that the namespace asks for it."""
    labels = {"metadata": {"labels": {"istio.io/rev": revision}}}
    scene.client.patch(Namespace, scene.namespace, labels)
    pod = meshed.pod(scene.namespace, revision, sidecar=None)
    lab.until(
        lambda: (
            annotations_of(scene.client.create(pod, dry_run=True)).get("istio.io/rev") == revision
        ),
        timeout=30,
        what=f"pods of {scene.namespace} to be injected by {revision}",
    )
    return scene.client.create(pod)


def test_hooks_of_the_mesh_stay_and_the_log_says_that_hold_has_no_effect(
    pods: dict[str, Pod], webhook: Workload
):
    """T31: `global.proxy.lifecycle` leaves of hold only the order; the annotation says what was
    asked for."""
    pod = pods["lifecycle"]

    assert pod.spec
    assert pod.metadata
    shape = [(c.name, c.lifecycle and c.lifecycle.to_dict()) for c in pod.spec.containers]
    assert shape == [("istio-proxy", HOOKS), ("main", None)]
    assert annotations_of(pod)[STARTED_WITH] == "hold"
    lines = map(json.loads, webhook.process.log.read_text().splitlines())
    reviews = [x for x in lines if x["message"] == f"{pod.metadata.namespace}/lifecycle"]
    assert reviews[-1]["outcome"] == "unchanged"
    assert "hold has no effect" in reviews[-1]["reason"]


@NATIVE.needed
def test_a_pod_that_istio_makes_native_does_not_say_that_it_started_with_hold(
    pods: dict[str, Pod],
):
    """T31: nobody had told us that it would."""
    pod = pods["native"]

    assert pod.spec
    init = [container.name for container in pod.spec.initContainers or []]
    assert init == ["istio-init", "istio-proxy"]
    assert annotations_of(pod)[STARTED_WITH] == "native"
