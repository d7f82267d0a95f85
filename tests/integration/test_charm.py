"""The charm on a real Juju, alone and beside Charmed Kubeflow's Istio, until it is removed.

The tests build on one another, in this order.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jubilant
import pytest

APP, ISTIO = "istio-aux", "istio-pilot"
CHANNEL = "1.28/stable"  # Of Charmed Kubeflow 1.11.
TEAM = "istio-aux-lifecycle"
LABELS = ("istio-injection=enabled", "io.datastrophic/istio-aux=enabled")
BUSYBOX = "docker.io/library/busybox:1.36"


@pytest.fixture(scope="module")
def juju() -> Iterator[jubilant.Juju]:
    """A model of its own, destroyed at the end."""
    with jubilant.temp_model() as juju:
        juju.wait_timeout = 20 * 60
        # A unit learns of trust with its next event.
        juju.cli("model-config", "update-status-hook-interval=30s")
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


def model_of(juju: jubilant.Juju) -> str:
    assert juju.model is not None
    return juju.model.rpartition(":")[2]


def configuration(juju: jubilant.Juju) -> dict[str, Any]:
    """The MutatingWebhookConfiguration of the application."""
    name = f"mutatingwebhookconfiguration/istio-aux-{model_of(juju)}-{APP}"
    return json.loads(kubectl("get", name, "-o", "json"))


def configure(juju: jubilant.Juju, **options: str) -> None:
    """Set options, and wait until the application is active."""
    juju.config(APP, {name.replace("_", "-"): value for name, value in options.items()})
    juju.wait(lambda status: jubilant.all_active(status, APP))


def message(status: jubilant.Status) -> str:
    """What the first unit says."""
    return status.apps[APP].units[f"{APP}/0"].workload_status.message


def created(namespace: str, **labels: str) -> dict[str, Any]:
    """A pod as the API server would store it."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "tried", "labels": labels},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}]},
    }
    arguments = ("create", "-n", namespace, "--dry-run=server", "-f", "-", "-o", "json")
    return json.loads(kubectl(*arguments, stdin=json.dumps(pod)))


def completed(model: str, team: str, name: str) -> dict[str, Any]:
    """Run a Job to its end, and return its pod."""
    # It needs the network at once: without its proxy it fails.
    command = ["wget", "-q", "-O", "/dev/null", f"http://istiod.{model}:15014"]
    main = {"name": "main", "image": BUSYBOX, "command": command}
    pod = {"spec": {"restartPolicy": "Never", "containers": [main]}}
    manifest = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": team},
        "spec": {"backoffLimit": 0, "template": pod},
    }
    kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
    kubectl("wait", "-n", team, f"job/{name}", "--for=condition=Complete", "--timeout=10m")
    selector = f"--selector=batch.kubernetes.io/job-name={name}"
    (made,) = json.loads(kubectl("get", "pods", "-n", team, selector, "-o", "json"))["items"]
    return made


def has_sidecar(pod: dict[str, Any]) -> bool:
    containers = [*pod["spec"]["containers"], *pod["spec"].get("initContainers", [])]
    return "istio-proxy" in {container["name"] for container in containers}


def test_without_trust_it_blocks_and_says_what_to_run(
    juju: jubilant.Juju, charm: Path, image: str
) -> None:
    juju.deploy(charm, APP, resources={"istio-aux-image": image})

    status = juju.wait(lambda status: jubilant.all_blocked(status, APP))

    assert f"juju trust {APP} --scope=cluster" in message(status)


def test_with_trust_it_becomes_active_and_owns_its_webhook(juju: jubilant.Juju) -> None:
    juju.trust(APP, scope="cluster")
    juju.wait(lambda status: jubilant.all_active(status, APP))

    for webhook in configuration(juju)["webhooks"]:
        assert webhook["failurePolicy"] == "Ignore"
        assert webhook["clientConfig"]["caBundle"]


def test_a_pod_of_a_selected_namespace_is_held(juju: jubilant.Juju, team: str) -> None:
    hold = created(team)["metadata"]["annotations"]["proxy.istio.io/config"]

    assert "holdApplicationUntilProxyStarts: true" in hold


def test_pods_of_a_named_application_ask_for_a_sidecar(juju: jubilant.Juju) -> None:
    configure(juju, inject_applications="asker")

    asker, other = (
        created(model_of(juju), **{"app.kubernetes.io/name": name}) for name in ("asker", "other")
    )

    assert asker["metadata"]["labels"]["sidecar.istio.io/inject"] == "true"
    assert "sidecar.istio.io/inject" not in other["metadata"]["labels"]


def test_what_is_no_pod_is_not_explained(juju: jubilant.Juju) -> None:
    with pytest.raises(jubilant.TaskError):
        juju.run(f"{APP}/0", "explain", {"pod": "no pod"})


def test_another_selector_reaches_the_webhook(juju: jubilant.Juju) -> None:
    configure(juju, namespace_selectors="team in (a,b)")

    expressions = configuration(juju)["webhooks"][0]["namespaceSelector"]["matchExpressions"]
    assert {"key": "team", "operator": "In", "values": ["a", "b"]} in expressions
    configure(juju, namespace_selectors=LABELS[1])


def test_a_bad_option_blocks_and_leaves_the_webhook(juju: jubilant.Juju) -> None:
    before = configuration(juju)

    juju.config(APP, {"log-level": "loud"})
    juju.wait(lambda status: jubilant.all_blocked(status, APP))

    assert configuration(juju) == before
    configure(juju, log_level="info")


def test_more_units_become_active(juju: jubilant.Juju) -> None:
    juju.cli("scale-application", APP, "2")

    juju.wait(lambda status: len(status.apps[APP].units) == 2 and jubilant.all_active(status, APP))


def test_it_relates_to_istio_and_names_its_injector(juju: jubilant.Juju) -> None:
    juju.deploy(ISTIO, channel=CHANNEL, trust=True)
    juju.integrate(f"{APP}:istio-pilot", f"{ISTIO}:istio-pilot")

    status = juju.wait(lambda status: jubilant.all_active(status, APP, ISTIO))

    assert " live since " in message(status)


def test_nothing_keeps_it_from_working(juju: jubilant.Juju) -> None:
    assert juju.run(f"{APP}/0", "run-check").results["works"] == "true"


def test_a_job_completes_beside_its_sidecar(juju: jubilant.Juju, team: str) -> None:
    assert has_sidecar(completed(model_of(juju), team, "before"))


def test_an_upgrade_keeps_webhook_and_jobs(
    juju: jubilant.Juju, charm: Path, image: str, team: str
) -> None:
    before = configuration(juju)["metadata"]["uid"]

    juju.refresh(APP, path=charm, resources={"istio-aux-image": image})
    juju.wait(lambda status: jubilant.all_active(status, APP))

    assert configuration(juju)["metadata"]["uid"] == before
    assert has_sidecar(completed(model_of(juju), team, "after"))


def test_removal_leaves_nothing_and_refuses_no_pod(juju: jubilant.Juju, team: str) -> None:
    juju.remove_application(APP)
    juju.wait(lambda status: APP not in status.apps)

    kinds = "mutatingwebhookconfigurations,clusterroles,clusterrolebindings,serviceaccounts"
    selector = f"--selector=istio-aux.io/model={model_of(juju)},istio-aux.io/application={APP}"
    left = json.loads(kubectl("get", kinds, "--all-namespaces", selector, "-o", "json"))
    assert left["items"] == []
    kubectl("run", "-n", team, "later", f"--image={BUSYBOX}", "--dry-run=server")
