"""The demo on the api level: where pods cannot run, their status is played by a script.

API server, controller manager, Istio's webhook, istio-aux's webhook and quit controller
are real processes; the kubelet and the containers are not, and the charm is left out.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lab.istio
from lab.istio import Shape
from lab.kubelet import ScriptedKubelet
from lab.meshed import PROXY
from lightkube import Client
from lightkube.resources.core_v1 import Pod

from demo import scenes
from demo.scenes import Performance, Steps
from demo.story import JobStory

# The workload gets its role and webhook configuration from the charm's own modules.
sys.path.append(str(Path(__file__).resolve().parents[2] / "src"))

from lab.workload import Workload

# Seconds in the script, in the proportions of the node level.
PROXY_STARTS = 2.0
PAYLOAD_WORKS = 2.0


def run(steps: Steps, cluster: lab.Cluster) -> Performance:
    """Set the stage on a cluster of level `api` and play the scenes with a batch Job."""
    istio = lab.istio.install(cluster)
    steps.done("Istio injects sidecars")
    workload = Workload(cluster, cluster.state / "istio-aux")
    workload.deploy()
    workload.start()
    workload.await_ready()
    workload.publish()
    steps.done("istio-aux serves its webhook and watches pods")

    def made(_world: lab.istio.World) -> tuple[Shape, str]:
        return lab.istio.try_shape(cluster.client(), scenes.WITH.namespace), "by a dry run"

    with ScriptedKubelet(cluster) as kubelet:
        without = _play(scenes.WITHOUT, cluster, kubelet, steps)
        helped = _play(scenes.WITH, cluster, kubelet, steps)
        native, rows = scenes.play_worlds(
            istio,
            scenes.WITH.namespace,
            made,
            lambda: _play(scenes.NATIVE, cluster, kubelet, steps),
            steps,
        )
    _, status = workload.get("/status")

    return Performance(without, helped, native, f"istio-aux says of itself: {status}", rows)


def _play(
    scene: scenes.Scene, cluster: lab.Cluster, kubelet: ScriptedKubelet, steps: Steps
) -> JobStory:
    manifest = scenes.EXAMPLES / "job.yaml"
    client = cluster.client()
    with ThreadPoolExecutor(thread_name_prefix="demo") as pool:
        acted = pool.submit(_act, scene.namespace, client, kubelet)
        story = scenes.play(scene, manifest, client, cluster.kubeconfig, steps)
        acted.result()
    return story


def _act(namespace: str, client: Client, kubelet: ScriptedKubelet) -> None:
    """Do with the namespace's two pods what a kubelet would, as their containers' specs ask."""

    def both() -> list[Pod]:
        pods = list(client.list(Pod, namespace=namespace))
        return pods if len(pods) == 2 else []

    pods = lab.until(both, what=f"two pods in namespace {namespace}")
    with ThreadPoolExecutor(len(pods)) as pool:
        list(pool.map(lambda pod: _live(pod, kubelet), pods))


def _live(pod: Pod, kubelet: ScriptedKubelet) -> None:
    """One pod's life: a payload that is not held back comes before its proxy, and fails once."""
    assert pod.spec
    payload = next(c.name for c in pod.spec.containers if c.name != PROXY)
    # The hold, as Istio injects it, keeps the containers after it back.
    holds = any(c.lifecycle and c.lifecycle.postStart for c in pod.spec.containers)
    if holds or lab.istio.shape_of(pod).native:
        kubelet.run(pod, waiting=[payload])
        # The script is what takes time here: there is no container whose progress could be awaited.
        time.sleep(PROXY_STARTS)
    else:
        kubelet.run(pod, waiting=[PROXY])
        kubelet.finish(pod, payload, 1)
        time.sleep(PROXY_STARTS)
        kubelet.restart(pod, PROXY)
    kubelet.restart(pod, payload)
    time.sleep(PAYLOAD_WORKS)
    kubelet.finish(pod, payload, 0)
