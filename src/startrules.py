"""The start rules in CEL: which pods the MutatingAdmissionPolicy changes, which the webhook gets.

Pure. The workload has the same rules in `core/start.py`; one table of cases runs through both
(`tests/lab/start_cases.py`). The policy changes pods that have no annotation
`proxy.istio.io/config`. All others are the webhook's, because CEL cannot parse YAML.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

# Spelled as in `core/start.py`, which explains each.
START: Final = "istio-aux.io/start"
STARTED_WITH: Final = "istio-aux.io/started-with"
CONFIG: Final = "proxy.istio.io/config"
HOLD: Final = "holdApplicationUntilProxyStarts: true"
INJECT: Final = "sidecar.istio.io/inject"
NATIVE_SIDECAR: Final = "sidecar.istio.io/nativeSidecar"
INJECTED: Final = "sidecar.istio.io/status"
MIRROR: Final = "kubernetes.io/config.mirror"
DATAPLANE: Final = "istio.io/dataplane-mode"
# Istio's name for the container (istio inject.go ProxyContainerName).
PROXY: Final = "istio-proxy"
MODES: Final = ("auto", "native", "hold", "off")
# What cluster and Istio can do, as in the workload's `core/policy.py`.
NATIVE: Final = "native"
UNKNOWN: Final = "unknown"

# The API server refuses a pod whose annotations exceed 256 KiB (apimachinery
# ValidateAnnotationsSize). CEL counts characters of up to 4 bytes, and a key has at most 317:
# 50 * 317 + 60,000 * 4 leaves room for what is added. The webhook counts bytes.
MAX_ANNOTATIONS: Final = 50
MAX_CHARACTERS: Final = 60_000

_LABELS: Final = "object.metadata.labels"
_ANNOTATIONS: Final = "object.metadata.annotations"
_HAS_ANNOTATIONS: Final = f"has({_ANNOTATIONS})"
_FIRST: Final = "object.spec.containers[0]"


def matches(app: str, selector: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a webhook, or of a policy's `matchConstraints`, that choose pods.

    Args:
        app: name of the application, whose own pods are not chosen.
        selector: Kubernetes LabelSelector of namespaces.
    """
    # An ambient mesh has no sidecars.
    expressions = [*selector.get("matchExpressions", []), _not_in(DATAPLANE, "ambient")]
    return {
        "matchPolicy": "Equivalent",
        "namespaceSelector": {**selector, "matchExpressions": expressions},
        "objectSelector": {
            "matchExpressions": [
                # The label of the model's operator, without which Juju cannot repair any charm.
                {"key": "model.juju.is/disable-webhook", "operator": "DoesNotExist"},
                # With `Fail`, a webhook that matches its own pod blocks its own restart.
                _not_in("app.kubernetes.io/name", app),
            ]
        },
    }


# The API server evaluates every condition of a list, and each twice for a pod that changes: so
# there are few, and the common pod, which has no annotations, decides within a few operators.
_POSSIBLE: Final = {
    "may-have-a-sidecar": (
        "!(has(object.spec.hostNetwork) && object.spec.hostNetwork)"
        f" && !({_HAS_ANNOTATIONS} && '{MIRROR}' in {_ANNOTATIONS})"
    )
}


def webhook_conditions() -> list[dict[str, str]]:
    """Return the `matchConditions` of a webhook that works alone."""
    return _listed(_POSSIBLE)


def policy_conditions(mode: str, capability: str = UNKNOWN) -> list[dict[str, str]]:
    """Return the `matchConditions` of the policy: the pod lacks something that CEL can add.

    A pod that needs no change must not match, because even an empty patch costs the API server
    the encoding and decoding of the pod.
    """
    small = (
        f"size({_ANNOTATIONS}) <= {MAX_ANNOTATIONS} && {_ANNOTATIONS}.map(key,"
        f" size({_ANNOTATIONS}[key])).sum() <= {MAX_CHARACTERS}"
    )
    lacking = (
        f"!{_HAS_ANNOTATIONS} ? {json.dumps(mode != 'off')}"
        f" : {_active(mode)} && ('{INJECTED}' in {_ANNOTATIONS} ? {_only_native()}"
        f" : !('{CONFIG}' in {_ANNOTATIONS}) && !({_has_native(mode, capability)}) && {small})"
    )
    return _listed({**_POSSIBLE, "sidecar-wanted": _wanted(), "lacks-its-start": lacking})


def webhook_conditions_beside_policy(mode: str, capability: str = UNKNOWN) -> list[dict[str, str]]:
    """Return the `matchConditions` of the webhook that gets what the policy leaves.

    They judge the pod as it is, not who changed it: an API server may not know a new policy yet.
    """
    # Istio has injected the pod already, and its payload does not wait for the proxy.
    misplaced = (
        f"object.spec.containers.exists(c, c.name == '{PROXY}')"
        f" && !({_FIRST}.name == '{PROXY}' && has({_FIRST}.lifecycle))"
    )
    left = (
        f"!{_HAS_ANNOTATIONS} ? {json.dumps(mode != 'off')}"
        # The webhook warns the author of a start that does not exist.
        f" : '{START}' in {_ANNOTATIONS} && !({_ANNOTATIONS}['{START}'] in {json.dumps(MODES)})"
        f" || {_active(mode)} && ("
        f"'{INJECTED}' in {_ANNOTATIONS} && ({_only_native()} || {misplaced})"
        f" || ({_native(mode, capability)} && !('{NATIVE_SIDECAR}' in {_ANNOTATIONS}) ? true"
        f" : {_has_native(mode, capability)} ? false"
        f" : !('{CONFIG}' in {_ANNOTATIONS} && {_ANNOTATIONS}['{CONFIG}'] == '{HOLD}')))"
    )
    return _listed({**_POSSIBLE, "sidecar-wanted": _wanted(), "left-by-the-policy": left})


def mutation(mode: str, capability: str = UNKNOWN) -> str:
    """Return the policy's JSON patch for a pod that meets `policy_conditions`.

    Args:
        mode: the start mode.
        capability: what cluster and Istio can do: native, classic or unknown. CEL cannot find
            out, so the charm renders the policy again when it changes.
    """
    native = {NATIVE_SIDECAR: "true", STARTED_WITH: "native"}
    hold = {CONFIG: HOLD, STARTED_WITH: "hold"}
    lacks_native = f"{_native(mode, capability)} && !('{NATIVE_SIDECAR}' in {_ANNOTATIONS})"
    first = (
        f"object.spec.restartPolicy != 'Always' ? {_made(native)} : {_made(hold)}"
        if _by_default(mode, capability)
        else _made(hold)
    )
    return (
        f"!{_HAS_ANNOTATIONS} ? ({first})"
        f" : '{INJECTED}' in {_ANNOTATIONS} ? {_added({STARTED_WITH: 'native'})}"
        f" : {lacks_native} ? {_added(native)} : {_added(hold)}"
    )


def _listed(conditions: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "expression": e} for name, e in conditions.items()]


def _wanted() -> str:
    """CEL: the pod's author does not refuse a sidecar."""
    # istio inject.go injectRequired: a label beats the annotation.
    annotated = (
        f"!({_HAS_ANNOTATIONS} && '{INJECT}' in {_ANNOTATIONS}"
        f" && {_ANNOTATIONS}['{INJECT}'] == 'false')"
    )
    return (
        f"!has({_LABELS}) ? {annotated}"
        f" : !('{DATAPLANE}' in {_LABELS} && {_LABELS}['{DATAPLANE}'] == 'ambient')"
        f" && ('{INJECT}' in {_LABELS} ? {_LABELS}['{INJECT}'] != 'false' : {annotated})"
    )


def _active(mode: str) -> str:
    """CEL: the start mode of an annotated pod is not `off`."""
    own = f"'{START}' in {_ANNOTATIONS} && {_ANNOTATIONS}['{START}']"
    if mode == "off":
        return f"({own} in {json.dumps([each for each in MODES if each != 'off'])})"
    return f"!({own} == 'off')"


def _by_default(mode: str, capability: str) -> bool:
    """Tell whether pods that end become native unless they say something else."""
    return mode == "native" or (mode == "auto" and capability == NATIVE)


def _native(mode: str, capability: str) -> str:
    """CEL: an annotated pod is to be native. It is if its author asks, whether it ends or not."""
    own = f"{_ANNOTATIONS}[?'{START}'].orValue('')"
    asked = f"{own} == 'native'"
    natives = ["native", *(["auto"] if capability == NATIVE else [])]
    if _by_default(mode, capability):
        others = json.dumps([each for each in MODES if each not in natives])
        return f"({asked} || object.spec.restartPolicy != 'Always' && !({own} in {others}))"
    if capability == NATIVE:
        return f"({asked} || object.spec.restartPolicy != 'Always' && {own} == 'auto')"
    return f"({asked})"


def _has_native(mode: str, capability: str) -> str:
    """CEL: the author of an annotated pod asked Istio for a native sidecar, and can have it."""
    asked = f"'{NATIVE_SIDECAR}' in {_ANNOTATIONS} && {_ANNOTATIONS}['{NATIVE_SIDECAR}'] == 'true'"
    return asked if capability == NATIVE else f"{asked} && {_native(mode, capability)}"


def _only_native() -> str:
    """CEL: the pod asked Istio for hold, and Istio made its sidecar native."""
    return (
        f"('{STARTED_WITH}' in {_ANNOTATIONS} && {_ANNOTATIONS}['{STARTED_WITH}'] == 'hold'"
        " && has(object.spec.initContainers) && object.spec.initContainers.exists(c,"
        f" c.name == '{PROXY}' && has(c.restartPolicy) && c.restartPolicy == 'Always'))"
    )


def _made(annotations: Mapping[str, str]) -> str:
    """CEL: the patch for a pod without annotations."""
    return f"[{_operation('', json.dumps(annotations))}]"


def _added(annotations: Mapping[str, str]) -> str:
    """CEL: the patch for a pod that has annotations."""
    operations = [
        # RFC 6901: `~1` stands for a slash.
        _operation("/" + key.replace("/", "~1"), json.dumps(value))
        for key, value in annotations.items()
    ]
    return f"[{', '.join(operations)}]"


def _operation(path: str, value: str) -> str:
    return f"JSONPatch{{op: 'add', path: '/metadata/annotations{path}', value: {value}}}"


def _not_in(key: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": "NotIn", "values": list(values)}
