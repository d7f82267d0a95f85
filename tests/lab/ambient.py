"""A stand-in for what Istio's CNI and ztunnel do to a pod of an ambient mesh, and sometimes do not.

The CNI annotates a pod through `pods/status` before the pod has an address (istio
cni/pkg/nodeagent/meshdataplane_linux.go AddPodToMesh), and ztunnel listens in the pod's network. No
packet is redirected, and nothing speaks TLS.
"""

from __future__ import annotations

from typing import Literal, get_args

import lightkube
from lightkube.resources.core_v1 import Pod

from lab import images, meshed
from lab.kubelet import ScriptedKubelet

DATAPLANE = "istio.io/dataplane-mode"
REDIRECTION = "ambient.istio.io/redirection"
TUNNEL = 15008  # istio cni/pkg/config ZtunnelInboundPort.

Fault = Literal["never captured", "pending for ever", "lost at the boot of the node"]
FAULTS: tuple[Fault, ...] = get_args(Fault)
"""How pods stay outside (istio#61182, istio#55968, istio#57285)."""


def start(
    client: lightkube.Client,
    kubelet: ScriptedKubelet,
    namespace: str,
    name: str,
    *,
    fault: Fault | None = None,
    booted: bool = False,
) -> Pod:
    """Start a pod that is captured, or has a fault. It may have seen a boot of its node."""
    container = {"name": "main", "image": images.BUSYBOX}
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
    }
    pod = client.create(meshed.written(document, namespace))
    if fault != "never captured":
        said = "pending" if fault == "pending for ever" else "enabled"
        annotated = {"metadata": {"annotations": {REDIRECTION: said}}}
        client.patch(Pod.Status, name, annotated, namespace=namespace)
    kubelet.run(pod, booted=booted or fault == "lost at the boot of the node")
    if fault is None:
        kubelet.listen(pod, "", TUNNEL, "/never")
    return pod
