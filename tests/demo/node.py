"""The demo on the node level: all is real but Juju, which a stand-in plays."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, TypeVar

import lab.images
import lab.istio
import lab.juju
import lab.upstream
from lab import tools, workloads
from lab.fixtures import make_namespace
from lab.istio import Shape
from lab.meshed import has_sidecar, is_ready, proxy_exit_code
from lightkube import codecs
from lightkube.resources.apps_v1 import ReplicaSet
from lightkube.resources.core_v1 import Namespace, Pod

from demo import scenes
from demo.scenes import Check, Performance, Steps
from demo.story import JobStory
from tools import pack

MODEL = "kubeflow"
LATE = "late"
"""A namespace, and the revision of Istio that injects it, which comes after its first pod."""
T = TypeVar("T")


def run(steps: Steps, cluster: lab.Cluster) -> Performance:
    """Set the stage on a cluster of level `node` and play the scenes, and the worlds of Istio."""
    app, istio = bring_up(steps, cluster)
    client = cluster.client()
    manifest = scenes.EXAMPLES / "tfjob.yaml"
    without = scenes.play(scenes.WITHOUT, manifest, client, cluster.kubeconfig, steps)
    helped = scenes.play(scenes.WITH, manifest, client, cluster.kubeconfig, steps)
    native, rows = natively(steps, istio, manifest, lambda _world: None)
    return Performance(without, helped, native, status(app), (*rows, race(steps, cluster, app)))


def race(steps: Steps, cluster: lab.Cluster, app: lab.juju.App) -> Check:
    """Create a pod, then start the istiod that injects its namespace, then restart the pod."""
    template = workloads.template(workloads.container("sleep 86400"), restart="Always")
    template["metadata"]["labels"] = {"app": LATE}
    spec = {"selector": {"matchLabels": {"app": LATE}}, "template": template}
    labels = {"istio.io/rev": LATE, "io.datastrophic/istio-aux": "enabled"}

    def restarts(**parameters: Any) -> str:
        found = app.action("restart-unmeshed", namespace=LATE, **parameters).results["results"]
        return found.get("would-restart") or found["restarted"]

    with cluster.client() as client:

        def ready(*, meshed: bool) -> list[Pod]:
            pods = [*client.list(Pod, namespace=LATE)]
            return [pod for pod in pods if is_ready(pod) and has_sidecar(pod) == meshed]

        make_namespace(client, LATE, labels)
        about = {"name": LATE, "namespace": LATE}
        replicas: Any = ReplicaSet.from_dict({"metadata": about, "spec": spec})
        client.create(replicas)
        [early] = lab.until(lambda: ready(meshed=False), what=f"a pod in {LATE}")
        steps.done("a pod runs that was created before its istiod")
        istio = lab.istio.install(cluster, f"istio-{LATE}", revision=LATE)
        lab.until(lambda: restarts() == "1", what="istio-aux to find that pod")
        steps.done("that istiod is live, and istio-aux has found the pod")
        restarted = restarts(**{"dry-run": False})
        [pod] = lab.until(lambda: ready(meshed=True), what="a pod with its sidecar in its place")
        client.delete(Namespace, LATE)
        istio.remove()
    names = [f"{LATE}/{each.metadata and each.metadata.name}" for each in (early, pod)]
    return Check(
        "with istio-aux, a pod that was created before its istiod gets a sidecar",
        kept=restarted == "1",
        why="{} was found, {} has its sidecar; evicted: {}".format(*names, restarted),
    )


def bring_up(steps: Steps, cluster: lab.Cluster) -> tuple[lab.juju.App, lab.istio.Istio]:
    """Set the stage, and return when it can be played on."""
    stage = set_stage(steps, cluster, lambda: deploy_charm(cluster, steps))
    lab.upstream.await_training_operator(cluster)
    steps.done("training-operator ready")
    return stage


def natively(
    steps: Steps,
    istio: lab.istio.Istio,
    manifest: Path,
    meanwhile: Callable[[lab.istio.World], None],
    *,
    among: Iterable[lab.istio.World] = lab.istio.EXPECTED,
    become: scenes.Become = lab.istio.become,
) -> tuple[JobStory, tuple[Check, ...]]:
    """Complete a Job in each of these worlds of Istio, and the job of the demo in one of them.

    ``meanwhile`` is called in each world, after its Job.
    """
    namespace, kubeconfig = scenes.WITH.namespace, istio.cluster.kubeconfig
    with istio.cluster.client() as client:

        def made(world: lab.istio.World) -> tuple[Shape, str]:
            pod = lab.istio.complete_job(client, namespace, f"native-{world.replace(' ', '-')}")
            meanwhile(world)
            why = f"its Job completes, its proxy exits {proxy_exit_code(pod)}"
            return lab.istio.shape_of(pod), why

        def native() -> JobStory:
            return scenes.play(scenes.NATIVE, manifest, client, kubeconfig, steps)

        return scenes.play_worlds(istio, namespace, made, native, steps, among=among, become=become)


def set_stage(
    steps: Steps,
    cluster: lab.Cluster,
    deploy: Callable[[], T],
) -> tuple[T, lab.istio.Istio]:
    """Start all that the scenes need at once, with istio-aux as `deploy` does it.

    Returns what that returns, and Istio; the training-operator may not be ready yet. The first
    error ends it.
    """
    pool = ThreadPoolExecutor(thread_name_prefix="demo")
    try:
        images = pool.submit(_images, cluster, steps)
        deployed = pool.submit(deploy)
        istio = pool.submit(_istio, cluster, steps)
        others = [
            pool.submit(_trainer, cluster, steps),
            pool.submit(_datasets, cluster, steps, images),
        ]
        for future in as_completed([images, deployed, istio, *others]):
            future.result()
        return deployed.result(), istio.result()
    finally:
        # What still runs fails with the cluster, which ends when an error gets out of here.
        pool.shutdown(wait=False, cancel_futures=True)


def _images(cluster: lab.Cluster, steps: Steps) -> None:
    cluster.load(lab.images.busybox())
    steps.done("image of the payload loaded")


def _istio(cluster: lab.Cluster, steps: Steps) -> lab.istio.Istio:
    istio = lab.istio.install(cluster)
    steps.done(f"Istio {tools.ISTIO_VERSION} injects sidecars")
    return istio


def _trainer(cluster: lab.Cluster, steps: Steps) -> None:
    lab.upstream.install_training_operator(cluster)
    steps.done("training-operator started")


def _datasets(cluster: lab.Cluster, steps: Steps, images: Future[None]) -> None:
    images.result()
    client = cluster.client()
    for resource in codecs.load_all_yaml((scenes.EXAMPLES / "datasets.yaml").read_text()):
        client.apply(resource, field_manager="demo")

    def served() -> bool:
        return is_ready(client.get(Pod, "datasets", namespace="storage"))

    # Measured: 3 s, while everything else starts.
    lab.until(served, what="pod storage/datasets to be ready")
    steps.done("training data served at http://datasets.storage:8000")


def status(app: lab.juju.App) -> str:
    """What `juju status` shows of the charm now."""
    # Juju sends this every five minutes; the status is of the last event.
    app.run("update-status")
    return f"{app.name}: {' '.join(app.status())}"


def deploy_charm(cluster: lab.Cluster, steps: Steps, *, units: int = 1) -> lab.juju.App:
    charm = pack.pack()
    steps.done("charm packed")
    app = lab.juju.Model(cluster, MODEL).deploy(charm, trust=True, units=units)
    app.settle()
    steps.done(f"charm deployed with trust: {' '.join(app.status())}")
    return app
