"""`python -m lab`, as a person types it."""

from __future__ import annotations

import re
from pathlib import Path

import lab
import lightkube
import pytest
from lab import leftovers
from lab.__main__ import main
from lightkube import KubeConfig
from lightkube.resources.core_v1 import Namespace


def test_up_leaves_a_cluster_running_until_down(capsys: pytest.CaptureFixture[str]):
    assert main(["up", "--level", "api"]) == 0
    said = capsys.readouterr().out
    name = said.split()[0]
    try:
        found = re.search(r"export KUBECONFIG=(\S+)", said)
        assert found
        config = KubeConfig.from_file(Path(found[1]))
        with lightkube.Client(config, trust_env=False) as client:
            assert client.get(Namespace, "default")
        assert main(["status"]) == 0
        assert f"{name}: level api, left by `up`" in capsys.readouterr().out
    finally:
        assert main(["down", name]) == 0
    assert leftovers.of(name) == []


def test_down_spares_the_cluster_of_a_test(
    cluster: lab.Cluster, capsys: pytest.CaptureFixture[str]
):
    name = cluster.name
    assert main(["down", name]) == 2
    assert leftovers.processes(name)
