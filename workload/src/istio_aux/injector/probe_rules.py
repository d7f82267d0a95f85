"""The pod that a probe sends to an injector, and what the answers mean.

The pod looks like a Job's, because Jobs depend on native sidecars. It asks for a sidecar by the
annotation, which beats istiod's policy and which no webhook's selector reads. It is never created.

Each probe sends two pods. The first leaves it to Istio whether the sidecar is native; the second
asks for a native one: Istio 1.24 to 1.28 makes one only on request if a kubelet is older than 1.33.
If the first is refused, a third pod asks for a classic sidecar: a later webhook that refuses native
sidecars says nothing about the injector. Kubelets run native sidecars from 1.29 on (KEP-753).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Literal

import msgspec

from istio_aux.injector.injection import Hook
from istio_aux.injector.rules import NativeCheck, Probe
from istio_aux.model.annotations import INJECT, NATIVE_SIDECAR, START
from istio_aux.model.names import IGNORED
from istio_aux.model.pod import PROXY, Struct, decode
from istio_aux.model.pod_settings import InjectionRequest
from istio_aux.model.policy import Capability
from istio_aux.model.resources import amounts
from istio_aux.model.selectors import NamespaceSelectors
from istio_aux.model.text import UNDECODABLE, listed, one_line, shortened
from istio_aux.model.webhooks import ClientConfig, Webhook

NAME = "istio-aux-probe-"  # `generateName` of the pod.
WORD = secrets.token_hex(16)
"""A random word of this process, which its dry runs carry. A client that sends our webhook a review
with that word is an API server. No log line of ours may contain it."""

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
_LONGEST = 400  # Characters of a reason; other programs' messages may be long.
_NAMED, _LONG = 3, 80  # Namespaces that a reason names, and characters of why each refuses a pod.
_WEBHOOK = re.compile(r'webhook "([^"]{1,253})"')
_OLDEST = (1, 29)  # The first version whose kubelet runs native sidecars by default.
_ASSURED = (1, 32)  # Kubelets are at most three minor versions older than their API server.
_VERSION = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?!\d)")


UNASKED = NativeCheck(Capability.UNASKED, "sidecars are native unasked")
ON_REQUEST = NativeCheck(Capability.NATIVE, "sidecars are native on request")


def dry_run_pod(
    namespace: str,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    **spec: str,
) -> bytes:
    """The pod that dry runs create, as JSON; ``spec`` adds to its spec."""
    return msgspec.json.encode(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "generateName": NAME,
                "namespace": namespace,
                "labels": labels,
                "annotations": annotations,
            },
            "spec": {"automountServiceAccountToken": False, "containers": [CONTAINER], **spec},
        }
    )


class Question(Struct, frozen=True):
    """A pod for which the API server calls one injector, and no other injector."""

    namespace: str
    labels: dict[str, str]
    unclear: str = ""  # Why it is not known whether the injector is called for it.

    def body(self, native: bool | None = None) -> bytes:
        """Return the pod as JSON; ``native``: what it asks for, None for nothing."""
        # Our own admission must not change the answer.
        requests = {INJECT: "true", START: "none", "probe.istio-aux.io/word": WORD}
        if native is not None:
            requests[NATIVE_SIDECAR] = "true" if native else "false"
        return dry_run_pod(self.namespace, self.labels, requests, restartPolicy="Never")


def questions(
    target: ClientConfig,
    hooks: Sequence[Hook],
    namespaces: Mapping[str, Mapping[str, str]],
    preferred: NamespaceSelectors | None = None,
    terminating: Collection[str] = (),
) -> Iterator[Question]:
    """Yield pods for which the API server calls ``target``, the best first.

    ``hooks`` are of all configurations. ``namespaces`` has labels by name; ``preferred`` namespaces
    come first, and those that are ``terminating`` take no pods.
    """
    # matchConditions, which we do not evaluate, may exclude the pod.
    pairs = [
        (hook, labels)
        for hook in sorted(hooks, key=lambda hook: bool(hook.unclear))
        if hook.target == target and (labels := hook.pods.sample()) is not None
    ]
    first = {n for n in namespaces if preferred and preferred.matches(namespaces[n])}
    for some in (first, namespaces.keys() - first):
        # Namespaces that enforce Pod Security come last: they may refuse Istio's init container. A
        # namespace of ``some`` may have been deleted during the last dry run.
        ordered = sorted(
            namespaces.keys() & some - {*IGNORED, *terminating},
            key=lambda n: (_ENFORCED in namespaces[n], n),
        )
        for (hook, labels), name in product(pairs, ordered):
            where = namespaces.get(name)
            if where is None or not hook.selects(where, labels):
                continue
            if all(each.target == target for each in hooks if each.selects(where, labels)):
                yield Question(name, labels, hook.unclear)


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
    """Say who has refused a dry run.

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


def created(body: bytes, unclear: str = "", *, unasked: bool = False) -> Probe:
    """Interpret the API server's answer to a dry run.

    ``unclear`` says why the injector may not have been called. If another webhook has written a
    refusal into the pod, that is why it has no sidecar. ``unasked``: the pod left it to Istio
    whether its sidecar is native.
    """
    try:
        pod = decode(body)
        proxies = [each for each in (*pod.init_containers, *pod.containers) if each.name == PROXY]
        needs = [dict(amounts(each.resources)) for each in proxies]
    except UNDECODABLE as error:
        return refusal(f"the answer to a dry run is not a pod: {error}")
    if proxies:
        native = UNASKED if unasked else ON_REQUEST
        if pod.has_proxy:
            native = classic("Istio makes no native sidecars, not even on request")
        elif not pod.has_native_proxy:
            native = classic("a webhook after Istio's removes restartPolicy from a native sidecar")
        return Probe(injected=True, native=native, proxy=needs[0])
    injection = InjectionRequest.of(pod)
    if another := injection.said if injection.asks is False else unclear:
        return refusal(f"no sidecar: {another}", reached=False)
    return refusal("it gives no sidecar to a pod that asks for one")


def refusal(why: str, *, reached: bool = True) -> Probe:
    """Return the result of a probe without a sidecar."""
    return Probe(injected=False, why=one_line(why, _LONGEST), reached=reached)


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


def unknown(why: str) -> NativeCheck:
    """Return the result if there was no answer."""
    return NativeCheck(
        Capability.UNKNOWN,
        one_line(f"not known whether sidecars can be native: {why}", _LONGEST),
    )


def classic(why: str) -> NativeCheck:
    """Return the result if a native sidecar is not possible."""
    return NativeCheck(Capability.CLASSIC, one_line(why, _LONGEST))


def _minor(version: str) -> tuple[int, int]:
    match = _VERSION.match(version)
    return (int(match[1]), int(match[2])) if match else (0, 0)
