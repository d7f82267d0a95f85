"""Which namespaces are served is asked again before every act."""

from __future__ import annotations

from pathlib import Path

import lab
import lightkube
from lab import meshed, served
from lab.kubelet import ScriptedKubelet
from lab.scene import Scene
from lab.served import stage
from lab.workload import Workload

from config import Applications


def test_a_retry_that_is_due_in_a_namespace_that_lost_its_label_is_not_made(
    client: lightkube.Client, kubelet: ScriptedKubelet, selected: Scene, workload: Workload
):
    """What was begun there ends at once, and can be taken up again later."""
    pod = selected.start("worker")
    kubelet.misbehave(pod, "refuse")
    kubelet.finish(pod, "main")
    lab.until(lambda: kubelet.execs_of(pod), timeout=30, what="the first quit")

    workload.select(selected.namespace, selected=False)
    before = len(kubelet.execs_of(pod))
    with stage(client, kubelet, workload) as elsewhere:
        # A retry that was due comes before that of a pod which begins later.
        witness = elsewhere.start("witness")
        kubelet.misbehave(witness, "refuse", times=1)
        kubelet.finish(witness, "main")
        elsewhere.await_phase(witness, "Succeeded")
    assert len(kubelet.execs_of(pod)) == before

    kubelet.misbehave(pod, "refuse", times=0)
    workload.select(selected.namespace)
    selected.await_phase(pod, "Succeeded")


def test_a_job_of_an_injected_application_ends_in_a_namespace_that_is_not_selected(
    client: lightkube.Client,
    cluster: lab.Cluster,
    kubelet: ScriptedKubelet,
    scene: Scene,
    tmp_path: Path,
):
    """With the workload's own rights; of the same namespace nothing else is touched."""
    asked = Applications(scene.namespace, ("web",))
    settings = Workload(
        cluster, tmp_path, name="asked", model="asked", selector="lab.test/asked=yes",
        inject=(asked,),
    )  # fmt: skip
    settings.deploy()
    settings.start()
    settings.await_ready()
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
    served.end(settings)
