"""The lab: a cluster can be left running, and nothing of it is left once it is ended."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import lab
import lightkube
from lab import processes
from lab.__main__ import main
from lightkube import KubeConfig
from lightkube.resources.core_v1 import Namespace

ROOT = Path(__file__).parents[2]


def by_hand(*argv: str) -> str:
    """What a command of the lab prints; it must succeed."""
    return subprocess.run(
        [sys.executable, "-m", "lab", *argv], cwd=ROOT, stdout=subprocess.PIPE, text=True,
        check=True,
    ).stdout  # fmt: skip


def test_up_leaves_a_cluster_running_until_down():
    said = by_hand("up", "--level", "api")
    name = said.split()[0]
    try:
        found = re.search(r"export KUBECONFIG=(\S+)", said)
        assert found
        config = KubeConfig.from_file(Path(found[1]))
        with lightkube.Client(config, trust_env=False) as client:
            assert client.get(Namespace, "default")
        assert f"{name}: level api, left by `up`" in by_hand("status")
    finally:
        by_hand("down", name)
    assert processes.left_by(name) == []


def test_down_spares_the_cluster_of_a_test(cluster: lab.Cluster):
    assert main(["down", cluster.name]) == 2
    assert processes.pids_of(cluster.name)
