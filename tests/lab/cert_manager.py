"""cert-manager 1.21: its own CRDs and controllers, in one process beside the cluster.

Its webhook is not there, which only refuses objects that its CRDs allow and its programs do not.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from lightkube import Client
from lightkube.generic_resource import create_namespaced_resource
from lightkube.types import PatchType

from lab import Cluster, tools, upstream

MODULE = "github.com/cert-manager/cert-manager"
Certificate = create_namespaced_resource("cert-manager.io", "v1", "Certificate", "certificates")


def install(cluster: Cluster) -> None:
    """Start its controllers and its CA injector; they end with the cluster."""
    folder = upstream.module("cert-manager", MODULE)
    with cluster.client() as client:
        for path in sorted((folder / "deploy/crds").glob("*.yaml")):
            upstream.apply(client, upstream.read(path))
    argv = [tools.path("cert-manager"), f"--kubeconfig={cluster.kubeconfig}"]
    cluster.spawn("cert-manager", argv)


def renew(client: Client, name: str, namespace: str) -> None:
    """Ask for a new certificate before the time, as `cmctl renew` does."""
    found: dict[str, Any] = client.get(Certificate, name, namespace=namespace).to_dict()
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    issuing = {
        "type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "by a test",
        "lastTransitionTime": now, "observedGeneration": found["metadata"]["generation"],
    }  # fmt: skip
    others = [each for each in found["status"]["conditions"] if each["type"] != "Issuing"]
    client.patch(
        Certificate.Status, name, {"status": {"conditions": [*others, issuing]}},
        namespace=namespace, patch_type=PatchType.MERGE,
    )  # fmt: skip
