"""Which pods the API server shows the webhooks: selectors, and what CEL says beside them. Pure.

What changes in such a pod is decided in one place, the workload's `start/plan.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from istio_aux.model.annotations import INJECT, MIRROR
from istio_aux.model.applications import EVERY
from istio_aux.model.applications import LABEL as APPLICATION
from istio_aux.model.names import IGNORED, JUJU_PODS, NAMESPACE_NAME, NEVER_SELECTED, START_WEBHOOK

if TYPE_CHECKING:
    from manifests import Values

# Of a pod on the host's network, or of a static one, nothing can start before anything else. It is
# evaluated after the selectors.
CONDITIONS: Final[Sequence[Mapping[str, str]]] = (
    {
        "name": "may-have-a-sidecar",
        "expression": (
            "!(has(object.spec.hostNetwork) && object.spec.hostNetwork)"
            f" && !(has(object.metadata.annotations) && '{MIRROR}' in object.metadata.annotations)"
        ),
    },
)


def selected(values: Values) -> list[dict[str, Any]]:
    """Return the selectors of namespaces, each AND not kube-system."""
    never = _requirement(NAMESPACE_NAME, "NotIn", *NEVER_SELECTED)
    return [_narrowed(selector, never) for selector in values.namespace_selectors]


def inject_webhooks(values: Values) -> Iterator[dict[str, Any]]:
    """Return one webhook for each model with applications that may get a sidecar.

    It shows the workload every pod that the namespace or the pod itself has injected, too, because
    those start after their proxy whatever `namespace-selectors` says. The workload's
    `start/plan.py` decides which of them get the label. Our own pods are not chosen.
    """
    for applications in values.inject:
        own = values.app if applications.model == values.model else None
        chosen = _chosen(applications.names, own)
        if chosen is None or applications.model in IGNORED:
            continue
        named = _requirement(NAMESPACE_NAME, "In", applications.model)
        # A DNS subdomain, unique, and not one of Istio's.
        name = f"{applications.model}.inject.istio-aux.io"
        pods = _narrowed({}, *chosen, _NOT_REFUSED, *_NOT_JUJUS)
        yield _webhook(name, "/inject", {"matchExpressions": [named]}, pods)


def start_webhooks(values: Values) -> Iterator[dict[str, Any]]:
    """Return a webhook for each selector of namespaces, and one for `inject_namespaces` if any.

    `pod_selector` narrows all but the last. Our own pods are not chosen. A pod in a namespace of
    two selectors is reviewed twice: the second review finds nothing to change.
    """
    own, pods = _not_ours(values.app), values.pod_selector
    chosen = {
        f"{number}.{START_WEBHOOK}" if number > 1 else START_WEBHOOK: (selector, pods)
        for number, selector in enumerate(selected(values), 1)
    }
    if values.inject_namespaces:
        named = _requirement(NAMESPACE_NAME, "In", *values.inject_namespaces)
        chosen[f"injected.{START_WEBHOOK}"] = {"matchExpressions": [named]}, {}
    for name, (namespaces, some) in chosen.items():
        yield _webhook(name, "/mutate", namespaces, _narrowed(some, *own))


def _webhook(
    name: str, path: str, namespaces: Mapping[str, Any], pods: Mapping[str, Any]
) -> dict[str, Any]:
    matches = {
        "namespaceSelector": namespaces,
        "matchPolicy": "Equivalent",
        "objectSelector": pods,
    }
    return {"name": name, "path": path, "matches": matches, "conditions": CONDITIONS}


def injected(values: Values) -> dict[str, tuple[str, ...]]:
    """Return applications by namespace, `*` for all pods: those that the workload may act on."""
    by_model = {each.model: each.names for each in values.inject}
    by_model |= dict.fromkeys(values.inject_namespaces, (EVERY,))
    return {name: names for name, names in by_model.items() if name not in IGNORED}


def selector_expression(selector: Mapping[str, Any], labels: str) -> str:
    """Return a LabelSelector as a CEL expression over `labels`, CEL for a map of strings.

    An absent label meets `NotIn`, as everywhere in Kubernetes (apimachinery pkg/labels
    Requirement.Matches).
    """
    required = [_in(key, [value], labels) for key, value in selector.get("matchLabels", {}).items()]
    for requirement in selector.get("matchExpressions", []):
        key, values = requirement["key"], requirement.get("values", [])
        match requirement["operator"]:
            case "In":
                required.append(_in(key, values, labels))
            case "NotIn":
                required.append(f"!({_in(key, values, labels)})")
            case "Exists":
                required.append(f"{json.dumps(key)} in {labels}")
            case "DoesNotExist":
                required.append(f"!({json.dumps(key)} in {labels})")
            case operator:
                raise ValueError(f"{operator}: expected In, NotIn, Exists or DoesNotExist")
    return " && ".join(required) or "true"


def _in(key: str, values: Sequence[str], labels: str) -> str:
    # Labels are ASCII, so JSON strings and lists of them are CEL.
    key = json.dumps(key)
    return f"{key} in {labels} && {labels}[{key}] in {json.dumps(list(values))}"


def _chosen(names: tuple[str, ...], own: str | None) -> list[dict[str, Any]] | None:
    """Return what chooses pods by their application; None if only our own is left."""
    if EVERY in names:
        every = _requirement(APPLICATION, "Exists")
        return [every, _requirement(APPLICATION, "NotIn", own)] if own else [every]
    others = [name for name in names if name != own]
    return [_requirement(APPLICATION, "In", *others)] if others else None


def _not_ours(app: str) -> tuple[dict[str, Any], ...]:
    return (
        # The label of the model's operator, without which Juju cannot repair any charm.
        _requirement(JUJU_PODS[0][0], "DoesNotExist"),
        # Our own pods: no unit answers a review of the first one.
        _requirement(APPLICATION, "NotIn", app),
    )


def _narrowed(selector: Mapping[str, Any], *more: Mapping[str, Any]) -> dict[str, Any]:
    """Return `selector` AND more requirements."""
    return {**selector, "matchExpressions": [*selector.get("matchExpressions", []), *more]}


def _requirement(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


_NOT_REFUSED: Final = _requirement(INJECT, "NotIn", "false")
_NOT_JUJUS: Final = tuple(
    _requirement(key, "NotIn", value) if value else _requirement(key, "DoesNotExist")
    for key, value in JUJU_PODS
)
