"""Whose pods have their sidecar by us: the webhooks that show them to the workload.

Pure. They ask Istio for a sidecar, or their namespace does; and they start after it, whatever the
option namespace-selector says. Which get the label is for the workload's `core/start.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import namespaces
import startrules
from applications import EVERY, NEVER_INJECTED, Applications

# Juju gives it to all pods of an application (juju internal/provider/kubernetes/constants).
APPLICATION: Final = "app.kubernetes.io/name"


def webhooks(app: str, model: str, asked: Iterable[Applications]) -> Iterator[dict[str, Any]]:
    """Return one webhook for each model with applications that may get a sidecar.

    Each has a name, a path, the fields that choose pods, and `matchConditions`.

    Args:
        app: name of our application, whose own pods in `model` are not chosen.
        model: name of our model.
        asked: applications, in one entry for each model.
    """
    for applications in asked:
        own = app if applications.model == model else None
        chosen = _chosen(applications.names, own)
        if chosen is None or applications.model in NEVER_INJECTED:
            continue
        yield {
            # A name has to be a DNS subdomain, unique, and none of Istio's: no label is too long.
            "name": f"{applications.model}.inject.istio-aux.io",
            "path": "/inject",
            "matches": {
                "matchPolicy": "Equivalent",
                # Whatever the option namespace-selector says; there is no sidecar in an ambient
                # mesh, and one that a pod asks for would be Istio's answer all the same.
                "namespaceSelector": {
                    "matchExpressions": [
                        _expression(namespaces.NAME_LABEL, "In", applications.model),
                        _expression(startrules.DATAPLANE, "NotIn", "ambient"),
                    ]
                },
                "objectSelector": {
                    "matchExpressions": [
                        *chosen,
                        # Also those that ask themselves: they have to start after it too.
                        _expression(startrules.INJECT, "NotIn", "false"),
                        _expression(startrules.DATAPLANE, "NotIn", "ambient"),
                        *_NOT_JUJUS,
                    ]
                },
            },
            "conditions": startrules.webhook_conditions(),
        }


def namespaced(
    app: str, injected: Sequence[str], conditions: Sequence[Mapping[str, str]]
) -> Iterator[dict[str, Any]]:
    """Return the webhook for pods of namespaces that we label, if there are any.

    Args:
        app: name of our application, whose own pods are not chosen.
        injected: names of the namespaces.
        conditions: `matchConditions` of the webhook for selected namespaces.
    """
    if injected:
        named = _expression(namespaces.NAME_LABEL, "In", *injected)
        yield {
            "name": "injected.start.istio-aux.io",
            "path": "/mutate",
            "matches": startrules.matches(app, {"matchExpressions": [named]}),
            "conditions": conditions,
        }


def injected(
    asked: Iterable[Applications], every_pod_of: Iterable[str]
) -> dict[str, tuple[str, ...]]:
    """Return the applications by namespace, `*` for all pods: what the account may act on."""
    found = {one.model: (EVERY,) if one.names is None else one.names for one in asked}
    found |= dict.fromkeys(every_pod_of, (EVERY,))
    return {name: names for name, names in found.items() if name not in NEVER_INJECTED}


def _chosen(names: tuple[str, ...] | None, own: str | None) -> list[dict[str, Any]] | None:
    """Return what chooses pods by their application; None if there is none but our own."""
    if names is None:
        every = _expression(APPLICATION, "Exists")
        return [every, _expression(APPLICATION, "NotIn", own)] if own else [every]
    others = [name for name in names if name != own]
    return [_expression(APPLICATION, "In", *others)] if others else None


def _expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


# Pods without which Juju could repair no charm of a model: its operator and the controller
# (juju internal/provider/kubernetes modeloperator.go, bootstrap.go).
_NOT_JUJUS: Final = (
    _expression("model.juju.is/disable-webhook", "DoesNotExist"),
    _expression("operator.juju.is/name", "NotIn", "modeloperator"),
    _expression("juju-modeloperator", "DoesNotExist"),
)
