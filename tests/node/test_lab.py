"""The lab's promises at the node level."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import lab
import lightkube
import pytest
from lab import cache, debian, leftovers, node, sweep
from lab.harness import Harness, running
from lab.meshed import await_phase, scripted
from lightkube import KubeConfig

SOON = 60
pytestmark = pytest.mark.nightly("cluster/test_guardian.py, and every test of this tier")


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
