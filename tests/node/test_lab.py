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
from lab.meshed import await_phase, scripted
from lightkube import KubeConfig
from lightkube.resources.core_v1 import Pod

SOON = 60
pytestmark = pytest.mark.nightly("cluster/test_guardian.py, and every test of this tier")


@pytest.fixture(scope="module")
def client(cluster: lab.Cluster) -> Iterator[lightkube.Client]:
    cluster.load(images.busybox())
    with cluster.client() as client:
        yield client


def test_a_pod_reaches_a_process_of_the_cluster(
    cluster: lab.Cluster, client: lightkube.Client, namespace: str
):
    server = cluster.spawn("server", [sys.executable, "-m", "http.server", "19000"])
    call = f"until wget -q -O - http://{cluster.host}:19000/; do sleep 0.1; done"
    client.create(scripted(namespace, "caller", call))

    await_phase(client, namespace, "caller", "Succeeded", timeout=SOON)
    server.kill()


def test_an_image_that_is_not_loaded_is_refused_at_once(client: lightkube.Client, namespace: str):
    wanted = scripted(namespace, "stranger", "true")
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
    client.create(scripted(namespace, "steady", "sleep 1000"))
    before = await_phase(client, namespace, "steady", "Running", timeout=SOON)

    cluster.process("kube-apiserver").restart()
    cluster.await_api()

    after = await_phase(client, namespace, "steady", "Running", timeout=SOON)
    assert before.status
    assert after.status
    assert before.status.containerStatuses
    assert after.status.containerStatuses
    assert (
        after.status.containerStatuses[0].containerID
        == before.status.containerStatuses[0].containerID
    )


def test_a_killed_harness_leaves_nothing_of_its_node(cluster: lab.Cluster):
    with running("node") as other:
        state = cache.root() / "run" / other.name
        config = KubeConfig.from_file(state / "kubeconfig")
        with lightkube.Client(config, trust_env=False) as its_client:
            its_client.create(scripted("default", "there", "sleep 1000"))
            await_phase(its_client, "default", "there", "Running", timeout=SOON)

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
