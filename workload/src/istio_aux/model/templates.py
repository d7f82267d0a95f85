"""Kinds of workloads, and the pods that a manifest of each asks for.

A template is read as its controller reads it: training-operator setRestartPolicy and the defaults
of its kinds, JobSet jobset_webhook.go, Argo Workflows workflowpod.go createWorkflowPod.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec

from istio_aux.model.annotations import WORKFLOW_NODE
from istio_aux.model.findings import Code, Remark
from istio_aux.model.owners import TRAINING_KINDS, JobCounts, JobSpec
from istio_aux.model.pod_settings import WISHES

_REPLICAS = {"PyTorchJob": "pytorch", "XGBoostJob": "xgb"}  # Words before ``ReplicaSpecs``.

_JOB = ("spec", "template")
_JOBS = ("spec", "replicatedJobs", "*", "template", *_JOB)
_STEPS = ("spec", "templates", "*")

# Where the pod templates of a kind are, by API group and kind; ``*`` stands for all items of a
# list, or all values of a map. A Pod is its own template, and a TrainJob has none: its runtime has.
WORKLOADS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("", "Pod"): (),
    ("", "ReplicationController"): _JOB,
    ("apps", "DaemonSet"): _JOB,
    ("apps", "Deployment"): _JOB,
    ("apps", "ReplicaSet"): _JOB,
    ("apps", "StatefulSet"): _JOB,
    ("batch", "Job"): _JOB,
    ("batch", "CronJob"): ("spec", "jobTemplate", *_JOB),
    **{
        ("kubeflow.org", kind): (
            "spec",
            f"{_REPLICAS.get(kind, kind.removesuffix('Job').lower())}ReplicaSpecs",
            "*",
            "template",
        )
        for kind in TRAINING_KINDS
    },
    ("jobset.x-k8s.io", "JobSet"): _JOBS,
    ("trainer.kubeflow.org", "TrainJob"): (),
    ("trainer.kubeflow.org", "TrainingRuntime"): ("spec", "template", *_JOBS),
    ("trainer.kubeflow.org", "ClusterTrainingRuntime"): ("spec", "template", *_JOBS),
    ("argoproj.io", "Workflow"): _STEPS,
    ("argoproj.io", "WorkflowTemplate"): _STEPS,
    ("argoproj.io", "ClusterWorkflowTemplate"): _STEPS,
    ("argoproj.io", "CronWorkflow"): ("spec", "workflowSpec", *_STEPS[1:]),
}

# Fields of a Job's spec; other specs with pod templates have none of them.
_COUNTS = ("backoffLimit", "completions", "parallelism", "podFailurePolicy")

Map = dict[str, Any]


class PodTemplate(NamedTuple):
    """Pods that a workload will make."""

    pod: Map  # As its controller would write it; its name ends in ``*``.
    template: Map  # The part of the manifest that it is made of.
    only_metadata: bool  # An Argo Workflows step, whose template has no pod spec.
    job: JobCounts | None = None  # What their Job counts as a failure.
    unread: tuple[Remark, ...] = ()  # Misplaced `WISHES`, with the first template only.


def read(manifest: Map, group: str, kind: str) -> Iterator[PodTemplate]:
    """Yield the pod templates of a manifest, which is of a kind of `WORKLOADS`; of a Pod, itself.

    ValueError: one line with the part of the manifest that cannot be used.
    """
    if kind == "Pod":
        yield PodTemplate(manifest, manifest, only_metadata=False)
        return
    if kind == "TrainJob":
        raise ValueError("a TrainJob has no pod template: give its TrainingRuntime")
    path = WORKLOADS[group, kind]
    metadata = _map(manifest, "metadata")
    name = str(metadata.get("name") or metadata.get("generateName") or "").rstrip("-")
    is_argo = group == "argoproj.io"
    unread = tuple(_unread(manifest, kind, path))
    for names, parent, template in _walk(manifest, path):
        if is_argo:
            ((_, _, workflow),) = _walk(manifest, path[:-2])
            pod = _step(workflow, template)
        else:
            pod = {"metadata": _map(template, "metadata"), "spec": {**_map(template, "spec")}}
            pod["spec"].update(_restarts(group, parent, pod["spec"]))
        if pod:
            pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                **pod,
                "metadata": {
                    **pod["metadata"],
                    "name": "-".join(filter(None, (name, *map(str.lower, names), "*"))),
                    "namespace": metadata.get("namespace"),
                },
            }
            yield PodTemplate(
                pod,
                template,
                is_argo,
                JobCounts.of(msgspec.convert({key: parent.get(key) for key in _COUNTS}, JobSpec)),
                unread,
            )
            unread = ()


def _unread(manifest: Map, kind: str, path: Sequence[str]) -> Iterator[Remark]:
    """Name `WISHES` on objects above the pod templates, where no controller reads them."""
    there = {key for _, _, template in _walk(manifest, path) for key in _keys(template)}
    for length, following in enumerate(path):
        if following == "*":  # The value is a list of the parts, or a map of them.
            continue
        where = ".".join(path[:length]) or f"the {kind}"
        for _, _, part in _walk(manifest, path[:length]):
            for key in sorted((WISHES & _keys(part)) - there):
                yield Remark(
                    Code.MISPLACED,
                    f"{key} is on {where}, where nothing reads it: put it on"
                    f" {'.'.join(path)}.metadata",
                )


def _keys(part: Map) -> set[str]:
    return {key for kind in ("labels", "annotations") for key in _map(_map(part, "metadata"), kind)}


def _walk(
    value: Any,
    path: Sequence[str],
    where: str = "",
    names: tuple[str, ...] = (),
    parent: Map | None = None,
) -> Iterator[tuple[tuple[str, ...], Map, Map]]:
    """Yield each map at ``path``, the map above it, and the names of what ``*`` stands for."""
    if not path:
        yield names, parent or {}, _checked(value, where)
    elif path[0] == "*":
        for number, (name, item) in enumerate(_items(value, where)):
            yield from _walk(
                item,
                path[1:],
                f"{where}.{name or number}",
                (*names, name),
                parent,
            )
    else:
        above = _checked(value, where)
        place = f"{where}.{path[0]}" if where else path[0]
        yield from _walk(above.get(path[0]), path[1:], place, names, above)


def _items(value: object, where: str) -> Iterator[tuple[str, object]]:
    """Yield the items of a list by their names, or of a map by their keys."""
    if isinstance(value, list):
        for item in cast("list[object]", value):
            name = cast("Map", item).get("name") if isinstance(item, dict) else ""
            yield str(name or ""), item
    else:
        yield from ((str(key), item) for key, item in _checked(value, where).items())


def _checked(value: object, where: str) -> Map:
    if isinstance(value, dict):
        return cast("Map", value)
    raise ValueError(f"{where}{' is missing' if value is None else ': expected an object'}")


def _map(value: Map, key: str) -> Map:
    """A map in a map; an absent map and ``null``, which people write, are empty."""
    return {} if value.get(key) is None else _checked(value[key], key)


def _restarts(group: str, parent: Map, spec: Map) -> Map:
    """Return what the controller sets in the spec of a pod."""
    if group == "kubeflow.org":  # The policy of the replica counts, whatever the template says.
        policy = parent.get("restartPolicy") or "Never"
        return {"restartPolicy": "Never" if policy == "ExitCode" else policy}
    is_set = group in {"jobset.x-k8s.io", "trainer.kubeflow.org"}
    return {"restartPolicy": "OnFailure"} if is_set and not spec.get("restartPolicy") else {}


def _step(workflow: Map, template: Map) -> Map | None:
    """The pod of a step; None for a step that is no pod, such as a DAG."""
    kinds = [each for each in _STEPS_WITH_PODS if template.get(each) is not None]
    if not kinds:
        return None
    if kinds == ["containerSet"]:
        containers = [
            item
            for _, item in _items(
                _map(template, "containerSet").get("containers"), "containerSet.containers"
            )
        ]
    else:
        containers = [{**_map(template, kinds[0]), "name": "main"}]
    common = _map(workflow, "podMetadata")
    own = _map(template, "metadata")
    metadata = {key: {**_map(common, key), **_map(own, key)} for key in ("labels", "annotations")}
    metadata["annotations"].setdefault(WORKFLOW_NODE, "*")
    sidecars = _items(template.get("sidecars") or [], "sidecars")
    return {
        "metadata": metadata,
        "spec": {
            "restartPolicy": "Never",
            "hostNetwork": workflow.get("hostNetwork"),
            "initContainers": template.get("initContainers"),
            "containers": [{"name": "wait"}, *containers, *(item for _, item in sidecars)],
        },
    }


_STEPS_WITH_PODS = ("container", "script", "containerSet", "resource", "data")
