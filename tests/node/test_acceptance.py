"""The acceptance tests of an installation, with this cluster as the user's own: a short seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import lab.istio
import lab.juju
import pytest
from lab import images
from lab.fixtures import SELECTED

TESTS = Path(__file__).parents[1]
# Measured on 2 busy cores: 35 s.
PATIENCE = 400

pytestmark = pytest.mark.nightly("test_endings.py plays such Jobs")


def accept(cluster: lab.Cluster, *options: str) -> subprocess.CompletedProcess[str]:
    """Run them; a later option wins."""
    argv = ["-q", "-p", "no:cacheprovider", "acceptance", "--image", images.BUSYBOX]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *argv, *options],
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": str(TESTS), "LAB_KUBECONFIG": str(cluster.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_they_pass_where_istio_aux_works(
    cluster: lab.Cluster, istio: lab.istio.Istio, istio_aux: lab.juju.App
) -> None:
    labels = [f"--namespace-label={key}={value}" for key, value in SELECTED.items()]

    run = accept(cluster, "--workload=a-job-that-talks-at-once", *labels)

    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout
