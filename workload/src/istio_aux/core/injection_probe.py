"""The pod that an injector is asked about, and what its answers mean.

The pod looks like a Job's, because Jobs depend on native sidecars. It asks for a sidecar by the
annotation, which beats istiod's policy and which no webhook's selector reads. It is never created.

The injector itself is asked for a native sidecar: Istio 1.24 to 1.28 makes one only on request if a
kubelet is older than 1.33. A dry run that shows whether it injects at all does not ask for one: an
objection of a later webhook to native sidecars says nothing about the injector.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from istio_aux.core import pod as pods
from istio_aux.core.injection import IGNORED, Hook
from istio_aux.core.liveness import Probe
from istio_aux.core.pod import PROXY, Struct
from istio_aux.core.policy import Capability
from istio_aux.core.selectors import Operator, Selector
from istio_aux.core.start import INJECT, NATIVE_SIDECAR, START
from istio_aux.core.webhooks import ClientConfig

NAME = "istio-aux-probe-"
"""``generateName`` of the pod."""

_SMALL = {"cpu": "1m", "memory": "4Mi"}
CONTAINER = {
    "name": "main",
    "image": "registry.k8s.io/pause:3.10",
    "resources": {"requests": _SMALL, "limits": _SMALL},
    "securityContext": {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "runAsUser": 65535,
        "seccompProfile": {"type": "RuntimeDefault"},
    },
}
"""A payload that almost every policy and quota admits."""

_ENFORCED = "pod-security.kubernetes.io/enforce"

_UNREADABLE = (ValueError, RecursionError)
"""Raised by decoding: not JSON, another type, nested too deeply."""

_NONE = "it gives no sidecar to a pod that asks for one"

_SAID = 300
"""Characters of a reason; other programs' messages may be long."""


class Question(Struct, frozen=True):
    """The pod that an injector is asked about.

    Attributes:
        selected: whether the API server calls this injector for it, and no other one.
    """

    namespace: str
    labels: dict[str, str]
    selected: bool = False

    def body(self, *, native: bool | None = None) -> bytes:
        """Return the pod as JSON; ``native`` is what it asks for, None for nothing."""
        return msgspec.json.encode(self._pod(native))

    def _pod(self, native: bool | None) -> dict[str, Any]:
        asked = {} if native is None else {NATIVE_SIDECAR: "true" if native else "false"}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "generateName": NAME,
                "namespace": self.namespace,
                "labels": self.labels,
                # Our own admission must not change the answer.
                "annotations": {INJECT: "true", START: "off", **asked},
            },
            "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": False,
                "containers": [CONTAINER],
            },
        }

    def review(self, uid: str) -> bytes:
        """Return the AdmissionReview that the API server would send for a dry run."""
        kind = {"group": "", "version": "v1", "kind": "Pod"}
        resource = {"group": "", "version": "v1", "resource": "pods"}
        request = {
            "uid": uid,
            "kind": kind,
            "resource": resource,
            "requestKind": kind,
            "requestResource": resource,
            "namespace": self.namespace,
            "operation": "CREATE",
            "userInfo": {},
            "object": self._pod(native=True),
            "oldObject": None,
            "dryRun": True,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        }
        review = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}
        return msgspec.json.encode({**review, "request": request})


def question(
    target: ClientConfig,
    names: Collection[tuple[str, str]],
    hooks: Sequence[Hook],
    namespaces: Mapping[str, Mapping[str, str]],
) -> Question:
    """Choose a pod for which the API server calls ``target``, if there can be one now.

    Args:
        target: the injector.
        names: of its webhooks and their configurations (`liveness.targets`).
        hooks: of all configurations.
        namespaces: labels by name.
    """
    if found := next(questions(names, hooks, namespaces), None):
        return found
    home = target.service.namespace if target.service else ""
    selected = (_selected_by(hook.pods) for hook in _mine(names, hooks))
    labels = next(filter(None, selected), dict[str, str]())
    return Question("default" if home in {"", *IGNORED} else home, labels)


def questions(
    names: Collection[tuple[str, str]],
    hooks: Sequence[Hook],
    namespaces: Mapping[str, Mapping[str, str]],
    preferred: Selector | None = None,
) -> Iterator[Question]:
    """Yield pods for which the API server calls the injector of ``names``, the best first.

    For the arguments see `question`; ``preferred`` selects namespaces that come first.
    """
    mine = _mine(names, hooks)
    chosen = {n for n in namespaces if preferred and preferred.matches(namespaces[n])}
    for some in (chosen, namespaces.keys() - chosen):
        # Namespaces that may refuse the capabilities of Istio's init container come last.
        ordered = sorted(some - IGNORED, key=lambda n: (_ENFORCED in namespaces[n], n))
        for hook in mine:
            if (labels := _selected_by(hook.pods)) is None:
                continue
            for namespace in ordered:
                where = namespaces[namespace]
                if hook.namespaces.matches(where) and all(
                    other in mine for other in hooks if _matches(other, where, labels)
                ):
                    yield Question(namespace, labels, selected=True)


def _mine(names: Collection[tuple[str, str]], hooks: Sequence[Hook]) -> list[Hook]:
    mine = [hook for hook in hooks if (hook.configuration, hook.webhook) in names]
    # matchConditions, which we do not evaluate, may exclude the pod.
    return sorted(mine, key=lambda hook: bool(hook.unclear))


def _matches(hook: Hook, namespace: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return hook.namespaces.matches(namespace) and hook.pods.matches(labels)


def _selected_by(selector: Selector) -> dict[str, str] | None:
    """Return the fewest labels that match, or None if the selector contradicts itself."""
    labels: dict[str, str] = {}
    for requirement in selector.requirements:
        if requirement.operator is Operator.IN:
            labels[requirement.key] = requirement.values[0]
        elif requirement.operator is Operator.EXISTS:
            labels.setdefault(requirement.key, "true")
    return labels if selector.matches(labels) else None


class _Status(Struct, frozen=True):
    message: str = ""


class _Response(Struct, frozen=True):
    uid: str = ""
    allowed: bool = False
    status: _Status | None = None
    patch: bytes | None = None


class _Review(Struct, frozen=True):
    response: _Response


class _Operation(Struct, frozen=True):
    op: str
    path: str
    value: Any = None


def answered(body: bytes, uid: str) -> Probe:
    """Interpret an injector's answer to `Question.review`.

    What the API server rejects is not an answer (apiserver webhook/request/admissionreview.go).
    """
    try:
        response = msgspec.json.decode(body, type=_Review).response
    except _UNREADABLE as error:
        return refusal(f"its answer is not an AdmissionReview: {error}")
    if response.uid != uid:
        return refusal("its answer has another uid than the request")
    if not response.allowed:
        said = response.status.message if response.status else ""
        return refusal(f"it refuses a pod: {said or 'no message'}")
    try:
        operations = msgspec.json.decode(response.patch or b"[]", type=tuple[_Operation, ...])
    except _UNREADABLE as error:
        return refusal(f"its patch is not a JSON Patch: {error}")
    kinds = {kind for each in operations for kind, name in _put(each) if name == PROXY}
    if not kinds:
        return refusal(_NONE)
    native = Capability.NATIVE if "initContainers" in kinds else Capability.CLASSIC
    return Probe(injected=True, native=native)


def created(body: bytes) -> Probe:
    """Interpret the API server's answer to a dry run that did not ask for a native sidecar."""
    try:
        pod = pods.decode(body)
    except _UNREADABLE as error:
        return refusal(f"the answer to a dry run is not a pod: {error}")
    if any(container.name == PROXY for container in (*pod.containers, *pod.init_containers)):
        return Probe(injected=True)
    return refusal(_NONE)


def refusal(why: str, *, asked: bool = True) -> Probe:
    """Return the result of a probe without a sidecar; ``why`` is cut to one line."""
    return Probe(injected=False, why=" ".join(why.split())[:_SAID], asked=asked)


def _put(operation: _Operation) -> Iterator[tuple[str, Any]]:
    """Yield the container lists and names that an operation sets.

    istiod sends the difference between the pod before and after by index: a name may be part of a
    whole list or of a container, or stand alone.
    """
    if operation.op not in {"add", "replace"}:
        return
    value = operation.value
    for part in reversed(operation.path.split("/", 5)[1:]):  # Container names are not deeper.
        value = {part: value}
    for kind in ("containers", "initContainers"):
        found = _members(_members(value).get("spec")).get(kind)
        items = cast("list[Any]", found) if isinstance(found, list) else _members(found).values()
        yield from ((kind, _members(container).get("name")) for container in items)


def _members(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
