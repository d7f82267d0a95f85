"""Pods whose proxy died, where the settings have them deleted; and a dry run, which does nothing.

The Job controller takes its time to make a new pod, so the proxies of all pods die at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import lab
import pytest
from lab import meshed
from lab.scene import Scene
from lab.served import Programs, Stages, metric
from lab.workload import Workload
from lightkube.models.batch_v1 import JobSpec
from lightkube.models.core_v1 import PodTemplateSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Pod

TRAIN = {"batch.kubernetes.io/job-name": "train"}


@dataclass(frozen=True)
class Bereaved:
    """A workload, the namespace that it serves, and the pod of a Job whose proxy has died."""

    workload: Workload
    scene: Scene
    pod: Pod

    def trainees(self) -> dict[str, Pod]:
        """The Job's pods by their UIDs."""
        found = self.scene.client.list(Pod, namespace=self.scene.namespace, labels={**TRAIN})
        return {str(pod.metadata and pod.metadata.uid): pod for pod in found}

    @property
    def uid(self) -> str:
        assert self.pod.metadata
        return str(self.pod.metadata.uid)


def bereave(workload: Workload, scene: Scene) -> Bereaved:
    """Run a Job and let the proxy of its pod die."""
    template = PodTemplateSpec(spec=meshed.pod(scene.namespace, "train").spec)
    metadata = ObjectMeta(name="train", namespace=scene.namespace)
    scene.client.create(Job(metadata=metadata, spec=JobSpec(template=template)))
    [pod] = lab.until(
        lambda: [*scene.client.list(Pod, namespace=scene.namespace, labels={**TRAIN})],
        timeout=30,
        what="the Job's pod",
    )
    scene.kubelet.run(pod)
    scene.kubelet.finish(pod, "istio-proxy", 137, reason="OOMKilled")
    return Bereaved(workload, scene, pod)


@pytest.fixture(scope="module")
def both(programs: Programs, stages: Stages) -> tuple[Bereaved, Bereaved]:
    """One workload that deletes such pods, and one that only says what it would do."""
    strict = programs("strict", {"dead-proxy": "delete"})
    dry = programs("dry", {"quit": "dry-run", "dead-proxy": "delete"})
    return bereave(strict, stages(strict)), bereave(dry, stages(dry))


def test_a_dry_run_says_what_it_would_do_and_does_nothing(both: tuple[Bereaved, Bereaved]):
    """In the status, the metrics, and an Event on the pod."""
    dry, scene = both[1].workload, both[1].scene
    pod = scene.start("worker")

    scene.kubelet.finish(pod, "main")

    scene.await_event(pod, "ProxyQuitDryRun")
    assert dry.status()["quit"] == "dry-run"
    assert metric(dry, "istio_aux_would_quit_pods") == 1
    assert scene.phase(pod) == "Running"
    assert scene.kubelet.execs_of(pod) == []


def test_a_job_gets_a_new_pod_for_one_whose_proxy_died_and_none_in_a_dry_run(
    both: tuple[Bereaved, Bereaved],
):
    """T30, T41: the real Job controller makes it, and it completes."""
    strict, dry = both
    scene = strict.scene
    scene.await_gone(strict.pod, timeout=60)
    [new] = lab.until(
        lambda: [pod for uid, pod in strict.trainees().items() if uid != strict.uid],
        timeout=120,
        what="the Job's new pod",
    )
    scene.kubelet.run(new)
    scene.kubelet.finish(new, "main")
    scene.await_phase(new, "Succeeded")
    assert metric(strict.workload, 'istio_aux_dead_proxies_total{action="deleted"}') == 1

    dry.scene.await_event(dry.pod, "ProxyLost")
    assert [*dry.trainees()] == [dry.uid]
    assert dry.scene.phase(dry.pod) == "Running"
