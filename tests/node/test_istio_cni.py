"""Beside the real istio-cni: no pod that it has captured is named or evicted, whatever happens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import lab.istio
import pytest
from lab import images, meshed, node, upstream
from lab.fixtures import make_namespace, running, vacate
from lab.istio import DATAPLANE, REDIRECTION
from lab.workload import Workload, ask, metric, program
from lab.workloads import Workload as Batch, container, job, template
from lightkube import Client
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Namespace, Pod

AMBIENT = {DATAPLANE: "ambient"}
LATE, AWAY, REFUSED = 20, 75, 45
SETTLED, LAG = 30, 15  # After that long a pod is outside; and it takes so long until that is seen.
CAPTURED = 100


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[lab.Cluster]:
    """A node of its own: the agent changes how all pods get their network."""
    for made in running(request, "node"):
        made.load(images.busybox())
        yield made


@pytest.fixture(scope="module")
def cni(cluster: lab.Cluster) -> lab.istio.Cni:
    return lab.istio.install_cni(cluster, excludeNamespaces=["kube-system", "excluded"])


@pytest.fixture(scope="module")
def served(
    cluster: lab.Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Workload]]:
    """Two processes: one reports, one restarts."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                program(
                    cluster,
                    tmp_path_factory.mktemp(name),
                    name,
                    {"lease": f"{name}/{name}", "race-policy": policy},
                )
            )
            for name, policy in (("reports", "report"), ("restarts", "restart"))
        }


class Watched:
    """The pods of a namespace, and when each of them is named by which process."""

    def __init__(self, client: Client, served: dict[str, Workload], namespace: str) -> None:
        self._client, self._served, self.namespace = client, served, namespace
        self._began = time.monotonic()
        self._over = threading.Event()
        # By the process, the pod's name and its code: seconds until then.
        self.named: dict[tuple[str, str, str], float] = {}
        self._thread = threading.Thread(target=self._look)

    def pods(self) -> dict[str, Pod]:
        listed = self._client.list(Pod, namespace=self.namespace)
        return {str(meshed.meta(pod).uid): pod for pod in listed}

    def captured(self) -> bool:
        return all(said(pod) == "enabled" for pod in self.pods().values())

    def _look(self) -> None:
        while not self._over.wait(0.5):
            for process, workload in self._served.items():
                for found in workload.status()["unmeshed-pods"]:
                    if found["namespace"] == self.namespace:
                        self.named.setdefault(
                            (process, found["name"], found["code"]), time.monotonic() - self._began
                        )

    @contextmanager
    def watching(self) -> Iterator[None]:
        self._began = time.monotonic()
        self._thread.start()
        yield
        self._over.set()
        self._thread.join()


def said(pod: Pod) -> str:
    return meshed.annotations_of(pod).get(REDIRECTION, "")


def all_run(client: Client, namespace: str, replicas: int) -> None:
    def check() -> bool:
        pods = [*client.list(Pod, namespace=namespace)]
        return sum(bool(pod.status and pod.status.phase == "Running") for pod in pods) == replicas

    lab.until(check, timeout=CAPTURED, what=f"the pods of {namespace} to run")


Scene = Callable[["Play"], None]


class Play:
    """A scene in a namespace of its own."""

    def __init__(
        self, cluster: lab.Cluster, client: Client, cni: lab.istio.Cni, served: dict[str, Workload],
        scene: str,
    ) -> None:  # fmt: skip
        self.cluster, self.client, self.cni = cluster, client, cni
        self.namespace = scene
        make_namespace(client, scene)
        for workload in served.values():
            workload.select(scene)
        self.watched = Watched(client, served, scene)

    def label(self) -> None:
        self.client.patch(Namespace, self.namespace, {"metadata": {"labels": AMBIENT}})

    def deploy(self, replicas: int = 2, **spec: Any) -> None:
        labels = {"app": "web"}
        sleeps = {"name": "main", "image": images.BUSYBOX, "command": ["sleep", "86400"]}
        template = {
            "metadata": {"labels": labels},
            "spec": {"containers": [sleeps], "terminationGracePeriodSeconds": 0, **spec},
        }
        selector = {"matchLabels": labels}
        made = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web", "namespace": self.namespace},
            "spec": {"replicas": replicas, "selector": selector, "template": template},
        }
        upstream.apply(self.client, [made])
        all_run(self.client, self.namespace, replicas)

    def await_captured(self) -> None:
        lab.until(self.watched.captured, timeout=CAPTURED, what="the pods to be captured")

    def renew_networks(self) -> None:
        """End the sandbox of each pod: the kubelet makes another, with another network."""
        ctr = f"ctr --address {node.CONTAINERD} --namespace k8s.io"
        for uid in self.watched.pods():
            of = f'labels."io.kubernetes.pod.uid"=={uid},labels."io.cri-containerd.kind"==sandbox'
            script = f"{ctr} task kill -s KILL $({ctr} containers list -q '{of}')"
            self.cluster.tree.run("ctr", ["sh", "-euxc", script], timeout=CAPTURED)


def captured_at_once(play: Play) -> None:
    play.label()
    play.deploy()


def captured_late(play: Play) -> None:
    """Twenty pods whose namespace is labelled."""
    play.deploy(LATE)
    play.label()
    play.await_captured()


def agent_away(play: Play) -> None:
    """Some pods from before, some that are made meanwhile."""
    play.label()
    play.deploy()
    play.cni.take_away()
    play.client.patch(Deployment, "web", {"spec": {"replicas": 4}}, namespace=play.namespace)
    time.sleep(AWAY)
    play.cni.come_back()
    play.await_captured()


def network_renewed_meanwhile(play: Play) -> None:
    play.label()
    play.deploy()
    time.sleep(60 + LAG)  # Later than `candidate.RENEWED`.
    play.cni.take_away()
    play.renew_networks()
    all_run(play.client, play.namespace, 2)
    # The agent stays away for longer than a pod needs to be outside: there is no event of that.
    time.sleep(SETTLED + LAG)
    play.cni.come_back()
    play.cni.await_ready()


def ztunnel_refuses(play: Play) -> None:
    """Two pods run, and are handed to it when their namespace is labelled; others cannot start."""
    play.deploy()
    play.cni.refuse("no")
    play.label()
    time.sleep(REFUSED)
    play.cni.refuse("")
    play.await_captured()


def agent_rolled_out(play: Play) -> None:
    play.label()
    play.deploy()
    play.cni.configure(
        excludeNamespaces=["kube-system", "excluded"], podAnnotations={"rolled": "out"}
    )
    play.cni.await_ready()


def excluded(play: Play) -> None:
    play.label()
    play.deploy()


def host_network(play: Play) -> None:
    play.label()
    play.deploy(1, hostNetwork=True)


SCENES = (
    captured_at_once, captured_late, agent_away, network_renewed_meanwhile, ztunnel_refuses,
    agent_rolled_out, excluded, host_network,
)  # fmt: skip


@pytest.mark.nightly("unit/test_repair_controller.py")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__.replace("_", " "))
def test_no_pod_that_is_captured_is_named_or_evicted(
    scene: Scene,
    cluster: lab.Cluster,
    client: Client,
    cni: lab.istio.Cni,
    served: dict[str, Workload],
) -> None:
    cni.await_ready()
    for workload in served.values():
        lab.until(lambda: workload.status()["leader"], what="it to lead")  # noqa: B023
    play = Play(cluster, client, cni, served, scene.__name__.replace("_", "-"))
    with play.watched.watching():
        scene(play)
        # Nothing may be named for longer than a pod needs to be outside: there is no event of that.
        time.sleep(SETTLED + LAG)
    left = {said(pod) for pod in play.watched.pods().values()}
    restarted = metric(served["restarts"], 'istio_aux_sidecar_restarts_total{outcome="evicted"}')
    vacate(client, play.namespace)
    named: dict[str, list[int]] = {}
    for (process, _, code), at in play.watched.named.items():
        named.setdefault(f"{process} {code}", []).append(round(at))
    print(f"{scene.__name__}: {named or 'none named'}; annotations at the end: {left}")
    codes = {code for _, _, code in play.watched.named}
    assert codes <= ({"IA0126"} if scene is ztunnel_refuses else set[str]()), named
    assert restarted == 0


@pytest.fixture
def before_the_agent(request: pytest.FixtureRequest) -> Iterator[lab.Cluster]:
    """A node whose pods wait for an agent that is not there yet."""
    for made in running(request, "node"):
        made.load(images.busybox())
        lab.istio.install(made, cni=True)
        yield made


@pytest.mark.nightly("twins --cni; unit/test_cli_quit.py")
@pytest.mark.parametrize("deletes", [False, True], ids=["repairPods", "deletePods"])
def test_a_pod_from_before_the_agent_is_named_and_the_agents_repair_and_ours_do_not_fight(
    before_the_agent: lab.Cluster, tmp_path: Path, *, deletes: bool
) -> None:
    """istio#40303, istio#52073: `istio-validation` ends with 126, with Never the pod has failed."""
    cluster = before_the_agent
    with cluster.client() as client, program(
        cluster, tmp_path, "early", {"lease": "early/early", "race-policy": "restart"}, publish=True
    ) as serve:  # fmt: skip
        make_namespace(client, "jobs", {"istio-injection": "enabled"})
        serve.select("jobs")
        for name, policy in (("never", "Never"), ("often", "OnFailure")):
            made = Batch(name, job(template(container("true"), restart=policy), backoffLimit=6))
            client.create(made.in_namespace("jobs"))
        lab.until(
            lambda: "IA0120" in ask(cluster.kubeconfig, "audit", "--config", serve.config).stdout,
            timeout=CAPTURED,
            what="the pod that failed to be named",
        )
        shown = ask(cluster.kubeconfig, "check", "--config", serve.config).stdout
        assert "may fail there in istio-validation" in shown
        lab.istio.install_cni(
            cluster, ambient=False, repair={"deletePods": deletes, "repairPods": not deletes}
        )

        def complete() -> bool:
            found = client.list(Job, namespace="jobs")
            return all(bool(each.status and each.status.succeeded) for each in found)

        lab.until(complete, timeout=200, what="both Jobs to complete")
        assert metric(serve, 'istio_aux_sidecar_restarts_total{outcome="evicted"}') == 0
        vacate(client, "jobs")
