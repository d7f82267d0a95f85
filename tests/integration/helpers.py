"""What the integration tests ask of Juju and of the cluster."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import jubilant

APP, ISTIO = "istio-aux", "istio-pilot"
ISTIO_CHANNEL = "1.28/stable"  # Of Charmed Kubeflow 1.11.
IMAGE = "istio-aux-image"
PROFILE = "istio-aux-profile"
LOGS = Path("test-results/juju")  # Below the folder in which tox runs.
# kubeflow-profiles, charm and profile controller.
PROFILE_LABELS = (
    "app.kubernetes.io/part-of=kubeflow-profile",
    "istio-injection=enabled",
    "katib.kubeflow.org/metrics-collector-injection=enabled",
    "pipelines.kubeflow.org/enabled=true",
    "serving.kubeflow.org/inferenceservice=enabled",
)
BUSYBOX = "docker.io/library/busybox:1.36"


def kubectl(*arguments: str, stdin: str = "") -> str:
    """Run kubectl on the cluster of the model; return what it printed."""
    command = ["kubectl", *arguments]
    run = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    assert run.returncode == 0, f"{' '.join(command)}: {run.stderr}"
    return run.stdout


def listed(kinds: str, *arguments: str) -> list[dict[str, Any]]:
    """The objects of these kinds."""
    return json.loads(kubectl("get", kinds, *arguments, "-o", "json"))["items"]


def model_of(juju: jubilant.Juju) -> str:
    """The model's name, which is that of its namespace."""
    assert juju.model is not None
    return juju.model.rpartition(":")[2]


def keep_logs(juju: jubilant.Juju) -> None:
    """Write what explains a failure of this model to `LOGS`, as far as Juju answers."""
    folder = LOGS / model_of(juju)
    folder.mkdir(parents=True, exist_ok=True)
    with suppress(jubilant.CLIError):
        (folder / "debug-log.txt").write_text(juju.debug_log())
        (folder / "status.txt").write_text(juju.cli("status", "--relations", "--storage"))
    for kinds in ("events", "pods"):
        with suppress(AssertionError):
            (folder / f"{kinds}.yaml").write_text(kubectl("get", kinds, "-A", "-o", "yaml"))


def webhooks(juju: jubilant.Juju) -> list[dict[str, Any]]:
    """The webhooks of the application."""
    selector = f"--selector=istio-aux.io/model={model_of(juju)},istio-aux.io/application={APP}"
    (configuration,) = listed("mutatingwebhookconfigurations", selector)
    return configuration["webhooks"]


def deploy(juju: jubilant.Juju, charm: Path | str, image: str, *, trust: bool = True) -> None:
    """Deploy the charm: a path of it, or its channel on Charmhub."""
    resources = {IMAGE: image}
    if str(charm).endswith(".charm"):
        juju.deploy(Path(charm).resolve(), APP, resources=resources, trust=trust)
    else:
        # With the image that was released with it.
        juju.deploy(APP, channel=str(charm), trust=trust)


def remove(juju: jubilant.Juju, *apps: str) -> None:
    """Remove applications with their hooks: what they have in the cluster goes with them."""
    juju.remove_application(*apps)
    juju.wait(lambda status: status.apps.keys().isdisjoint(apps))


def await_active(juju: jubilant.Juju, *apps: str) -> jubilant.Status:
    """Wait until applications are active, by default ours alone; an error ends the wait."""
    apps = apps or (APP,)
    return juju.wait(
        lambda status: jubilant.all_active(status, *apps),
        error=lambda status: jubilant.any_error(status, *apps),
    )


def await_state(juju: jubilant.Juju, ready: Callable[[], bool]) -> None:
    """Wait until the application is active and the cluster is as wanted.

    The status alone may be the one from before a change.
    """
    juju.wait(lambda status: jubilant.all_active(status, APP) and ready())


def message(status: jubilant.Status) -> str:
    """What the first unit says."""
    return status.apps[APP].units[f"{APP}/0"].workload_status.message


def pods(juju: jubilant.Juju) -> set[str]:
    """The UIDs of the application's pods."""
    selector = f"--selector=app.kubernetes.io/name={APP}"
    return {pod["metadata"]["uid"] for pod in listed("pods", "-n", model_of(juju), selector)}


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


def is_started(pod: dict[str, Any]) -> bool:
    """Whether istio-aux has changed how a pod starts."""
    return "istio-aux.io/started-with" in pod["metadata"].get("annotations", {})


def completed(control_plane: str, namespace: str, name: str) -> dict[str, Any]:
    """Run a Job to its end, and return its pod."""
    # It needs the network at once: without its proxy it fails. istiod answers /version with 200.
    url = f"http://istiod.{control_plane}:15014/version"
    main = {"name": "main", "image": BUSYBOX, "command": ["wget", "-q", "-O", "/dev/null", url]}
    pod = {"spec": {"restartPolicy": "Never", "containers": [main]}}
    manifest = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"backoffLimit": 0, "template": pod},
    }
    kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
    kubectl("wait", "-n", namespace, f"job/{name}", "--for=condition=Complete", "--timeout=10m")
    (made,) = listed("pods", "-n", namespace, f"--selector=batch.kubernetes.io/job-name={name}")
    return made


def has_sidecar(pod: dict[str, Any]) -> bool:
    """Whether a pod has Istio's proxy, native or classic."""
    containers = [*pod["spec"]["containers"], *pod["spec"].get("initContainers", [])]
    return "istio-proxy" in {container["name"] for container in containers}
