"""The relations with Istio: which namespace has the control plane, and whether a mesh is ambient.

`istio-pilot` (interface `k8s-service`, written by the charm istio-pilot with
serialized-data-interface 0.7) and `istio-metadata` (interface `istio_metadata`, written by
istio-k8s). Neither says whether injection works: the workload asks the API server.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import ops
import yaml
from istio_aux.model.selectors import DNS_LABEL
from istio_aux.model.text import quoted

from cluster import UNREADABLE
from relations import active, write

PILOT: Final = "istio-pilot"
METADATA: Final = "istio-metadata"
# The interface has the labels with which a charm's pods join an ambient mesh, and takes policies. A
# webhook needs only to be reached (docs/decisions/0006-libraries-of-interfaces.md), so the charm
# reads and writes nothing here.
SERVICE_MESH: Final = "service-mesh"
ENDPOINTS: Final = (PILOT, METADATA, SERVICE_MESH)

_VERSIONS: Final = "_supported_versions"
# istio-pilot itself goes to waiting while one of its relations does not name its versions
# (serialized-data-interface get_interfaces).
_SUPPORTED_VERSIONS: Final = "- v1\n"
# istio-pilot writes `istiod.<model>.svc`; the cluster's domain may follow.
_SERVICE: Final = re.compile(r"[^.]+\.(?P<namespace>[^.]+)(?:\.svc(?:\..+)?)?")


@dataclass(frozen=True)
class ControlPlane:
    """What one relation says."""

    root_namespace: str | None  # None while the relation does not name it.
    reason: str  # Which relation named it, or why it is unknown; one line.


def control_planes(model: ops.Model) -> tuple[ControlPlane, ...]:
    """Return what each relation with Istio says."""
    planes: list[ControlPlane] = []
    for endpoint in (PILOT, METADATA):
        databags = [relation.data[relation.app] for relation in active(model, endpoint)]
        # Juju may still list a relation that is gone, with an empty databag.
        written = [databag for databag in databags if databag] or databags[:1]
        planes += [parse(endpoint, databag) for databag in written]
    return tuple(planes)


def publish_versions(model: ops.Model) -> None:
    """Tell istio-pilot which versions of the interface the charm supports; leader only."""
    for relation in active(model, PILOT):
        write(relation, model.app, {_VERSIONS: _SUPPORTED_VERSIONS})


def root_namespace(planes: Iterable[ControlPlane]) -> str | None:
    """Return the root namespace if all `planes` that name one name the same."""
    named = {plane.root_namespace for plane in planes if plane.root_namespace}
    return named.pop() if len(named) == 1 else None


def migration(planes: Iterable[ControlPlane]) -> str:
    """Return one line that names the control planes if there is more than one; else empty."""
    named = {plane.reason: plane.root_namespace for plane in planes if plane.root_namespace}
    if len(set(named.values())) < 2:
        return ""
    counts = "the injectors of both count until one of these relations is removed"
    return f"{', '.join(named)}: two control planes: {counts}"


def parse(endpoint: str, databag: Mapping[str, str]) -> ControlPlane:
    """Return what the application at the other end of `endpoint` says in its databag."""
    try:
        # `istio_metadata` has one key (charmlibs-interfaces-istio-metadata).
        namespace = _pilot(databag) if endpoint == PILOT else databag["root_namespace"]
    except KeyError:
        return ControlPlane(None, f"{endpoint}: the root namespace is not set yet")
    except ValueError as error:
        return ControlPlane(None, f"{endpoint}: {error}")
    if not DNS_LABEL.fullmatch(namespace):
        why = f"{quoted(namespace)}: expected the name of a namespace"
        return ControlPlane(None, f"{endpoint}: {why}")
    return ControlPlane(namespace, f"{endpoint}: root namespace {namespace}")


def _pilot(databag: Mapping[str, str]) -> str:
    """Return the namespace of istiod's Service.

    Version 1 of the interface has one YAML text, `data`, with `service-name` and `service-port`.
    The port is istiod's configuration port, not its webhook's, so the charm reads only the name.
    Other charms write other keys, without versions, under the same interface name.
    """
    others = ", ".join(sorted(databag.keys() - {_VERSIONS, "data"}))
    if others and "data" not in databag:
        expected = f"expected {_VERSIONS} and data, as istio-pilot writes"
        raise ValueError(f"keys {quoted(others)}: {expected}")
    text = databag["data"]
    with contextlib.suppress(yaml.YAMLError, *UNREADABLE):
        # BaseLoader makes strings, lists and dicts only: it knows no tags, so it runs no code.
        loaded = yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506
        if service := _SERVICE.fullmatch(loaded["service-name"]):
            return service["namespace"]
    raise ValueError(f"data {quoted(text)}: expected a service-name, <service>.<namespace>.svc")
