"""The relation `istio-metadata` (interface `istio_metadata`): the control plane of istio-k8s."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import controlplane
from controlplane import ControlPlane

ENDPOINT: Final = "istio-metadata"


def parse(databag: Mapping[str, str]) -> ControlPlane:
    """Return what the provider tells in its application databag.

    The only key that the interface has is `root_namespace`, a plain text
    (charmlibs-interfaces-istio-metadata IstioMetadataAppData).

    Returns:
        Where the control plane is; whatever is wrong with the databag is the `reason` why not.
    """
    namespace = databag.get("root_namespace")
    if not namespace:
        return controlplane.unknown(ENDPOINT, "the root namespace is not told yet")
    return controlplane.named(namespace, ENDPOINT)
