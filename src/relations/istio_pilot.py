"""The relation `istio-pilot` (interface `k8s-service`, serialized-data-interface 0.7 format)."""

from __future__ import annotations

from typing import Final

import ops

ENDPOINT: Final = "istio-pilot"

# istio-pilot reads the versions that we speak (serialized-data-interface get_interfaces) and goes
# to waiting itself, for everybody, as long as one of its relations has none.
_SUPPORTED_VERSIONS: Final = "- v1\n"


def publish_versions(model: ops.Model) -> None:
    """Tell istio-pilot which versions of the interface we speak; only the leader may."""
    relation = model.get_relation(ENDPOINT)
    if relation and relation.active:
        relation.data[model.app]["_supported_versions"] = _SUPPORTED_VERSIONS
