"""What the Job controller makes of it: the promise as the owner of a Job sees it."""

from __future__ import annotations

import lab
import pytest
from lab import meshed
from lab.scene import PATIENCE, Scene
from lightkube.models.batch_v1 import JobSpec
from lightkube.models.core_v1 import PodTemplateSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Pod


def run_job(scene: Scene) -> Pod:
    """A Job of one try whose pod has a classic sidecar; returns the pod, running."""
    template = PodTemplateSpec(spec=meshed.pod(scene.namespace, "job").spec)
    job = Job(
        metadata=ObjectMeta(name="job", namespace=scene.namespace),
        spec=JobSpec(template=template, backoffLimit=0),
    )
    scene.client.create(job)
    pods = lab.until(
        lambda: list(scene.client.list(Pod, namespace=scene.namespace)),
        timeout=PATIENCE,
        what="the Job's pod",
    )
    scene.kubelet.run(pods[0])
    return pods[0]


def conditions(scene: Scene) -> set[str]:
    """The conditions that are true of the Job now."""
    status = scene.client.get(Job, "job", namespace=scene.namespace).status
    return {c.type for c in (status and status.conditions) or [] if c.status == "True"}


@pytest.mark.parametrize(("exit_code", "condition"), [(0, "Complete"), (3, "Failed")])
def test_a_job_ends_as_its_payload_does(selected: Scene, exit_code: int, condition: str):
    """T1, T20: success stays success, failure is seen; the proxy adds nothing of its own."""
    pod = run_job(selected)

    selected.kubelet.finish(pod, "main", exit_code=exit_code)

    lab.until(
        lambda: condition in conditions(selected), timeout=PATIENCE, what=f"the Job: {condition}"
    )


def test_without_the_label_a_job_hangs_beside_its_sidecar(scene: Scene):
    """The problem that istio-aux is there for, and the control of the test above."""
    pod = run_job(scene)

    scene.kubelet.finish(pod, "main")

    scene.await_control()
    assert scene.phase(pod) == "Running"
    assert conditions(scene) == set()
