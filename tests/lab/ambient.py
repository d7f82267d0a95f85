"""A stand-in for what Istio's CNI does to a pod of an ambient mesh, and sometimes does not.

It annotates a pod through `pods/status` before the pod has an address (istio
cni/pkg/nodeagent/meshdataplane_linux.go AddPodToMesh). No packet is redirected. `lab.cni` has the
real one.
"""

from __future__ import annotations

from typing import Literal, get_args

import lightkube
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap, Pod

from lab import images, meshed
from lab.fixtures import make_namespace
from lab.kubelet import ScriptedKubelet

DATAPLANE = "istio.io/dataplane-mode"
REDIRECTION = "ambient.istio.io/redirection"
HOME = "istio-cni-home"

Fault = Literal["never captured", "pending for ever"]
FAULTS: tuple[Fault, ...] = get_args(Fault)
"""How pods stay outside (istio#61182, istio#57285)."""


def install(client: lightkube.Client, kubelet: ScriptedKubelet) -> None:
    """Make the agents' namespace, with their settings (Istio 1.29) and the agent of the node."""
    make_namespace(client, HOME, {})
    about = ObjectMeta(name="istio-cni-config", namespace=HOME)
    settings = {"AMBIENT_RECONCILE_POD_RULES_ON_STARTUP": "true"}
    client.create(ConfigMap(metadata=about, data=settings))
    start(client, kubelet, HOME, "agent", fault="never captured", k8s_app="istio-cni-node")


def start(
    client: lightkube.Client,
    kubelet: ScriptedKubelet,
    namespace: str,
    name: str,
    *,
    fault: Fault | None = None,
    booted: bool = False,
    k8s_app: str = "",
) -> Pod:
    """Start a pod that is captured, or has a fault. It may have seen a boot of its node."""
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"k8s-app": k8s_app}},
        "spec": {
            "containers": [{"name": "main", "image": images.BUSYBOX}],
            "terminationGracePeriodSeconds": 0,
        },
    }
    pod = client.create(meshed.written(document, namespace))
    if fault != "never captured":
        said = "pending" if fault else "enabled"
        annotated = {"metadata": {"annotations": {REDIRECTION: said}}}
        client.patch(Pod.Status, name, annotated, namespace=namespace)
    kubelet.run(pod, booted=booted)
    return pod
