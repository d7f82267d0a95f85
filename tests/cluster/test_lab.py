"""The lab: nothing outlives a harness, and a cluster can be left running."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import lab
import lightkube
import pytest
from lab import sweep
from lab.__main__ import main
from lab.harness import Harness, running
from lightkube import KubeConfig
from lightkube.resources.core_v1 import Namespace

from tools import cache

ROOT = Path(__file__).parents[2]


@pytest.fixture
def harness() -> Iterator[Harness]:
    with running() as harness:
        # The shell, the one that runs away, and their two sleeps.
        await_processes(harness.name, 4)
        yield harness


def await_processes(name: str, count: int) -> None:
    lab.until(lambda: len(sweep.processes(name)) == count, what=f"{count} processes of {name}")


def await_nothing_left(name: str) -> None:
    lab.until(lambda: not sweep.left_by(name), what=f"the end of {name}")


def test_a_killed_harness_leaves_nothing_but_logs(harness: Harness):
    harness.process.kill()

    await_nothing_left(harness.name)
    logs = cache.root() / "logs" / harness.name
    assert {log.name for log in logs.iterdir()} == {"escape.log", "supervisor.log"}
    shutil.rmtree(logs)


def test_what_a_killed_supervisor_leaves_is_swept(harness: Harness):
    os.kill(harness.supervisor, signal.SIGKILL)
    await_processes(harness.name, 3)

    assert harness.name in sweep.sweep()

    await_nothing_left(harness.name)
    shutil.rmtree(cache.root() / "logs" / harness.name)


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
    assert sweep.left_by(name) == []


def test_down_spares_the_cluster_of_a_test(cluster: lab.Cluster):
    assert main(["down", cluster.name]) == 2
    assert sweep.processes(cluster.name)
