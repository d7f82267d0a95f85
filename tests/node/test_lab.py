"""The lab's promises at the node level."""

from __future__ import annotations

import shutil

import lab
import lightkube
import pytest
from lab import cache, sweep
from lab.harness import running
from lab.meshed import await_phase, scripted
from lightkube import KubeConfig

pytestmark = pytest.mark.nightly("cluster/test_lab.py, and every test of this tier")


def test_a_killed_harness_leaves_nothing_of_its_node(cluster: lab.Cluster):
    with running("node") as other:
        state = cache.root() / "run" / other.name
        config = KubeConfig.from_file(state / "kubeconfig")
        with lightkube.Client(config, trust_env=False) as its_client:
            its_client.create(scripted("default", "there", "sleep 1000"))
            await_phase(its_client, "default", "there", "Running")

        other.process.kill()

        lab.until(lambda: not sweep.left_by(other.name), what=f"the end of {other.name}")
    assert (cache.root() / "logs" / other.name / "kubelet.log").exists()
    shutil.rmtree(cache.root() / "logs" / other.name)
    assert cluster.process("kubelet").running
