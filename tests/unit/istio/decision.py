"""The stand-in's answers to an AdmissionReview, as istiod's: inject, leave alone, refuse. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any

from unit.istio import proxyconfig, sidecar

INJECT = "sidecar.istio.io/inject"
# istio initializer.go IgnoredNamespaces
IGNORED = frozenset({"kube-system", "kube-public", "kube-node-lease", "local-path-storage"})


def answer(
    review: Mapping[str, Any], template: sidecar.Template, *, native: bool
) -> tuple[dict[str, Any], str]:
    """The response to an AdmissionReview, and why; `native` is for pods that do not say."""
    request = review["request"]
    pod, namespace = request["object"], request.get("namespace", "")
    response: dict[str, Any] = {"uid": request["uid"], "allowed": True}
    reason = why_not(pod, namespace)
    if reason is None:
        if template.native != "never":
            asked = pod["metadata"].get("annotations") or {}
            native = sidecar.is_native(asked, native)
        try:
            injected = sidecar.inject(pod, namespace, template, native=native)
        except proxyconfig.InvalidConfigError as error:
            reason = f"refused: {error}"
            response |= {"allowed": False, "status": {"metadata": {}, "message": str(error)}}
        else:
            reason = "injected natively" if native else "injected"
            patch = json.dumps(list(diff(pod, injected))).encode()
            response |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch).decode()}
    return {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "response": response,
    }, reason


def why_not(pod: Mapping[str, Any], namespace: str) -> str | None:
    """Why the pod gets no sidecar; None when it gets one (istio inject.go injectRequired).

    The never- and alwaysInjectSelector of the installation are not emulated.
    """
    metadata, spec = pod["metadata"], pod["spec"]
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    if spec.get("hostNetwork"):
        return "left alone: hostNetwork"
    if namespace in IGNORED:
        return f"left alone: namespace {namespace} is ignored"
    # The label beats the annotation; a value that is neither "true" nor "false" means the default.
    if labels.get(INJECT, annotations.get(INJECT)) == "false":
        return f"left alone: {INJECT} is false"
    if sidecar.STATUS_ANNOTATION in annotations:
        return "left alone: already has a sidecar"
    return None


def diff(old: Any, new: Any, path: str = "") -> Iterator[dict[str, Any]]:
    """A JSON Patch from `old` to `new`, by index like Istio's: what is put in front changes all."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old.keys() - new.keys():
            yield {"op": "remove", "path": _join(path, key)}
        for key, value in new.items():
            if key in old:
                yield from diff(old[key], value, _join(path, key))
            else:
                yield {"op": "add", "path": _join(path, key), "value": value}
    elif isinstance(old, list) and isinstance(new, list) and len(new) >= len(old):
        for index, value in enumerate(new[len(old) :], len(old)):
            yield {"op": "add", "path": _join(path, index), "value": value}
        for index, (before, after) in enumerate(zip(old, new, strict=False)):
            yield from diff(before, after, _join(path, index))
    elif old != new:
        yield {"op": "replace", "path": path, "value": new}


def _join(path: str, key: str | int) -> str:
    return f"{path}/{str(key).replace('~', '~0').replace('/', '~1')}"
