"""Ask an injector for a pod's sidecar, and tell from the answer whether it gave one.

Only the question and the meaning of its answers may live here; somebody else asks. The pod looks
like one of a Job, because that is whose start depends on native sidecars, and asks for a sidecar by
the annotation that beats istiod's policy and that no webhook's selector sees. It is never created.

The injector itself is asked for a native sidecar: Istio 1.24 to 1.28 makes them on request only
where a kubelet is older than 1.33. A dry run that is to show whether it injects at all does not ask
for one, because what a later webhook has against native sidecars says nothing of the injector.
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
"""How the name of the pod begins; nobody makes the rest of it."""

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
"""A payload that hardly any policy or quota has anything against."""

_ENFORCED = "pod-security.kubernetes.io/enforce"
"""Label of a namespace that may refuse what Istio's own init container needs."""

_UNREADABLE = (ValueError, RecursionError)
"""What decoding raises for bytes that are no JSON, not of the wanted form, or nested too deep."""

_NONE = "it gives a pod that asks for one no sidecar"

_SAID = 300
"""Characters of what another program said that a line for a person has room for."""


class Question(Struct, frozen=True):
    """Which pod an injector is asked about.

    Attributes:
        namespace: of the pod.
        labels: of the pod.
        selected: whether the API server would ask this injector, and no other one, about it.
    """

    namespace: str
    labels: dict[str, str]
    selected: bool = False

    def body(self, *, native: bool | None = None) -> bytes:
        """The pod, as JSON; ``native`` is what it asks for, None if it asks for nothing."""
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
                # What our own admission would ask for is no answer of the injector's.
                "annotations": {INJECT: "true", START: "off", **asked},
            },
            "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": False,
                "containers": [CONTAINER],
            },
        }

    def review(self, uid: str) -> bytes:
        """An AdmissionReview as the API server would send it for a dry run."""
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
    """Choose a pod that the API server would ask ``target`` about, if there can be one now.

    Args:
        target: whom to ask.
        names: of its webhooks, with those of their configurations (`liveness.targets`).
        hooks: all there are.
        namespaces: their labels by their names.
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
    """Yield pods that the API server would ask the injector of `names` about, the best first.

    Args:
        names: as for `question`.
        hooks: all there are.
        namespaces: their labels by their names.
        preferred: selects those that come first; None: none does.
    """
    mine = _mine(names, hooks)
    first = [n for n in namespaces if preferred and preferred.matches(namespaces[n])]
    chosen = {name: namespaces[name] for name in first}
    others = {name: labels for name, labels in namespaces.items() if name not in chosen}
    for some in filter(None, (chosen, others)):
        for hook in mine:
            labels = _selected_by(hook.pods)
            if labels is None:
                continue
            for namespace in _best_first(some):
                if hook.namespaces.matches(some[namespace]) and all(
                    other in mine for other in hooks if _matches(other, some[namespace], labels)
                ):
                    yield Question(namespace, labels, selected=True)


def _mine(names: Collection[tuple[str, str]], hooks: Sequence[Hook]) -> list[Hook]:
    mine = [hook for hook in hooks if (hook.configuration, hook.webhook) in names]
    # matchConditions, which nobody evaluates here, may except the pod.
    return sorted(mine, key=lambda hook: bool(hook.unclear))


def _matches(hook: Hook, namespace: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return hook.namespaces.matches(namespace) and hook.pods.matches(labels)


def _best_first(namespaces: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    found = namespaces.keys() - IGNORED
    enforced = {name for name in found if _ENFORCED in namespaces[name]}
    yield from sorted(found - enforced)
    yield from sorted(enforced)


def _selected_by(selector: Selector) -> dict[str, str] | None:
    """The fewest labels that a selector matches, or None where it contradicts itself."""
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
    """Say what an injector's answer to `Question.review` shows.

    An answer that the API server would not take (apiserver webhook/request/admissionreview.go) is
    none.
    """
    try:
        response = msgspec.json.decode(body, type=_Review).response
    except _UNREADABLE as error:
        return refusal(f"it answered no AdmissionReview: {error}")
    if response.uid != uid:
        return refusal("it answered another question: the uid is not that of the request")
    if not response.allowed:
        said = response.status.message if response.status else ""
        return refusal(f"it refuses a pod: {said or 'no message'}")
    try:
        operations = msgspec.json.decode(response.patch or b"[]", type=tuple[_Operation, ...])
    except _UNREADABLE as error:
        return refusal(f"its patch is no JSON Patch: {error}")
    return _given(name for operation in operations for name in _put(operation))


def created(body: bytes) -> Probe:
    """Say what the API server's answer to a dry run shows; it did not ask for a native sidecar."""
    try:
        pod = pods.decode(body)
    except _UNREADABLE as error:
        return refusal(f"the dry run answered no pod: {error}")
    if any(container.name == PROXY for container in (*pod.containers, *pod.init_containers)):
        return Probe(injected=True)
    return refusal(_NONE)


def refusal(why: str, *, asked: bool = True) -> Probe:
    """What it means that there was no sidecar; of what is told here only one line is kept."""
    return Probe(injected=False, why=" ".join(why.split())[:_SAID], asked=asked)


def _given(containers: Iterator[tuple[str, str]]) -> Probe:
    kinds = {kind for kind, name in containers if name == PROXY}
    if not kinds:
        return refusal(_NONE)
    native = Capability.NATIVE if "initContainers" in kinds else Capability.CLASSIC
    return Probe(injected=True, native=native)


def _put(operation: _Operation) -> Iterator[tuple[str, str]]:
    """Lists of containers and names in them that an operation sets, at whatever depth.

    istiod compares the pod before and after place by place, so that a name may come as a whole
    list, as a container, or alone.
    """
    if operation.op not in {"add", "replace"}:
        return
    value = operation.value
    for part in reversed(operation.path.split("/", 5)[1:]):  # Nothing that matters is deeper.
        value = {part: value}
    spec = _member(value, "spec")
    for kind in ("containers", "initContainers"):
        found = _member(spec, kind)
        if isinstance(found, list):
            items = cast("Collection[object]", found)
        else:
            items = _members(found).values()
        for container in items:
            if isinstance(name := _member(container, "name"), str):
                yield kind, name


def _members(value: object) -> dict[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def _member(value: object, name: str) -> object:
    return _members(value).get(name)
