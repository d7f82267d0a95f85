"""The workload frees the proxies of finished pods, and of no others: real API server, real RBAC.

Which pods are finished is a rule: `tests/unit/rules/`.
"""

from __future__ import annotations

import lab
import lightkube
import pytest
from lab import meshed
from lab.kubelet import ScriptedKubelet
from lab.scene import PATIENCE, Scene
from lab.served import Programs
from lab.workload import Workload
from lightkube.models.batch_v1 import JobSpec
from lightkube.models.core_v1 import PodTemplateSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Pod

from config import Applications

QUIT = ("pilot-agent", "request", "--debug-port=15020", "POST", "quitquitquit")


def test_a_payload_that_succeeds_frees_its_proxy_with_one_quit(selected: Scene):
    """T14, T15, T20, T22: no shell, the port named, exit code 0, once."""
    pod = selected.start("worker")

    selected.kubelet.finish(pod, "main")

    selected.await_phase(pod, "Succeeded")
    assert selected.proxy_exit_code(pod) == 0
    execs = [(e.container, e.command) for e in selected.kubelet.execs_of(pod)]
    assert execs == [("istio-proxy", QUIT)]


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
    assert selected.proxy_exit_code(pod) == 0


def test_a_label_on_its_namespace_frees_a_job_that_hangs_beside_its_sidecar(
    scene: Scene, workload: Workload
):
    """The problem that istio-aux is there for. A namespace that loses its label is left alone."""
    pod = run_job(scene)
    scene.kubelet.finish(pod, "main")
    scene.await_control()
    assert (scene.phase(pod), conditions(scene)) == ("Running", set())

    workload.select(scene.namespace)
    scene.await_phase(pod, "Succeeded")

    workload.select(scene.namespace, selected=False)
    later = scene.start("later")
    scene.kubelet.finish(later, "main")
    scene.await_control()
    assert scene.kubelet.execs_of(later) == []


def test_a_job_of_an_injected_application_ends_in_a_namespace_that_is_not_selected(
    client: lightkube.Client, kubelet: ScriptedKubelet, scene: Scene, programs: Programs
):
    """With the workload's own rights; of the same namespace nothing else is touched."""
    programs("asked", inject=(Applications(scene.namespace, ("web",)),))
    other = scene.start("other")
    kubelet.finish(other, "main")
    web = meshed.pod(scene.namespace, "web")
    assert web.metadata
    web.metadata.labels = {"app.kubernetes.io/name": "web"}
    made = client.create(web)
    kubelet.run(made)

    kubelet.finish(made, "main")

    scene.await_phase(made, "Succeeded")
    assert kubelet.execs_of(other) == []
