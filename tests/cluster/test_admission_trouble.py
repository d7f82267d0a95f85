"""T37: a webhook in trouble blocks no pod; the pod is created as its author wrote it."""

from __future__ import annotations

import signal

import lab
import pytest
from lab import creation, meshed
from lab.meshed import annotations_of
from lab.scene import Scene
from lab.served import Programs, Stages
from lab.workload import Workload


@pytest.fixture(scope="module")
def mortal(programs: Programs) -> Workload:
    """A workload of this file's own, with its webhook in force."""
    return programs("mortal", publish=True)


@pytest.fixture(scope="module")
def its_scene(mortal: Workload, stages: Stages) -> Scene:
    """A namespace whose pods that webhook changes, while it can."""
    scene = stages(mortal)
    mortal.await_admission(scene.namespace)
    return scene


def await_unchanged(cluster: lab.Cluster, scene: Scene) -> None:
    """Create a pod, which comes without hold; the audit log says that a webhook was given up."""
    [made] = creation.create(cluster, meshed.nameless(scene.namespace, sidecar=None))
    assert annotations_of(made.pod) == {}
    assert any(key.startswith("failed-open.") for key in made.audit(cluster))


def test_a_webhook_that_does_not_answer_blocks_no_pod(
    cluster: lab.Cluster, mortal: Workload, its_scene: Scene
):
    """T37: failurePolicy Ignore, after its timeout."""
    mortal.process.kill(signal.SIGSTOP)
    try:
        await_unchanged(cluster, its_scene)
    finally:
        mortal.process.kill(signal.SIGCONT)


def test_a_webhook_that_was_killed_blocks_no_pod_and_is_used_once_it_is_back(
    cluster: lab.Cluster, mortal: Workload, its_scene: Scene
):
    """T37: nobody listens; nothing has to be repaired by hand."""
    mortal.process.kill()
    mortal.process.wait(30)

    await_unchanged(cluster, its_scene)

    mortal.start()
    mortal.await_admission(its_scene.namespace)
