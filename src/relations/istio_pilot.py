"""The relation `istio-pilot` (interface `k8s-service`, serialized-data-interface 0.7 format)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, cast

import ops
import yaml

import controlplane
from controlplane import ControlPlane

ENDPOINT: Final = "istio-pilot"

_VERSIONS: Final = "_supported_versions"
# istio-pilot reads the versions that we speak (serialized-data-interface get_interfaces) and goes
# to waiting itself, for everybody, as long as one of its relations has none.
_SUPPORTED_VERSIONS: Final = "- v1\n"
# The library takes a bare number for the same version (serialized-data-interface
# SerializedDataInterface._parse_versions).
_SPOKEN: Final = frozenset({"v1", "1"})
# istio-pilot writes `istiod.<model>.svc`; the cluster's domain may follow.
_SERVICE: Final = re.compile(r"[^.]+\.(?P<namespace>[^.]+)(?:\.svc(?:\..+)?)?")


def publish_versions(model: ops.Model) -> None:
    """Tell istio-pilot which versions of the interface we speak; only the leader may."""
    relation = model.get_relation(ENDPOINT)
    if relation and relation.active:
        relation.data[model.app][_VERSIONS] = _SUPPORTED_VERSIONS


def parse(databag: Mapping[str, str]) -> ControlPlane:
    """Return what the provider tells in its application databag.

    Version 1 of the interface has one YAML text, `data`, with `service-name` and `service-port`.
    Of these only the name is read: the port is that of istiod's configuration, not of its webhook.
    Other charms write other keys under the same interface name, without versions.

    Returns:
        Where the control plane is; whatever is wrong with the databag is the `reason` why not.
    """
    if not databag:
        return _unknown("nothing is told yet")
    if _VERSIONS not in databag:
        keys = controlplane.shown(", ".join(sorted(databag)))
        return _unknown(f"keys {keys}: expected {_VERSIONS} and data, as istio-pilot writes them")
    versions = _load(databag[_VERSIONS])
    if not isinstance(versions, list) or _SPOKEN.isdisjoint(
        map(str, cast("list[object]", versions))
    ):
        return _unknown(f"{_VERSIONS} {controlplane.shown(databag[_VERSIONS])}: expected v1")
    if "data" not in databag:
        return _unknown("the service is not told yet")
    return _of_version_1(databag["data"])


def _of_version_1(data: str) -> ControlPlane:
    loaded = _load(data)
    fields = cast("dict[object, object]", loaded) if isinstance(loaded, dict) else {}
    name = fields.get("service-name")
    if not isinstance(name, str):
        return _unknown(f"data {controlplane.shown(data)}: expected a service-name")
    service = _SERVICE.fullmatch(name)
    if not service:
        return _unknown(
            f"service-name {controlplane.shown(name)}: expected <service>.<namespace>.svc"
        )
    return controlplane.named(service["namespace"], ENDPOINT)


def _unknown(why: str) -> ControlPlane:
    return controlplane.unknown(ENDPOINT, why)


def _load(text: str) -> object:
    """Return the YAML value with every scalar as it is written, None if it is not YAML."""
    try:
        # This loader knows no tags, and so has none that run code or fail in ways of their own.
        return yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506 - it makes strings, lists and dicts only
    except (yaml.YAMLError, RecursionError):
        return None
