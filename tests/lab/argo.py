"""Argo Workflows 3.7, unmodified: its own manifests and binaries, our images.

Its `cluster-install` without the server. An artifact store is a stand-in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from lightkube import Client
from lightkube.generic_resource import create_namespaced_resource
from lightkube.resources.core_v1 import Pod

from lab import Cluster, images, tools, upstream

NAMESPACE = "argo"
WORKFLOW = "workflows.argoproj.io/workflow"
PORT = 8080
# A stand-in for an artifact store: it takes what Argo's driver `http` sends, in chunks, but answers
# only when somebody has asked for /release, and then logs path and content. It does not: answer
# anything else, or keep anything.
_STORE = r"""
cr=$(printf '\r'); content=; read -r _ path _
while read -r line && line=${line%"$cr"} && [ "$line" != 0 ] && [ "$path$line" != /release ]; do
    content="$content $line"
done
# Something left unread would reset the connection, maybe before the answer arrives.
if [ "$path" = /release ]; then touch /tmp/released; else read -r _; fi
until [ -e /tmp/released ]; do usleep 200000; done
printf 'HTTP/1.1 201 Created\r\nContent-Length: 0\r\nConnection: close\r\n\r\n'
echo "$path: $content" >/proc/1/fd/1
"""

Workflow = create_namespaced_resource("argoproj.io", "v1alpha1", "Workflow", "workflows")


def install(cluster: Cluster) -> None:
    """Start the controller; there is no need to wait, for it finds the Workflows that it missed."""
    place = "/usr/local/bin/workflow-controller"
    cluster.load(images.controller(images.WORKFLOW_CONTROLLER, "workflow-controller", place))
    # It runs as root, as Argo's image of this name does.
    cluster.load(images.controller(images.ARGOEXEC, "argoexec", "/bin/argoexec", user=""))
    upstream.install(cluster, NAMESPACE, _documents())


def allow(client: Client, namespace: str) -> None:
    """Let the pods of Workflows in a namespace report their results, as Argo's documents say."""
    manifests = upstream.module("argoexec", tools.ARGO) / "manifests/quick-start/base"
    role = manifests / "executor/emissary/executor-role.yaml"
    binding = manifests / "executor-default-rolebinding.yaml"
    upstream.apply(client, upstream.built(role, binding, namespace=namespace))


def store() -> dict[str, Any]:
    """A pod that takes artifacts, answers when it is released, and logs them."""
    serve = ["nc", "-ll", "-p", str(PORT), "-e", "sh", "-c", _STORE]
    container = {"name": "store", "image": images.BUSYBOX, "command": serve}
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 1},
    }  # fmt: skip


def release(address: str) -> dict[str, Any]:
    """A pod that has the store at `address` answer everybody."""
    ask = f"wget -qO- http://{address}:{PORT}/release"
    container = {"name": "release", "image": images.BUSYBOX, "command": ["sh", "-c", ask]}
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {},
        "spec": {"containers": [container], "restartPolicy": "OnFailure"},
    }  # fmt: skip


def signalled(client: Client, container: str) -> set[tuple[str, str]]:
    """Namespace and name of the pods in which the controller has tried to end the container."""
    pods = client.list(Pod, namespace=NAMESPACE)
    lines = [
        line
        for pod in pods
        if pod.metadata and pod.metadata.name
        for line in client.log(pod.metadata.name, namespace=NAMESPACE)
    ]
    found = [
        re.search(r" namespace=(\S+) pod=(\S+)", line)
        for line in lines
        if 'msg="signaled container"' in line and f" container={container} " in line
    ]
    return {(match[1], match[2]) for match in found if match}


def workflow(
    script: str, upload: str = "", metadata: dict[str, dict[str, str]] | None = None
) -> dict[str, Any]:
    """A Workflow of one step: it runs `script`, and may `upload` /tmp/model when it has ended."""
    outputs: dict[str, Any] = {
        "parameters": [{"name": "result", "valueFrom": {"path": "/tmp/result", "default": "none"}}]
    }
    if upload:
        plain: dict[str, Any] = {"none": {}}
        outputs["artifacts"] = [
            {"name": "model", "path": "/tmp/model", "archive": plain, "http": {"url": upload}}
        ]
    step = {
        "name": "step",
        "container": {"image": images.BUSYBOX, "command": ["sh", "-c", script]},
        "outputs": outputs,
        "metadata": metadata or {},
    }
    return {
        "apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": {},
        "spec": {"entrypoint": "step", "templates": [step]},
    }  # fmt: skip


def results(workflow: Any) -> list[str]:
    nodes = (workflow.get("status") or {}).get("nodes") or {}
    outputs = [(node.get("outputs") or {}).get("parameters") or [] for node in nodes.values()]
    return [parameter["value"] for parameters in outputs for parameter in parameters]


def _documents() -> Iterator[dict[str, Any]]:
    overlay = upstream.module("workflow-controller", tools.ARGO) / "manifests/cluster-install"
    image = images.WORKFLOW_CONTROLLER
    for document in upstream.built(overlay, image=image, without="argo-server"):
        if document["kind"] == "Deployment":
            [container] = document["spec"]["template"]["spec"]["containers"]
            container["args"] = ["--executor-image", images.ARGOEXEC]
        yield document
