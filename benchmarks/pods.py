"""The pods of the benchmark, made from a recorded pod: request bodies for the driver. Data only.

The recording is a batch Job's pod as Istio 1.28 and a real kubelet left it, its payload finished.
What a server sets is taken out, and its owner and finalizer, whose controllers are not there.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

Object = dict[str, Any]

RECORDING = Path(__file__).parents[1] / "tests/data/demo/pod-classic-before-quit.json"
NAME, NAMESPACE, NOW, NUMBER = "@NAME@", "@NAMESPACE@", "@NOW@", "@NUMBER@"
"""The driver replaces these in every body: names of pod and namespace, present second, number of
the patch."""
OWNER = "@OWNER@"
"""The name of a controller."""
INJECT = "sidecar.istio.io/inject"

PROXY, PAYLOAD = "istio-proxy", "main"
_LEFT_OUT = frozenset(
    {
        "creationTimestamp", "finalizers", "generateName", "generation", "managedFields",
        "ownerReferences", "resourceVersion", "uid",
    }
)  # fmt: skip


def bodies(node: str) -> dict[str, str]:
    """The pod to create, bound to ``node``, and what it is patched with, as JSON by name.

    ``light``: no managedFields. All others are of the status.

    ``running``: all containers run. ``finished``: the payload has exited with 0, the proxy runs.
    ``finish``: the way from the one to the other. ``touched``: a change that decides nothing.
    ``exited``: the proxy has exited with 0 as well. ``over``: the pod is Succeeded, which a kubelet
    writes once it has stopped the pod (kubelet status_manager.go mergePodStatus).
    """
    recorded = json.loads(RECORDING.read_text())
    metadata = {k: v for k, v in recorded["metadata"].items() if k not in _LEFT_OUT}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, "name": NAME, "namespace": NAMESPACE},
        "spec": {**recorded["spec"], "nodeName": node},
    }
    status = recorded["status"]
    running, finished = _with_payload(status, ended=False), _with_payload(status, ended=True)
    # Container statuses are one value to a patch; conditions are merged by type.
    finish = {key: finished[key] for key in ("conditions", "containerStatuses")}
    touched = [{"type": "Ready", "status": "True", "message": NUMBER, "lastTransitionTime": NOW}]
    patches = {
        "running": running,
        "finished": finished,
        "finish": finish,
        "touched": {"conditions": touched},
        "exited": _end(finish, PROXY),
        "over": {"phase": "Succeeded"},
    }
    return {
        "pod": json.dumps(pod),
        "light": json.dumps({"metadata": {"managedFields": [{}]}}),
        **{name: json.dumps({"status": patch}) for name, patch in patches.items()},
    }


def crowd(node: str) -> dict[str, str]:
    """What a large cluster has beside `bodies`, as JSON by name.

    Pods, each of a controller: ``job`` has a proxy, ``unmeshed`` lacks it, ``other`` is no Job's
    and needs none, ``refusing`` needs none in a namespace that is injected. ``alone``: the status
    of those without a proxy.
    """
    made = json.loads(bodies(node)["pod"])
    status = json.loads(bodies(node)["running"])["status"]
    alone = {k: v for k, v in status.items() if k not in {"qosClass", "initContainerStatuses"}}
    alone["containerStatuses"] = [c for c in status["containerStatuses"] if c["name"] != PROXY]
    objects: dict[str, Object] = {
        "job": _owned(made, "batch/v1", "Job"),
        "unmeshed": _owned(_without_proxy(made), "batch/v1", "Job"),
        "other": _owned(_without_proxy(made), "apps/v1", "ReplicaSet"),
        "refusing": _owned(_without_proxy(made), "apps/v1", "ReplicaSet"),
        "alone": {"status": alone},
    }
    for name in ("other", "refusing"):
        objects[name]["spec"]["restartPolicy"] = "Always"
    objects["refusing"]["metadata"]["labels"][INJECT] = "false"
    return {name: json.dumps(each) for name, each in objects.items()}


def _owned(pod: Object, api: str, kind: str) -> Object:
    made = copy.deepcopy(pod)
    owner = {"apiVersion": api, "kind": kind, "name": OWNER, "uid": f"{OWNER}-{NAMESPACE}"}
    made["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    return made


def _without_proxy(pod: Object) -> Object:
    """The pod as it would be if Istio had not changed it."""
    made = copy.deepcopy(pod)
    made["metadata"]["annotations"] = {}
    made["metadata"]["labels"] = {"app": OWNER}
    made["spec"].pop("initContainers")
    made["spec"]["containers"] = [c for c in made["spec"]["containers"] if c["name"] != PROXY]
    return made


def _with_payload(status: Object, *, ended: bool) -> Object:
    """The recorded status with its payload ended now, or still running."""
    if ended:
        return _end(status, PAYLOAD)
    made = copy.deepcopy(status)
    payload = _container(made, PAYLOAD)
    payload["state"] = {"running": {"startedAt": payload["state"]["terminated"]["startedAt"]}}
    payload["ready"] = payload["started"] = True
    for condition in made["conditions"]:
        condition["status"] = "True"
        condition.pop("reason", None)
        condition.pop("message", None)
    return made


def _end(status: Object, name: str) -> Object:
    """The status with one container ended now, with exit code 0."""
    made = copy.deepcopy(status)
    container = _container(made, name)
    started = next(iter(container["state"].values()))["startedAt"]
    container["state"] = {
        "terminated": {
            "containerID": container["containerID"],
            "exitCode": 0,
            "reason": "Completed",
            "startedAt": started,
            "finishedAt": NOW,
        }
    }
    container["ready"] = container["started"] = False
    return made


def _container(status: Object, name: str) -> Object:
    return next(found for found in status["containerStatuses"] if found["name"] == name)
