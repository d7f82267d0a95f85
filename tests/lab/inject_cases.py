"""Pods of charms, and which of them get a sidecar because somebody asked for it. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from istio_aux.model.annotations import INJECT

# Namespaces of each mode, with their labels, and whose pods are asked for there.
MODELS: Mapping[str, tuple[dict[str, str], tuple[str, ...] | None]] = {
    "named": ({}, ("db", "web")),
    "every": ({}, None),
    "disabled": ({"istio-injection": "disabled"}, None),
    "ambient": ({"istio.io/dataplane-mode": "ambient"}, None),
}


@dataclass(frozen=True)
class Case:
    """A pod, and what it gets."""

    model: str
    app: str | None = "web"
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    annotations: Mapping[str, str] = field(default_factory=dict[str, str])
    spec: Mapping[str, Any] = field(default_factory=dict[str, Any])
    asks: bool = False
    meshed: bool = False


MODELOPERATOR = {
    "operator.juju.is/name": "modeloperator",
    "operator.juju.is/target": "model",
    "model.juju.is/disable-webhook": "true",
}
CASES = {
    "a pod of a named application": Case("named", asks=True, meshed=True),
    "another named application": Case("named", "db", asks=True, meshed=True),
    "an application that nobody named": Case("named", "cache"),
    "a pod of no application": Case("named", None),
    "the same application of another model": Case("other"),
    "any application of a model": Case("every", "anything", asks=True, meshed=True),
    "no application in a model of which all are asked for": Case("every", None),
    "a label that says no": Case("named", labels={INJECT: "false"}),
    "an annotation that says no": Case("named", annotations={INJECT: "false"}),
    "a label that says yes": Case("named", labels={INJECT: "true"}, asks=True, meshed=True),
    "host network": Case("named", spec={"hostNetwork": True}),
    "a pod that is ambient": Case("named", labels={"istio.io/dataplane-mode": "ambient"}),
    "the operator of a model": Case("every", "modeloperator", MODELOPERATOR),
    "an operator of an old Juju": Case("every", "x", {"juju-modeloperator": "modeloperator"}),
    "the controller": Case("every", "controller", {"model.juju.is/disable-webhook": "true"}),
    "we ourselves": Case("ours", "istio-aux"),
    "a neighbour of ours": Case("ours", asks=True, meshed=True),
    "an application in another model that has our name": Case(
        "every", "istio-aux", asks=True, meshed=True
    ),
    "a namespace that forbids it": Case("disabled", asks=True),
    "an ambient namespace": Case("ambient"),
}


def model(mode: str, name: str) -> str:
    """The namespace that stands for a model in a mode; ours is the same in all."""
    return "istio-aux" if name == "ours" else f"inject-{mode}-{name}"
