"""Pods as Istio leaves them, for tests that are not about injection, and facts of such pods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from lightkube.models import core_v1, meta_v1
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Pod

from lab import images

PROXY = "istio-proxy"


def pod(
    namespace: str,
    name: str,
    *,
    restart_policy: Literal["Never", "OnFailure", "Always"] = "Never",
    payload: Sequence[str] = ("main",),
    sidecar: Literal["classic", "native"] | None = "classic",
    annotations: Mapping[str, str] | None = None,
    more: Mapping[str, Mapping[str, Any]] | None = None,
) -> Pod:
    """A pod with these payload containers and, unless ``sidecar`` is None, an istio-proxy.

    The classic proxy stands last, where Istio puts it without hold. ``more`` are further fields of
    containers, by name and as Kubernetes spells them: ``{"main": {"restartPolicy": "Never"}}``.
    """
    more = more or {}
    containers = [_container(n, images.BUSYBOX, more.get(n, {})) for n in payload]
    init = [core_v1.Container(name="istio-init", image=images.PROXYV2)] if sidecar else []
    proxy = _container(PROXY, images.PROXYV2, {"args": ["proxy", "sidecar"], **more.get(PROXY, {})})
    if sidecar == "classic":
        containers.append(proxy)
    elif sidecar == "native":
        proxy.restartPolicy = "Always"
        init.append(proxy)
    return Pod(
        metadata=meta_v1.ObjectMeta(
            name=name, namespace=namespace, annotations=dict(annotations or {})
        ),
        spec=core_v1.PodSpec(
            containers=containers,
            initContainers=init or None,
            restartPolicy=restart_policy,
            terminationGracePeriodSeconds=5,
        ),
    )


def nameless(namespace: str, *, labels: Mapping[str, str] | None = None, **what: Any) -> Pod:
    """The same pod with a name that the API server makes up, as for those of a controller."""
    made = pod(namespace, "", **what)
    assert made.metadata
    made.metadata.name, made.metadata.generateName = None, "worker-"
    made.metadata.labels = dict(labels or {})
    return made


def job(of: Pod, marks: Mapping[str, str] | None = None, **spec: Any) -> Job:
    """A Job of pods like this one, under its name; ``marks`` are its labels and annotations."""
    assert of.metadata
    assert of.spec
    metadata = {"name": of.metadata.name, "namespace": of.metadata.namespace}
    metadata |= {"labels": marks, "annotations": marks} if marks else {}
    template = {"spec": of.spec.to_dict()}
    made = Job.from_dict({"metadata": metadata, "spec": {"template": template, **spec}})
    assert isinstance(made, Job)
    return made


def written(document: Mapping[str, Any], namespace: str) -> Pod:
    """A pod as its author wrote it, in a namespace."""
    metadata = {**document["metadata"], "namespace": namespace}
    pod = Pod.from_dict({**document, "metadata": metadata})
    assert isinstance(pod, Pod)
    return pod


def _container(name: str, image: str, more: Mapping[str, Any]) -> core_v1.Container:
    container = core_v1.Container.from_dict({"name": name, "image": image, **more})
    assert isinstance(container, core_v1.Container)
    return container


def annotations_of(pod: Pod) -> dict[str, str]:
    assert pod.metadata is not None
    return pod.metadata.annotations or {}


def has_sidecar(pod: Pod) -> bool:
    assert pod.spec
    return PROXY in {c.name for c in [*pod.spec.containers, *(pod.spec.initContainers or [])]}


def is_ready(pod: Pod) -> bool:
    conditions = (pod.status and pod.status.conditions) or []
    return any(c.type == "Ready" and c.status == "True" for c in conditions)


def proxy_exit_code(pod: Pod) -> int | None:
    """The exit code of the pod's istio-proxy by its status alone; None while it has not ended."""
    status = pod.status or core_v1.PodStatus()
    for container in [*(status.containerStatuses or []), *(status.initContainerStatuses or [])]:
        if container.name == PROXY and container.state and container.state.terminated:
            return container.state.terminated.exitCode
    return None
