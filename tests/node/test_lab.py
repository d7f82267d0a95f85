"""The lab's promises at the node level."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import lab
import lightkube
import pytest
from lab import cache, debian, images, leftovers, node, sweep
from lab.harness import Harness, running
from lightkube import KubeConfig
from lightkube.models.core_v1 import Container, PodSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod


@pytest.fixture(scope="module")
def client(cluster: lab.Cluster) -> Iterator[lightkube.Client]:
    cluster.load(images.busybox())
    with cluster.client() as client:
        yield client


def pod(name: str, namespace: str, script: str) -> Pod:
    container = Container(name="main", image=images.BUSYBOX, command=["sh", "-c", script])
    return Pod(
        metadata=ObjectMeta(name=name, namespace=namespace),
        spec=PodSpec(
            restartPolicy="Never", containers=[container], terminationGracePeriodSeconds=0
        ),
    )


def await_phase(client: lightkube.Client, name: str, namespace: str, phase: str) -> Pod:
    def reached() -> Pod | None:
        found = client.get(Pod, name, namespace=namespace)
        seen = found.status and found.status.phase
        assert seen == phase or seen not in {"Failed", "Succeeded"}, found.status
        return found if seen == phase else None

    return lab.until(reached, timeout=60, what=f"pod {namespace}/{name} to be {phase}")


def test_a_pod_reaches_a_process_of_the_cluster(
    cluster: lab.Cluster, client: lightkube.Client, namespace: str
):
    server = cluster.spawn("server", [sys.executable, "-m", "http.server", "19000"])
    call = f"until wget -q -O - http://{cluster.host}:19000/; do sleep 0.1; done"
    client.create(pod("caller", namespace, call))

    await_phase(client, "caller", namespace, "Succeeded")
    server.kill()


def test_an_image_that_is_not_loaded_is_refused_at_once(client: lightkube.Client, namespace: str):
    wanted = pod("stranger", namespace, "true")
    assert wanted.spec
    wanted.spec.containers[0].image = "registry.invalid/none:1"
    client.create(wanted)

    def refused() -> bool:
        status = client.get(Pod, "stranger", namespace=namespace).status
        waiting = [c.state.waiting for c in (status and status.containerStatuses) or [] if c.state]
        return any(w and w.reason in {"ErrImagePull", "ImagePullBackOff"} for w in waiting)

    lab.until(refused, timeout=60, what="the pull to fail")


def test_a_pod_runs_on_while_the_api_server_is_killed(
    cluster: lab.Cluster, client: lightkube.Client, namespace: str
):
    client.create(pod("steady", namespace, "sleep 1000"))
    before = await_phase(client, "steady", namespace, "Running")

    cluster.process("kube-apiserver").restart()
    cluster.await_api()

    after = await_phase(client, "steady", namespace, "Running")
    assert before.status
    assert after.status
    assert before.status.containerStatuses
    assert after.status.containerStatuses
    assert (
        after.status.containerStatuses[0].containerID
        == before.status.containerStatuses[0].containerID
    )


@pytest.mark.nightly("a killed guardian")
def test_a_killed_harness_leaves_nothing_of_its_node(cluster: lab.Cluster):
    with running("node") as other:
        state = cache.root() / "run" / other.name
        config = KubeConfig.from_file(state / "kubeconfig")
        with lightkube.Client(config, trust_env=False) as its_client:
            its_client.create(pod("there", "default", "sleep 1000"))
            await_phase(its_client, "there", "default", "Running")

        other.process.kill()

        lab.until(lambda: not leftovers.of(other.name), timeout=60, what=f"the end of {other.name}")
    assert (cache.root() / "logs" / other.name / "kubelet.log").exists()
    shutil.rmtree(cache.root() / "logs" / other.name)
    assert cluster.process("kubelet").running


def test_the_kubelet_sets_no_kernel_parameter_of_the_machine(cluster: lab.Cluster):
    inside = Path("/proc", str(cluster.process("kubelet").pid), "root", "proc/sys")

    for name, value in node.TUNABLES.items():
        assert (inside / name).read_text() == f"{value}\n"
        assert (inside / name).stat().st_dev != inside.stat().st_dev


@pytest.fixture
def harness() -> Iterator[Harness]:
    with running("isolated") as harness:
        yield harness
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(cache.root() / "logs" / harness.name)


def test_a_killed_guardian_takes_its_namespaces_with_it(harness: Harness):
    os.kill(harness.guardian, signal.SIGKILL)

    # No process is left that could hold the namespaces; the rest is for the next start.
    lab.until(
        lambda: not leftovers.processes(harness.name), timeout=30, what="the processes to end"
    )
    assert harness.name in sweep.sweep()
    lab.until(lambda: not leftovers.of(harness.name), timeout=30, what=f"{harness.name} to vanish")


def test_killing_the_first_process_inside_ends_all_and_cleans_up(harness: Harness):
    os.kill(harness.inside, signal.SIGKILL)

    lab.until(lambda: not leftovers.of(harness.name), timeout=30, what=f"the end of {harness.name}")


@pytest.mark.skipif(not shutil.which("dpkg-query"), reason="this machine is no Debian")
def test_packages_that_are_not_installed_are_missing():
    assert debian.missing(["dpkg", "no-such-package"]) == ["no-such-package"]
