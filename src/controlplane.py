"""What relations tell the charm of Istio's control plane: where it is, or why that is not known.

Pure. No relation tells whether injection works; that is asked of the API server.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

# apimachinery pkg/util/validation: IsDNS1123Label, which names of namespaces have to be.
NAMESPACE: Final = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
# Of what another charm wrote, so much is shown: the reason ends up in a status.
_SHOWN: Final = 60


@dataclass(frozen=True)
class ControlPlane:
    """What one relation tells.

    Attributes:
        root_namespace: namespace of the control plane, None while the relation does not tell it.
        reason: who told it, or why it is not known; one line.
    """

    root_namespace: str | None
    reason: str


def named(namespace: str, endpoint: str) -> ControlPlane:
    """Return the control plane in `namespace`, as the relation `endpoint` tells it."""
    if not re.fullmatch(NAMESPACE, namespace):
        return unknown(endpoint, f"{shown(namespace)}: expected the name of a namespace")
    return ControlPlane(namespace, f"{endpoint}: root namespace {namespace}")


def unknown(endpoint: str, why: str) -> ControlPlane:
    """Return the control plane of which the relation `endpoint` does not tell where it is."""
    return ControlPlane(None, f"{endpoint}: {why}")


def root_namespace(planes: Iterable[ControlPlane]) -> str | None:
    """Return the namespace that all `planes` agree on, of those that tell one."""
    told = {plane.root_namespace for plane in planes if plane.root_namespace}
    return told.pop() if len(told) == 1 else None


def disagreement(planes: Iterable[ControlPlane]) -> str:
    """Return what `planes` contradict each other about, one line; else nothing."""
    told = {plane.reason: plane.root_namespace for plane in planes if plane.root_namespace}
    if len(set(told.values())) < 2:
        return ""
    return f"{', '.join(told)}: expected one control plane: remove one of these relations"


def shown(text: str) -> str:
    """Return what another charm wrote so that it fits in a reason: quoted, one line, not long."""
    return json.dumps(text[:_SHOWN]) + ("…" if len(text) > _SHOWN else "")
