"""The charm beside Charmed Kubeflow's Istio on a real Juju: relate, run a Job, upgrade, remove.

With jubilant. The tests build on one another, in this order.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jubilant
import pytest
from conftest import APP

ISTIO = "istio-pilot"
CHANNEL = "1.28/stable"  # Of Charmed Kubeflow 1.11.
TEAM = "istio-aux-lifecycle"
LABELS = ("istio-injection=enabled", "io.datastrophic/istio-aux=enabled")
JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "spec": {
        "backoffLimit": 0,
        "template": {
            "spec": {
                "restartPolicy": "Never",
                "containers": [
                    {
                        "name": "main",
                        "image": "docker.io/library/busybox:1.36",
                        # It needs the network at once: without its proxy it fails.
                        "command": ["wget", "-q", "-O", "/dev/null", "http://istiod.{model}:15014"],
                    }
                ],
            }
        },
    },
}


@pytest.fixture(scope="module")
def juju() -> Iterator[jubilant.Juju]:
    """A model of its own, destroyed at the end."""
    with jubilant.temp_model() as juju:
        juju.wait_timeout = 20 * 60
        yield juju


def kubectl(*arguments: str, stdin: str = "") -> str:
    """Run kubectl on the cluster of the model; return what it printed."""
    command = ["kubectl", *arguments]
    run = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    assert run.returncode == 0, f"{' '.join(command)}: {run.stderr}"
    return run.stdout


@pytest.fixture(scope="module")
def team(juju: jubilant.Juju) -> Iterator[str]:
    """A namespace in the mesh, which istio-aux looks after."""
    kubectl("create", "namespace", TEAM)
    kubectl("label", "namespace", TEAM, *LABELS)
    yield TEAM
    kubectl("delete", "namespace", TEAM)


def completed(model: str, team: str, name: str) -> dict[str, Any]:
    """Run a Job to its end, and return its pod."""
    manifest = {**JOB, "metadata": {"name": name, "namespace": team}}
    kubectl("apply", "-f", "-", stdin=json.dumps(manifest).replace("{model}", model))
    kubectl("wait", "-n", team, f"job/{name}", "--for=condition=Complete", "--timeout=10m")
    selector = f"--selector=batch.kubernetes.io/job-name={name}"
    (pod,) = json.loads(kubectl("get", "pods", "-n", team, selector, "-o", "json"))["items"]
    return pod


def has_sidecar(pod: dict[str, Any]) -> bool:
    containers = [*pod["spec"]["containers"], *pod["spec"].get("initContainers", [])]
    return "istio-proxy" in {container["name"] for container in containers}


def model_of(juju: jubilant.Juju) -> str:
    assert juju.model is not None
    return juju.model.rpartition(":")[2]


def test_it_relates_to_istio_and_names_its_injector(
    juju: jubilant.Juju, charm: Path, image: str
) -> None:
    juju.deploy(ISTIO, channel=CHANNEL, trust=True)
    juju.deploy(charm, APP, resources={"istio-aux-image": image}, trust=True)
    juju.integrate(f"{APP}:istio-pilot", f"{ISTIO}:istio-pilot")

    status = juju.wait(lambda status: jubilant.all_active(status, APP, ISTIO))

    (unit,) = status.apps[APP].units.values()
    assert " live since " in unit.workload_status.message


def test_nothing_keeps_it_from_working(juju: jubilant.Juju) -> None:
    assert juju.run(f"{APP}/0", "run-check").results["works"] == "true"


def test_a_job_completes_beside_its_sidecar(juju: jubilant.Juju, team: str) -> None:
    assert has_sidecar(completed(model_of(juju), team, "before"))


def test_an_upgrade_keeps_webhook_and_jobs(
    juju: jubilant.Juju, charm: Path, image: str, team: str
) -> None:
    webhook = f"mutatingwebhookconfiguration/istio-aux-{model_of(juju)}-{APP}"
    before = kubectl("get", webhook, "-o", "jsonpath={.metadata.uid}")

    juju.refresh(APP, path=charm, resources={"istio-aux-image": image})
    juju.wait(lambda status: jubilant.all_active(status, APP))

    assert kubectl("get", webhook, "-o", "jsonpath={.metadata.uid}") == before
    assert has_sidecar(completed(model_of(juju), team, "after"))


def test_removal_leaves_nothing_and_refuses_no_pod(juju: jubilant.Juju, team: str) -> None:
    juju.remove_application(APP)
    juju.wait(lambda status: APP not in status.apps)

    kinds = "mutatingwebhookconfigurations,clusterroles,clusterrolebindings"
    selector = f"--selector=istio-aux.io/model={model_of(juju)}"
    assert json.loads(kubectl("get", kinds, selector, "-o", "json"))["items"] == []
    kubectl(
        "run", "-n", team, "later", "--image=docker.io/library/busybox:1.36", "--dry-run=server"
    )
