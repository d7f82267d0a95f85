"""`istio-aux check` on a real API server: what it finds in order, and what it names."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import lab
import lab.istio
import pytest
from lab.kubelet import ScriptedKubelet
from lab.workload import Workload

from .test_audit import ask

# Seconds for a command. Measured on 2 busy cores: 15 s.
ANSWER = 300


@pytest.fixture(scope="module")
def installed(kubelet: ScriptedKubelet, istio: lab.istio.Istio, webhook: Workload) -> Workload:
    """Istio and istio-aux, with a selected namespace."""
    return webhook


def check(kubeconfig: Path, *argv: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit status and the worst finding of each check."""
    done = ask(kubeconfig, "check", "-o", "json", *argv, timeout=ANSWER)
    assert done.stderr == ""
    order = ["ok", "note", "unknown", "problem"]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    found.sort(key=lambda each: order.index(each["result"]))
    return done.returncode, {each["check"]: each for each in found}


def test_check_finds_all_in_order_where_istio_aux_works(installed: Workload):
    """With the rights of the workload: the pods of its dry runs come back changed."""
    status, found = check(installed.kubeconfig, "--config", str(installed.config))

    assert {name: each["result"] for name, each in found.items()} == {
        "rights": "ok",
        "kubernetes": "ok",
        "kubelets": "ok",
        "webhook": "ok",
        "webhook order": "ok",
        "injector": "ok",
        "native sidecars": "note",
        "namespaces": "note",
        "pods": "ok",
        "admission": "ok",
        "network": "ok",
    }
    assert "Istio injects no pod there by itself: control" in found["namespaces"]["what"]
    assert "istio-injection=enabled" in found["namespaces"]["do"]
    assert status == 0


def test_check_notices_that_the_api_server_does_not_reach_the_webhook(installed: Workload):
    """With failurePolicy Ignore nothing else tells: the pod is created unchanged."""

    process = installed.process
    process.kill(signal.SIGSTOP)
    try:
        status, found = check(installed.kubeconfig, "--config", str(installed.config))
    finally:
        process.kill(signal.SIGCONT)

    assert status == 1
    assert found["network"]["result"] == "problem"
    assert "a firewall or a NetworkPolicy may drop the connection" in found["network"]["what"]
    assert "let the API server reach port 8443" in found["network"]["do"]


def test_check_names_the_rights_that_are_missing_and_what_it_cannot_know(
    cluster: lab.Cluster, installed: Workload
):
    """Nothing that it cannot see counts as fine."""
    kubeconfig = cluster.kubeconfig_for("control", "default")

    status, found = check(kubeconfig, "--config", str(installed.config))

    assert (status, found["rights"]["result"]) == (1, "problem")
    assert "may not get pods (to see which pods are finished)" in found["rights"]["what"]
    assert {found[each]["result"] for each in ("kubernetes", "namespaces", "injectors")} == {
        "unknown"
    }
