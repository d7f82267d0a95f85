"""The command line on a real API server: what it finds, what it explains, what it is refused.

The workload does not serve the pods of this file, so that they stay as they are.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import lab
import lab.istio
import lightkube
import pytest
from lab import meshed
from lab.fixtures import make_namespace
from lab.kubelet import ScriptedKubelet
from lab.scene import Scene
from lab.workload import PROGRAM
from lightkube.resources.core_v1 import Namespace

# Measured on 2 busy cores: 1 s.
ANSWER = 30

OPTED_OUT = {"sidecar.istio.io/inject": "false"}
DEAD = "exited 255 (Error), not restarted (restartPolicy Never)"


@pytest.fixture(scope="module")
def audited(client: lightkube.Client, kubelet: ScriptedKubelet) -> Iterator[Scene]:
    """A namespace with one pod of each kind, labelled ``audited`` with its own name."""
    name = f"audited-{secrets.token_hex(3)}"
    make_namespace(client, name, {"audited": name})
    scene = Scene(client, kubelet, name, name)
    scene.start("working")
    kubelet.finish(scene.start("stuck"), "main")
    kubelet.finish(scene.start("blocked", payload=("main", "vault-agent")), "main")
    kubelet.finish(scene.start("lost"), "istio-proxy", exit_code=255)
    scene.start("native", sidecar="native")
    scene.start("service", restart_policy="Always")
    yield scene
    client.delete(Namespace, name)


def ask(kubeconfig: Path, *argv: str, timeout: float = ANSWER) -> subprocess.CompletedProcess[str]:
    """Run the program with its output in pipes."""
    return subprocess.run(
        [PROGRAM, *argv, "--kubeconfig", kubeconfig],
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip


def test_audit_names_the_pods_that_need_a_look_and_no_others(cluster: lab.Cluster, audited: Scene):
    """T10, T13, T30, T38: each with its reason; a native sidecar and a pod at work are in order."""
    done = ask(cluster.kubeconfig, "audit", "-n", audited.namespace, "-o", "json")

    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr) == (0, "")
    assert [(item["name"], item["state"], item["by"], item["reason"]) for item in found] == [
        ("blocked", "blocked", ["vault-agent"], "not finished: vault-agent (running)"),
        ("lost", "lost", [], f"istio-proxy {DEAD}, but not finished: main (running)"),
        ("stuck", "stuck", [], "every payload container is finished"),
    ]
    assert all(item["since"] for item in found)


@pytest.fixture(scope="module")
def missed(cluster: lab.Cluster, client: lightkube.Client, istio: lab.istio.Istio) -> Iterator[str]:
    """A namespace whose pods were created before Istio was to inject them."""
    name = f"missed-{secrets.token_hex(3)}"
    make_namespace(client, name)
    client.create(meshed.pod(name, "web", sidecar=None, restart_policy="Always"))
    client.create(meshed.pod(name, "job", sidecar=None))
    client.create(meshed.pod(name, "opted-out", sidecar=None, annotations=OPTED_OUT))
    client.create(meshed.pod(name, "meshed"))
    client.patch(Namespace, name, {"metadata": {"labels": {"istio-injection": "enabled"}}})
    yield name
    client.delete(Namespace, name)


def test_audit_names_the_pods_that_missed_their_sidecar(cluster: lab.Cluster, missed: str):
    """T40: whatever their restartPolicy, and before they have begun; Istio's own policy decides."""
    done = ask(cluster.kubeconfig, "audit", "-n", missed, "-o", "json")

    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr) == (0, "")
    assert [(item["name"], item["state"], item["configuration"]) for item in found] == [
        ("job", "unmeshed", "istio-revision-tag-default"),
        ("web", "unmeshed", "istio-revision-tag-default"),
    ]
    assert all("injection policy: enabled" in item["reason"] and item["since"] for item in found)
