"""cert-manager 1.11, unmodified: its own CRDs, its own programs beside the cluster.

Its webhook is not there, which only refuses objects that its CRDs allow and its programs do not.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkube.generic_resource import create_namespaced_resource
from lightkube.types import PatchType

from lab import tools, upstream

if TYPE_CHECKING:
    from lightkube import Client

    from lab.clusters import Cluster

MODULE = "github.com/cert-manager/cert-manager"
Certificate = create_namespaced_resource("cert-manager.io", "v1", "Certificate", "certificates")


def install(cluster: Cluster) -> None:
    """Start its controller and its CA injector; they end with the cluster."""
    folder = upstream.module("cert-manager-controller", MODULE)
    with cluster.client() as client:
        for path in sorted((folder / "deploy/crds").glob("crd-*.yaml")):
            upstream.apply(client, [_crd(path)])
    for program in ("cert-manager-controller", "cert-manager-cainjector"):
        argv = [tools.path(program), "--leader-elect=false", f"--kubeconfig={cluster.kubeconfig}"]
        cluster.spawn(program, argv)


def _crd(path: Path) -> dict[str, Any]:
    """A CRD without its labels, which are the text of a Helm template."""
    [document] = upstream.read(path)
    del document["metadata"]["labels"]
    return document


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
