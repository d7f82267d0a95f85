"""Which pods are changed at admission, and how: the rules of the workload's `core/start.py` in CEL.

Pure. One table of cases is run through both forms (`tests/lab/start_cases.py`). Wherever CEL
cannot tell what is to be done, it leaves the pod to the webhook.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import celmerge

# Spelled as in `core/start.py`, where each is explained.
START: Final = "istio-aux.io/start"
STARTED_WITH: Final = "istio-aux.io/started-with"
CONFIG: Final = "proxy.istio.io/config"
INJECT: Final = "sidecar.istio.io/inject"
NATIVE_SIDECAR: Final = "sidecar.istio.io/nativeSidecar"
INJECTED: Final = "sidecar.istio.io/status"
MIRROR: Final = "kubernetes.io/config.mirror"
DATAPLANE: Final = "istio.io/dataplane-mode"
# Istio's own name for the container (istio inject.go ProxyContainerName).
PROXY: Final = "istio-proxy"
MODES: Final = ("auto", "native", "hold", "off")
# Of the workload's `core/policy.py`: what cluster and Istio can do.
NATIVE: Final = "native"
UNKNOWN: Final = "unknown"

# What annotations may have in all (apimachinery ValidateAnnotationsSize), less what is added but
# for the text. For a pod that gets nearer to it, the webhook counts.
_FULL: Final = (256 << 10) - 1024
# CEL adds their sizes up in quadratic time: 30,000 took 8 s. Pods have some dozens.
_MANY: Final = 200

_LABELS: Final = "object.metadata.?labels"
_ANNOTATIONS: Final = "object.metadata.?annotations"
_FIRST: Final = "object.spec.containers[0]"
_HAS_PROXY: Final = f"object.spec.containers.exists(c, c.name == '{PROXY}')"

# What both forms ask of a pod.
_ALWAYS: Final = {
    "not-host-network": "!has(object.spec.hostNetwork) || !object.spec.hostNetwork",
    "not-mirror-pod": f"!('{MIRROR}' in {_ANNOTATIONS}.orValue({{}}))",
}


def matches(app: str, selector: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a webhook, or of a policy's `matchConstraints`, that choose pods.

    Args:
        app: name of the application, whose own pods are not chosen.
        selector: Kubernetes LabelSelector of namespaces.
    """
    # In an ambient mesh there are no sidecars.
    expressions = [*selector.get("matchExpressions", []), _not_in(DATAPLANE, "ambient")]
    return {
        "matchPolicy": "Equivalent",
        "namespaceSelector": {**selector, "matchExpressions": expressions},
        "objectSelector": {
            "matchExpressions": [
                # Juju marks the model's operator so: without it no charm of the model could be
                # repaired.
                {"key": "model.juju.is/disable-webhook", "operator": "DoesNotExist"},
                # With `Fail`, a webhook that matches its own pod blocks its own restart.
                _not_in("app.kubernetes.io/name", app),
            ]
        },
    }


def policy_conditions(mode: str) -> list[dict[str, str]]:
    """Return the policy's `matchConditions`: it is no business of ours without."""
    # istio inject.go injectRequired: the label, if there is one, beats the annotation.
    inject = f"{_LABELS}[?'{INJECT}'].or({_ANNOTATIONS}[?'{INJECT}'])"
    wanted = {
        "sidecar-wanted": f"{inject}.orValue('') != 'false'",
        "not-ambient": f"{_LABELS}[?'{DATAPLANE}'].orValue('') != 'ambient'",
        "start-wanted": f"{_ANNOTATIONS}[?'{START}'].orValue('{mode}') != 'off'",
    }
    return [{"name": n, "expression": e} for n, e in {**_ALWAYS, **wanted}.items()]


def webhook_conditions(mode: str | None, capability: str = UNKNOWN) -> list[dict[str, str]]:
    """Return the webhook's `matchConditions`.

    Args:
        mode: the start mode, where the policy is there as well: then the webhook is called only
            for pods that still are not as they should be, or whose author is to be warned. It goes
            by the pod, not by what once was done to it: of a policy that is new, not every API
            server knows yet.
        capability: as for `variables`.
    """
    if mode is None:
        return [{"name": n, "expression": e} for n, e in _ALWAYS.items()]
    mine = "annotations"
    undone = (
        # The author is to be told.
        f"!({mine}[?'{START}'].orValue('auto') in {json.dumps(MODES)})"
        # Injected otherwise, or so that the payload may not be held back.
        f" || ('{INJECTED}' in {mine} && ({_outdone(mine)} || {_HAS_PROXY}"
        f" && !({_FIRST}.name == '{PROXY}' && has({_FIRST}.lifecycle))))"
        f" || ({_native(mine, mode, capability)} && !('{NATIVE_SIDECAR}' in {mine}) ? true :"
        f" {_has_native(mine, _native(mine, mode, capability), capability)} ? false"
        f" : ![{mine}[?'{CONFIG}'].orValue('')].exists(text, {celmerge.settled('text')}))"
    )
    # A comprehension over one element is how CEL gives a value a name.
    left = f"[{_ANNOTATIONS}.orValue({{}})].exists({mine}, {undone})"
    return [*policy_conditions(mode), {"name": "left-by-the-policy", "expression": left}]


def variables(mode: str, capability: str = UNKNOWN) -> dict[str, str]:
    """Return the policy's `variables`; the last, `changes`, are the annotations to be written.

    Args:
        mode: the start mode.
        capability: what cluster and Istio can do: native, classic or unknown. CEL cannot ask for
            it, so that the policy is rendered again when it changes.
    """
    annotations, text, merged = "variables.annotations", "variables.text", "variables.merged"
    size = f"{annotations}.map(k, size(bytes(k)) + size(bytes({annotations}[k]))).sum()"
    many = f"size({annotations}) > {_MANY} || {size} + size({merged}) > {_FULL}"
    native = json.dumps({NATIVE_SIDECAR: "true", STARTED_WITH: "native"})
    return {
        "annotations": f"{_ANNOTATIONS}.orValue({{}})",
        "text": f"{annotations}[?'{CONFIG}'].orValue('')",
        "merged": celmerge.merged(text),
        "native": _native(annotations, mode, capability),
        "off": f"{_mode(annotations, mode)} == 'off'",
        "outdone": _outdone(annotations),
        "changes": (
            f"variables.off || {many} ? {{}} :"
            f" '{INJECTED}' in {annotations}"
            f" ? (variables.outdone ? {{'{STARTED_WITH}': 'native'}} : {{}}) :"
            # A text that CEL does not know may say no to hold, or be one that Istio refuses.
            f" variables.native && !('{NATIVE_SIDECAR}' in {annotations})"
            f" ? ({merged} == '' ? {{}} : {native}) :"
            f" {_has_native(annotations, 'variables.native', capability)} ? {{}} :"
            f" {merged} == '' ? {{}} : {{'{CONFIG}': {merged}, '{STARTED_WITH}': 'hold'}}"
        ),
    }


def _mode(annotations: str, mode: str) -> str:
    """The start mode of the pod at hand; one that does not exist is ignored."""
    own = f"{annotations}[?'{START}'].orValue('{mode}')"
    return f"({own} in {json.dumps(MODES)} ? {own} : '{mode}')"


def _native(annotations: str, mode: str, capability: str) -> str:
    """Native is for pods that end, unless an author asks for it for the pod at hand."""
    asked = f"{annotations}[?'{START}'] == optional.of('native')"
    ends = f"(object.spec.restartPolicy != 'Always' || {asked})"
    modes = ["native", "auto"] if capability == NATIVE else ["native"]
    return f"({_mode(annotations, mode)} in {json.dumps(modes)} && {ends})"


def _has_native(annotations: str, native: str, capability: str) -> str:
    """The author has asked Istio for it, which is left as it is where it can be had."""
    asked = f"{annotations}[?'{NATIVE_SIDECAR}'].orValue('') == 'true'"
    return asked if capability == NATIVE else f"{native} && {asked}"


def _outdone(annotations: str) -> str:
    """Hold was asked for, and Istio made the sidecar native of its own accord."""
    return (
        f"({annotations}[?'{STARTED_WITH}'].orValue('') == 'hold'"
        " && object.spec.?initContainers.orValue([])"
        f".exists(c, c.name == '{PROXY}' && c.?restartPolicy.orValue('') == 'Always'))"
    )


def _not_in(key: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": "NotIn", "values": list(values)}
