"""The pod that a probe sends to an injector, and what the answers mean.

The pod looks like a Job's, because Jobs depend on native sidecars. It asks for a sidecar by the
annotation, which beats istiod's policy and which no webhook's selector reads. It is never created.

The probe of the injector itself requests a native sidecar: Istio 1.24 to 1.28 makes one only on
request if a kubelet is older than 1.33. A dry run that shows whether it injects at all does not ask
for one: an objection of a later webhook to native sidecars says nothing about the injector. A
second dry run shows whether Istio makes a native sidecar and whether later webhooks keep it.
Kubelets run native sidecars from 1.29 on (KEP-753).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Literal, cast

import msgspec

from istio_aux.injector.injection import Hook
from istio_aux.injector.rules import NOT_CHECKED, NativeCheck, Probe
from istio_aux.model import pod as pods
from istio_aux.model.annotations import INJECT, NATIVE_SIDECAR, START
from istio_aux.model.names import IGNORED
from istio_aux.model.pod import PROXY, Struct
from istio_aux.model.policy import Capability
from istio_aux.model.selectors import NamespaceSelectors
from istio_aux.model.text import listed, one_line, shortened
from istio_aux.model.webhooks import TIMEOUT, ClientConfig, Webhook

NAME = "istio-aux-probe-"  # `generateName` of the pod.

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

TEMPORARY = frozenset({401, 408, 429, 503, 504})  # HTTP statuses.
_ENFORCED = "pod-security.kubernetes.io/enforce"
_NO_SIDECAR = "it gives no sidecar to a pod that asks for one"
_UNREADABLE = (ValueError, RecursionError)
_LONGEST = 400  # Characters of a reason; other programs' messages may be long.
_NAMED, _LONG = 3, 80  # Namespaces that a reason names, and characters of why each refuses a pod.
_WEBHOOK = re.compile(r'webhook "([^"]{1,253})"')
_OLDEST = (1, 29)  # The first version whose kubelet runs native sidecars by default.
_ASSURED = (1, 32)  # Kubelets are at most three minor versions older than their API server.
_VERSION = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?!\d)")


def dry_run_pod(
    labels: Mapping[str, str], annotations: Mapping[str, str], **spec: str
) -> dict[str, Any]:
    """The pod that dry runs create, with more of its spec."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": NAME, "labels": labels, "annotations": annotations},
        "spec": {"automountServiceAccountToken": False, "containers": [CONTAINER], **spec},
    }


class Question(Struct, frozen=True):
    """The pod that a probe sends to an injector.

    ``selected`` says whether the API server calls this injector, and no other injector,
    for the pod. ``timeout`` says how many seconds the injector then has.
    """

    namespace: str
    labels: dict[str, str]
    selected: bool = False
    timeout: float = TIMEOUT

    def body(self, *, native: bool | None = None) -> bytes:
        """Return the pod as JSON; ``native``: whether it asks for a native one, None: neither."""
        return msgspec.json.encode(self._pod(native))

    def _pod(self, native: bool | None) -> dict[str, Any]:
        native_wish = {} if native is None else {NATIVE_SIDECAR: "true" if native else "false"}
        # Our own admission must not change the answer.
        annotations = {INJECT: "true", START: "none", **native_wish}
        pod = dry_run_pod(self.labels, annotations, restartPolicy="Never")
        pod["metadata"]["namespace"] = self.namespace
        return pod

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


def questions(
    target: ClientConfig,
    hooks: Sequence[Hook],
    namespaces: Mapping[str, Mapping[str, str]],
    preferred: NamespaceSelectors | None = None,
    going: Collection[str] = (),
) -> Iterator[Question]:
    """Yield pods for which the API server calls ``target``, the best first.

    If there is no such pod, yield a pod that only the injector itself can review. ``hooks`` are of
    all configurations. ``namespaces`` has labels by name; ``preferred`` namespaces come first, and
    those that are ``going`` take no pods.
    """
    # matchConditions, which we do not evaluate, may exclude the pod.
    mine = sorted((h for h in hooks if h.target == target), key=lambda hook: bool(hook.unclear))
    pairs = [(hook, labels) for hook in mine if (labels := hook.pods.sample()) is not None]
    first = {n for n in namespaces if preferred and preferred.matches(namespaces[n])}
    none = True
    for some in (first, namespaces.keys() - first):
        # Namespaces that may refuse the capabilities of Istio's init container come last. Some may
        # be gone since: an answer takes its time.
        there = namespaces.keys() & some - {*IGNORED, *going}
        ordered = sorted(there, key=lambda n: (_ENFORCED in namespaces[n], n))
        for (hook, labels), name in product(pairs, ordered):
            where = namespaces.get(name)
            if where is None or not hook.selects(where, labels):
                continue
            if all(each.target == target for each in hooks if each.selects(where, labels)):
                none = False
                yield Question(name, labels, selected=True, timeout=hook.timeout)
    if none:
        home = target.service.namespace if target.service else ""
        wanted = next((labels for _, labels in pairs if labels), dict[str, str]())
        name = "default" if home in {"", *IGNORED} else home
        yield Question(name, wanted, timeout=min((h.timeout for h in mine), default=TIMEOUT))


def in_turn(found: Iterable[Question], last: Question | None) -> Iterator[Question]:
    """Yield the questions from the ``last`` one on, then those before it."""
    before = list[Question]()
    for each in found:
        if last is None or each == last:
            last = None
            yield each
        else:
            before.append(each)
    yield from before


def concerns(code: int, message: str) -> Literal["injector", "namespace", "API server"]:
    """Say whose answer the refusal of a dry run is.

    Only the message names a webhook that fails or refuses the pod (apiserver webhook/mutating/
    dispatcher.go, webhook/errors/statuserror.go). A namespace that is being deleted, quotas, Pod
    Security, other webhooks and policies say nothing of the injector.
    """
    if webhook := _WEBHOOK.search(message):
        return "injector" if Webhook(name=webhook[1]).is_istios else "namespace"
    return "API server" if code in TEMPORARY or code >= 500 else "namespace"


def refused_in(refusals: Mapping[str, str]) -> str:
    """Say which namespaces refuse any pod, with the API server's messages by name."""
    whys = [
        f"{name}: {shortened(why.partition(' is forbidden: ')[2] or why, _LONG)}"
        for name, why in refusals.items()
    ]
    return f"namespaces refuse the pod: {listed(whys, '; ', most=_NAMED)}"


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

    What the API server rejects is no answer (apiserver webhook/request/admissionreview.go).
    """
    try:
        response = msgspec.json.decode(body, type=_Review).response
    except _UNREADABLE as error:
        return refusal(f"its answer is not an AdmissionReview: {error}")
    if response.uid != uid:
        return refusal("its answer has another uid than the request")
    if not response.allowed:
        message = response.status.message if response.status else ""
        return refusal(f"it refuses a pod: {message or 'no message'}")
    try:
        operations = msgspec.json.decode(response.patch or b"[]", type=tuple[_Operation, ...])
    except _UNREADABLE as error:
        return refusal(f"its patch is not a JSON Patch: {error}")
    lists = {where for each in operations for where, name in _put(each) if name == PROXY}
    if not lists:
        return refusal(_NO_SIDECAR)
    # A native one has yet to pass the webhooks after Istio's.
    return Probe(injected=True, native=NOT_CHECKED if "initContainers" in lists else _NEVER)


def created(body: bytes) -> Probe:
    """Interpret the API server's answer to a dry run that did not ask for a native sidecar."""
    try:
        pod = pods.decode(body)
    except _UNREADABLE as error:
        return refusal(f"the answer to a dry run is not a pod: {error}")
    if pod.names_proxy:
        return Probe(injected=True)
    return refusal(_NO_SIDECAR)


def refusal(why: str, *, reached: bool = True) -> Probe:
    """Return the result of a probe without a sidecar."""
    return Probe(injected=False, why=one_line(why, _LONGEST), reached=reached)


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
    for where in ("containers", "initContainers"):
        containers = _members(_members(value).get("spec")).get(where)
        items = (
            cast("list[Any]", containers)
            if isinstance(containers, list)
            else _members(containers).values()
        )
        yield from ((where, _members(container).get("name")) for container in items)


def _members(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def kubelets_assured(version: str) -> bool:
    """Whether every kubelet of an API server with this version runs native sidecars."""
    return _minor(version) >= _ASSURED


def of_kubelets(versions: Mapping[str, str]) -> NativeCheck | None:
    """Judge by kubelet versions by node; None if all of them run native sidecars."""
    for node, version in sorted(versions.items()):
        if _minor(version) < _OLDEST:
            return classic(
                f'node {node}: kubelet "{version}" runs no native sidecars; they need 1.29'
            )
    return None if versions else unknown("there is no node")


def of_dry_run(body: bytes) -> NativeCheck:
    """Judge by the answer to a dry run of a pod that asks for a native sidecar."""
    try:
        pod = pods.decode(body)
    except _UNREADABLE as error:
        return unknown(f"the answer to a dry run is not a pod: {error}")
    for container in pod.init_containers:
        if container.name == PROXY:
            if container.restart_policy == "Always":
                return NativeCheck(Capability.NATIVE, "sidecars are native on request")
            return classic("a webhook after Istio's removes restartPolicy from a native sidecar")
    if pod.has_proxy:
        return _NEVER
    return unknown("a dry run shows no sidecar")


def unknown(why: str) -> NativeCheck:
    """Return the result if there was no answer."""
    line = one_line(f"not known whether sidecars can be native: {why}", _LONGEST)
    return NativeCheck(Capability.UNKNOWN, line)


def classic(why: str) -> NativeCheck:
    """Return the result if a native sidecar is not possible."""
    return NativeCheck(Capability.CLASSIC, one_line(why, _LONGEST))


def _minor(version: str) -> tuple[int, int]:
    match = _VERSION.match(version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


_NEVER = classic("Istio makes no native sidecars, not even on request")
