"""Pods as Istio leaves them, for tests that are not about injection, and facts of such objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from lightkube import ApiError, Client
from lightkube.core.dictmixin import DictMixin
from lightkube.models import core_v1, meta_v1
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Node, Pod

from lab import images

PROXY = "istio-proxy"
Model = TypeVar("Model", bound=DictMixin)


def pod(
    namespace: str,
    name: str,
    *,
    restart_policy: Literal["Never", "OnFailure", "Always"] = "Never",
    payload: Sequence[str] = ("main",),
    sidecar: Literal["classic", "native"] | None = "classic",
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
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
            name=name,
            namespace=namespace,
            annotations=dict(annotations or {}),
            labels=dict(labels or {}),
        ),
        spec=core_v1.PodSpec(
            containers=containers,
            initContainers=init or None,
            restartPolicy=restart_policy,
            terminationGracePeriodSeconds=5,
        ),
    )


def nameless(namespace: str, **what: Any) -> Pod:
    """The same pod with a name that the API server makes up, as for those of a controller."""
    made = pod(namespace, "", **what)
    meta(made).name, meta(made).generateName = None, "worker-"
    return made


def job(of: Pod, marks: Mapping[str, str] | None = None, **spec: Any) -> Job:
    """A Job of pods like this one, under its name; ``marks`` are its labels and annotations."""
    assert of.spec
    metadata = {"name": meta(of).name, "namespace": meta(of).namespace}
    metadata |= {"labels": marks, "annotations": marks} if marks else {}
    return typed(
        Job, {"metadata": metadata, "spec": {"template": {"spec": of.spec.to_dict()}, **spec}}
    )


def written(document: Mapping[str, Any], namespace: str) -> Pod:
    """A pod as its author wrote it, in a namespace."""
    return typed(Pod, {**document, "metadata": {**document["metadata"], "namespace": namespace}})


def _container(name: str, image: str, more: Mapping[str, Any]) -> core_v1.Container:
    return typed(core_v1.Container, {"name": name, "image": image, **more})


def typed(model: type[Model], document: Any) -> Model:
    """An object of this model that says the same as the document."""
    made: Any = model.from_dict(document)
    return made


def meta(found: Any) -> meta_v1.ObjectMeta:
    """The metadata of an object, which the models do not promise."""
    assert found.metadata
    return found.metadata


def delete(client: Client, made: Iterable[Any]) -> None:
    for each in made:
        kind: Any = type(each)
        client.delete(kind, str(meta(each).name), namespace=meta(each).namespace)


def is_gone(client: Client, kind: Any, name: str, namespace: str | None = None) -> bool:
    try:
        client.get(kind, name, namespace=namespace)
    except ApiError as error:
        return error.status.code == 404
    return False


def annotations_of(pod: Pod) -> dict[str, str]:
    return meta(pod).annotations or {}


def has_sidecar(pod: Pod) -> bool:
    assert pod.spec
    return PROXY in {c.name for c in [*pod.spec.containers, *(pod.spec.initContainers or [])]}


def is_ready(found: Pod | Node) -> bool:
    conditions = (found.status and found.status.conditions) or []
    return any(c.type == "Ready" and c.status == "True" for c in conditions)


def proxy_exit_code(pod: Pod) -> int | None:
    """The exit code of the pod's istio-proxy by its status alone; None while it has not ended."""
    status = pod.status or core_v1.PodStatus()
    ended = (
        container.state.terminated.exitCode
        for container in [*(status.containerStatuses or []), *(status.initContainerStatuses or [])]
        if container.name == PROXY and container.state and container.state.terminated
    )
    return next(ended, None)
