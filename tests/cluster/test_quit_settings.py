"""What the settings of `serve` change: excused containers, grace, dead proxies, and a dry run."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

import lab
import lightkube
import pytest
from lab import meshed
from lab.kubelet import ScriptedKubelet
from lab.scene import Scene
from lab.served import metric, program, stage
from lab.workload import Workload
from lightkube.models.batch_v1 import JobSpec
from lightkube.models.core_v1 import PodTemplateSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Pod

GRACE = 2
STRICT = {"ignore-containers": ["vault-agent"], "quit-grace": GRACE, "dead-proxy": "delete"}


@pytest.fixture(scope="module")
def strict(cluster: lab.Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workload]:
    """A workload that excuses vault-agent, waits, and deletes pods whose proxy is dead."""
    with program(cluster, tmp_path_factory.mktemp("strict"), "strict", STRICT) as workload:
        yield workload


@pytest.fixture(scope="module")
def barracks(
    client: lightkube.Client, kubelet: ScriptedKubelet, strict: Workload
) -> Iterator[Scene]:
    """The namespace that the strict workload serves."""
    with stage(client, kubelet, strict) as scene:
        yield scene


@pytest.fixture(scope="module")
def dry(cluster: lab.Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workload]:
    """A workload that only says what it would do."""
    settings = {"quit": "dry-run", "dead-proxy": "delete"}
    with program(cluster, tmp_path_factory.mktemp("dry"), "dry", settings) as workload:
        yield workload


@pytest.fixture(scope="module")
def rehearsal(client: lightkube.Client, kubelet: ScriptedKubelet, dry: Workload) -> Iterator[Scene]:
    """The namespace that the dry run looks at."""
    with stage(client, kubelet, dry) as scene:
        yield scene


@pytest.fixture(scope="module")
def bereaved(barracks: Scene) -> Pod:
    """The pod of a Job, whose proxy has died."""
    return trainee_without_proxy(barracks)


@pytest.fixture(scope="module")
def spared(rehearsal: Scene) -> Pod:
    """The same where there is only a dry run."""
    return trainee_without_proxy(rehearsal)


@pytest.fixture(autouse=True, scope="module")
def slow(bereaved: Pod, spared: Pod) -> None:
    """The Job controller takes its time to make a new pod, so this begins first."""


def trainee_without_proxy(scene: Scene) -> Pod:
    """Run a Job and let the proxy of its pod die; returns the pod."""
    template = PodTemplateSpec(spec=meshed.pod(scene.namespace, "train").spec)
    metadata = ObjectMeta(name="train", namespace=scene.namespace)
    scene.client.create(Job(metadata=metadata, spec=JobSpec(template=template)))
    (pod,) = lab.until(lambda: trainees(scene), timeout=30, what="the Job's pod")
    scene.kubelet.run(pod)
    scene.kubelet.finish(pod, "istio-proxy", 137, reason="OOMKilled")
    return pod


def trainees(scene: Scene) -> list[Pod]:
    """The Job's pods."""
    return list(
        scene.client.list(
            Pod, namespace=scene.namespace, labels={"batch.kubernetes.io/job-name": "train"}
        )
    )


def test_a_container_that_the_settings_excuse_keeps_no_proxy_after_the_grace_period(
    barracks: Scene,
):
    """T13: for all pods, without an annotation."""
    pod = barracks.start("worker", payload=("main", "vault-agent"))
    begin = datetime.datetime.now(datetime.UTC).replace(microsecond=0)

    barracks.kubelet.finish(pod, "main")

    lab.until(
        lambda: barracks.proxy_exit_code(pod) == 0, timeout=30, what="the proxy to exit with 0"
    )
    assert barracks.phase(pod) == "Running"
    (quit_,) = barracks.kubelet.execs_of(pod)
    assert quit_.at >= begin + datetime.timedelta(seconds=GRACE)


def test_a_bare_pod_whose_proxy_died_is_reported_and_never_deleted(
    barracks: Scene, strict: Workload
):
    """T41: nobody would make it again."""
    pod = barracks.start("bare")

    barracks.kubelet.finish(pod, "istio-proxy", 137)

    barracks.await_event(pod, "ProxyLost")
    barracks.await_control()
    assert barracks.phase(pod) == "Running"
    assert "bare" in [lost["name"] for lost in strict.status()["lost-pods"]]


def test_a_dry_run_says_what_it_would_do_and_does_nothing(rehearsal: Scene, dry: Workload):
    """In the status, the metrics, and an Event on the pod."""
    pod = rehearsal.start("worker")

    rehearsal.kubelet.finish(pod, "main")

    rehearsal.await_event(pod, "ProxyQuitDryRun")
    assert dry.status()["quit"] == "dry-run"
    assert metric(dry, "istio_aux_would_quit_pods") == 1
    assert rehearsal.phase(pod) == "Running"
    assert rehearsal.kubelet.execs_of(pod) == []


def test_a_job_gets_a_new_pod_for_one_whose_proxy_died(
    barracks: Scene, strict: Workload, bereaved: Pod
):
    """T30, T41: the real Job controller makes it, and it completes."""
    barracks.await_gone(bereaved, timeout=60)
    (new,) = lab.until(
        lambda: [pod for pod in trainees(barracks) if uid(pod) != uid(bereaved)],
        timeout=120,
        what="the Job's new pod",
    )
    barracks.kubelet.run(new)
    barracks.kubelet.finish(new, "main")
    barracks.await_phase(new, "Succeeded")
    assert metric(strict, 'istio_aux_dead_proxies_total{action="deleted"}') == 1


def test_a_dry_run_deletes_no_pod_whose_proxy_died(
    barracks: Scene, bereaved: Pod, rehearsal: Scene, spared: Pod
):
    """T41: without a dry run, a pod whose proxy died at the same time is deleted."""
    barracks.await_gone(bereaved, timeout=60)
    rehearsal.await_event(spared, "ProxyLost")
    assert [uid(pod) for pod in trainees(rehearsal)] == [uid(spared)]
    assert rehearsal.phase(spared) == "Running"


def uid(pod: Pod) -> str | None:
    return pod.metadata.uid if pod.metadata else None
