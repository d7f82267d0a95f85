"""The relations with Istio: which namespace has the control plane, and whether a mesh is ambient.

`istio-pilot` (interface `k8s-service`, written by the charm istio-pilot with
serialized-data-interface 0.7) and `istio-metadata` (interface `istio_metadata`, written by
istio-k8s). Neither says whether injection works: the workload asks the API server.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, cast

import ops
import yaml
from istio_aux.model.selectors import DNS_LABEL

from relations import active, shown, write

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
# The library reads a bare number as the same version (SerializedDataInterface._parse_versions).
_SPOKEN: Final = frozenset({"v1", "1"})
# istio-pilot writes `istiod.<model>.svc`; the cluster's domain may follow.
_SERVICE: Final = re.compile(r"[^.]+\.(?P<namespace>[^.]+)(?:\.svc(?:\..+)?)?")


@dataclass(frozen=True)
class ControlPlane:
    """What one relation says."""

    root_namespace: str | None  # None while the relation does not name it.
    reason: str  # Which relation named it, or why it is unknown; one line.


def control_planes(model: ops.Model) -> tuple[ControlPlane, ...]:
    """Return what each relation with Istio says."""
    return tuple(
        parse(databag)
        for endpoint, parse in ((PILOT, parse_pilot), (METADATA, parse_metadata))
        for databag in _databags(model, endpoint)
    )


def _databags(model: ops.Model, endpoint: str) -> list[Mapping[str, str]]:
    """Return what is written at the other end: one that is gone is empty, and may be listed."""
    databags = [relation.data[relation.app] for relation in active(model, endpoint)]
    return [databag for databag in databags if databag] or [*databags[:1]]


def beside_ambient_mesh(model: ops.Model) -> bool:
    """Tell whether an ambient mesh is related, whose policies may refuse the API server."""
    return bool(active(model, SERVICE_MESH))


def publish_versions(model: ops.Model) -> None:
    """Tell istio-pilot which versions of the interface the charm supports; leader only."""
    for relation in active(model, PILOT):
        write(relation, model.app, {_VERSIONS: _SUPPORTED_VERSIONS})


def root_namespace(planes: Iterable[ControlPlane]) -> str | None:
    """Return the root namespace if all `planes` that name one name the same."""
    named = {plane.root_namespace for plane in planes if plane.root_namespace}
    return named.pop() if len(named) == 1 else None


def disagreement(planes: Iterable[ControlPlane]) -> str:
    """Return how `planes` contradict each other, in one line, or the empty text."""
    named = {plane.reason: plane.root_namespace for plane in planes if plane.root_namespace}
    if len(set(named.values())) < 2:
        return ""
    return f"{', '.join(named)}: expected one control plane: remove one of these relations"


def parse_metadata(databag: Mapping[str, str]) -> ControlPlane:
    """Return what istio-k8s says in its application databag.

    The interface has one key, `root_namespace`, a plain text
    (charmlibs-interfaces-istio-metadata IstioMetadataAppData).
    """
    namespace = databag.get("root_namespace")
    if not namespace:
        return _unknown(METADATA, "the root namespace is not set yet")
    return _named(METADATA, namespace)


def parse_pilot(databag: Mapping[str, str]) -> ControlPlane:
    """Return what istio-pilot says in its application databag.

    Version 1 of the interface has one YAML text, `data`, with `service-name` and `service-port`.
    The port is istiod's configuration port, not its webhook's, so the charm reads only the name.
    Other charms write other keys, without versions, under the same interface name.
    """
    if not databag:
        return _unknown(PILOT, "the databag is empty")
    if _VERSIONS not in databag:
        keys = shown(", ".join(sorted(databag)))
        return _unknown(PILOT, f"keys {keys}: expected {_VERSIONS} and data, as istio-pilot writes")
    versions = _load(databag[_VERSIONS])
    spoken = map(str, cast("list[object]", versions)) if isinstance(versions, list) else ()
    if _SPOKEN.isdisjoint(spoken):
        return _unknown(PILOT, f"{_VERSIONS} {shown(databag[_VERSIONS])}: expected v1")
    if "data" not in databag:
        return _unknown(PILOT, "the service is not set yet")
    return _parse_service(databag["data"])


def _parse_service(data: str) -> ControlPlane:
    loaded = _load(data)
    fields = cast("dict[object, object]", loaded) if isinstance(loaded, dict) else {}
    name = fields.get("service-name")
    if not isinstance(name, str):
        return _unknown(PILOT, f"data {shown(data)}: expected a service-name")
    service = _SERVICE.fullmatch(name)
    if not service:
        return _unknown(PILOT, f"service-name {shown(name)}: expected <service>.<namespace>.svc")
    return _named(PILOT, service["namespace"])


def _named(endpoint: str, namespace: str) -> ControlPlane:
    if not DNS_LABEL.fullmatch(namespace):
        return _unknown(endpoint, f"{shown(namespace)}: expected the name of a namespace")
    return ControlPlane(namespace, f"{endpoint}: root namespace {namespace}")


def _unknown(endpoint: str, why: str) -> ControlPlane:
    return ControlPlane(None, f"{endpoint}: {why}")


def _load(text: str) -> object:
    """Return the YAML value with every scalar as a string, None if it is not YAML."""
    try:
        # BaseLoader knows no tags, so it runs no code.
        return yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506 - it makes strings, lists and dicts only
    except (yaml.YAMLError, RecursionError):
        return None
